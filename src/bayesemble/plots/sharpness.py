"""How sharp each member's minimum is, against how good the member is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesemble.landscape.sharpness import Sharpness
from bayesemble.plots.style import colour, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_sharpness(result: Sharpness, ax: Axes | None = None) -> Axes:
    """Draw the largest Hessian eigenvalue of each member against its error, numbered by its place in the ensemble."""
    axes = new_axes(ax)
    errors, sharpest = result.error.tolist(), result.eigenvalues[:, 0].tolist()
    axes.scatter(errors, sharpest, color=colour(0))
    for place, point in enumerate(zip(errors, sharpest, strict=True)):
        axes.annotate(str(place), point, (5, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("share of wrong classes" if result.classes else "root mean squared error")
    axes.set_ylabel("largest eigenvalue of the Hessian")
    return axes
