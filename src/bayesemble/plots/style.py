"""What all figures have in common: axes, colours, and the way a missing matplotlib is reported.

Colours are those of Okabe & Ito (2008), which people with any kind of colour vision tell apart; surfaces use viridis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bayesemble.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8C6D31", "#000000")
SURFACE = "viridis"
GREY = "#767676"


def colour(number: int) -> str:
    """The colour of the thing with this number; after the last one, the first comes again."""
    return PALETTE[number % len(PALETTE)]


def new_axes(ax: Axes | None = None, width: float = 5.0, height: float = 3.8) -> Axes:
    """The axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    _, axes = load_pyplot().subplots(figsize=(width, height), layout="constrained")
    return axes


def load_pyplot() -> Any:
    """Import matplotlib, or say which extra has it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib, which is not here: pip install 'bayesemble[plots]'"
        ) from error
    return matplotlib.pyplot
