"""Where a run stands between two epochs, as its checkpoints say it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Standing:
    """How far training has come, and what the best epoch so far was."""

    epoch: int
    """Epochs that are done."""
    epochs: int
    """Epochs that were asked for."""
    batch_size: int | None
    best_loss: float = math.inf
    best_epoch: int = 0
    stopped: bool = False
    """Whether training ended before its last epoch."""
    finished: bool = False
    """Whether the method has done what it does after training."""
    data: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the rows of "training" and, if there are any, of "validation"."""

    @property
    def trained(self) -> bool:
        """Whether there is no epoch to come."""
        return self.stopped or self.epoch >= self.epochs

    def to_json(self) -> dict[str, Any]:
        """All fields; JSON has no infinity, so a loss that was never measured is None."""
        return asdict(self) | {"best_loss": self.best_loss if math.isfinite(self.best_loss) else None}

    @staticmethod
    def from_json(saved: Any) -> Standing | None:
        """What `to_json` gave; None of anything else, such as the nothing that a saved ensemble has."""
        names = [one.name for one in fields(Standing)]
        if not (isinstance(saved, dict) and saved.keys() >= set(names) and isinstance(saved["data"], dict)):
            return None
        found = {name: saved[name] for name in names}
        return Standing(**found | {"best_loss": math.inf if found["best_loss"] is None else found["best_loss"]})
