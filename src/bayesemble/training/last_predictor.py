"""What the last prediction of an ensemble leaves for the next: networks that were drawn, and how they are run."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from bayesemble.core.members import State
from bayesemble.training.predictor import Predictor

_MOST_BYTES = 1 << 26


class _Kept(NamedTuple):
    request: Any
    marks: list[tuple[Tensor, int]]
    """The tensors of the state, and how often each had been changed in place."""
    predictor: Predictor


class LastPredictor:
    """The predictor that was asked for last, for whoever asks for the same again, from any thread.

    It is the same as long as every tensor of the state is: torch counts the changes of each. Networks that take much
    memory beside the state are forgotten once the prediction is over. Copies of an ensemble begin with nothing.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None  # read and replaced in one go

    def find(self, state: State, request: Any) -> Predictor | None:
        """The predictor, if this state was asked for the same before."""
        kept = self._kept
        if kept is None or kept.request != request:
            return None
        leaves = _leaves(state)
        same = len(leaves) == len(kept.marks) and all(
            leaf is before and leaf._version == changes
            for leaf, (before, changes) in zip(leaves, kept.marks, strict=True)
        )
        return kept.predictor if same else None

    def keep(self, state: State, request: Any, predictor: Predictor) -> None:
        """Keep it in place of the one before, if changes of the state can be seen."""
        leaves = _leaves(state)
        seen = not any(leaf.is_inference() for leaf in leaves)
        self._kept = _Kept(request, [(leaf, leaf._version) for leaf in leaves], predictor) if seen else None

    def forget_if_large(self) -> None:
        """Give back the memory of large networks, which are drawn again when they are needed again."""
        kept = self._kept
        if kept is not None and kept.predictor.networks.bytes_kept > _MOST_BYTES:
            self._kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LastPredictor, ()


def _leaves(state: State) -> list[Tensor]:
    return [state.members.weights, *(leaf for group in state.groups().values() for leaf in group.values())]
