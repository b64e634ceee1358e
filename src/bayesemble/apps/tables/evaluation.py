"""What rows with targets say about a run: scores, those of the simplest prediction, and a judgement in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bayesemble.core.settings import validate


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of some rows, and what they mean."""

    rows: int
    unlike: int = 0
    """How many of the rows are unlike the training data."""
    scores: dict[str, float]
    baseline: dict[str, Any]
    """What the simplest prediction `says`, and its accuracy or RMSE."""
    chance_ece: float | None = None
    """The calibration error that chance alone makes, of classes."""
    words: str = ""
    notes: list[str] | None = None
    """What a person should know about the rows; None where that was said before."""

    def __post_init__(self) -> None:
        validate(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Evaluation:
        """Read what `to_json` gave, from a file that holds null for scores that are not finite."""
        scores = {name: math.nan if value is None else value for name, value in values["scores"].items()}
        return Evaluation(**values | {"scores": scores})

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold, without those that do not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}
