"""Figures of training: losses, forces between members, and the weights that members get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.settings import require
from bayesemble.diagnostics.plots.style import (
    as_array,
    colour,
    entry,
    mark,
    method_axes,
    whole_ticks,
    with_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORCES = {"driving_norm": ("driving", "-"), "repulsion_norm": ("repulsion", "--")}
"""The forces in a history: what they are called, and the line they are drawn with."""


def plot_history(
    history: Sequence[Mapping[str, Any]],
    ax: Axes | None = None,
    *,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw the loss of each member per epoch, thin, and the validation loss of their average, dashed, if it is there.

    Args:
        history: One row per epoch: `ensemble.history`.
    """
    epochs, losses = _per_member(history, "loss")
    ax, group, color = method_axes(ax, label, color)
    members = ax.plot(epochs, losses, color=color, linewidth=0.8, alpha=0.6)
    members[0].set_label(entry(label, "training, each member"))
    mark(group, members)
    held_out = [(row["epoch"], row["validation_loss"]) for row in history if "validation_loss" in row]
    if held_out:
        epochs, losses = (np.array(values) for values in zip(*held_out, strict=True))
        words = entry(label, "validation, averaged")
        mark(group, ax.plot(epochs, losses, color=color, linestyle="--", linewidth=1.8, label=words))
    whole_ticks(ax)
    ax.set(xlabel="Epoch", ylabel="Loss (nats per row)")
    return with_legend(ax)


def plot_forces(
    history: Sequence[Mapping[str, Any]],
    ax: Axes | None = None,
    *,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw how strongly members are driven by the data and repelled by one another, per epoch.

    Lines are means over members, from the smallest to the largest is shaded. Repulsion far below the driving force
    does nothing. Forces are lengths of gradients of the log joint, in weights or outputs, wherever members repel.

    Args:
        history: One row per epoch, of a method whose members repel: `ensemble.history`.
    """
    found = {key: _per_member(history, key) for key in FORCES}
    ax, group, color = method_axes(ax, label, color)
    for key, (epochs, norms) in found.items():
        name, style = FORCES[key]
        lines = ax.plot(epochs, norms.mean(1), color=color, linestyle=style, label=entry(label, name))
        span = ax.fill_between(epochs, norms.min(1), norms.max(1), color=color, alpha=0.15, linewidth=0)
        mark(group, [*lines, span])
    if all((norms > 0).all() for _, norms in found.values()):
        ax.set_yscale("log")
    whole_ticks(ax)
    ax.set(xlabel="Epoch", ylabel="Length of the force (nats per unit)")
    return with_legend(ax)


def plot_weights(
    weights: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw the weight of each member as bars side by side, one for each way to weigh them.

    Args:
        weights: Weights `(member,)` by name: `{"equal": ..., "evidence": ..., "stacking": ...}`.
        label: Name of the method whose members they are.
        color: Its colour, lighter for each further way; None takes a colour for each way.
    """
    values = {name: as_array(some) for name, some in weights.items()}
    sizes = {len(some) for some in values.values() if some.ndim == 1}
    require(
        len(sizes) == 1 and all(some.ndim == 1 for some in values.values()),
        f"one weight per member was needed, got { ({name: some.shape for name, some in values.items()}) }",
    )
    ax, group, _ = method_axes(ax, label, color)
    width, positions = 0.8 / len(values), np.arange(sizes.pop())
    for number, (name, some) in enumerate(values.items()):
        look = colour(number) if color is None else color
        opacity = 1.0 if color is None else 1 - 0.7 * number / len(values)
        offset = (number - (len(values) - 1) / 2) * width
        bars = ax.bar(positions + offset, some, width, color=look, alpha=opacity, label=entry(label, name))
        mark(group, bars)
    whole_ticks(ax)
    ax.set(xlabel="Member", ylabel="Weight (share)")
    return with_legend(ax)


def _per_member(history: Sequence[Mapping[str, Any]], key: str) -> tuple[NumpyArray, NumpyArray]:
    """Epochs `(epoch,)` and what each member had in them, `(epoch, member)`."""
    require(len(history) > 0, "the history has no epoch; pass ensemble.history of a trained ensemble")
    rows = [row for row in history if key in row]
    there = ", ".join(name for name in history[0] if name != "epoch")
    require(len(rows) > 0, f"the history has no {key!r}; it has {there}")
    return np.array([row["epoch"] for row in rows]), np.array([row[key] for row in rows], dtype=float)
