"""Where a run stands between two epochs, as its checkpoints say it, and whether it is the run that is asked for."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from bayesemble.core.errors import CheckpointError
from bayesemble.core.settings import setting, validate
from bayesemble.task.running import PRECISIONS


@dataclass(frozen=True)
class Standing:
    """How far training has come, and what the best epoch so far was."""

    epoch: int = setting(MISSING, "epochs that are done", least=0)
    epochs: int = setting(MISSING, "epochs that were asked for", least=0)
    batch_size: int | None = setting(MISSING, "rows of each step; None takes all", least=1)
    max_batch: int | None = setting(
        None, "rows that go through a member at a time; None takes those of a step", least=1
    )
    precision: str | None = setting(
        None, "the number type that steps compute in; None is the network's", choices=PRECISIONS
    )
    best_loss: float = math.inf
    best_epoch: int = setting(0, "the epoch with that loss", least=0)
    stopped: bool = setting(False, "whether training ended before its last epoch")
    finished: bool = setting(False, "whether the method has done what it does after training")
    step: int = setting(0, "steps that are done of the epoch that is under way", least=0)
    seconds: float = setting(0.0, "what they took", least=0)
    first_losses: list[float | None] = field(default_factory=list)
    """Loss of each member at the first step, before anything was learned; None if it was not finite."""
    dropped: list[dict[str, int]] = field(default_factory=list)
    """Members that were left behind: member, epoch and step, the latter two from 1."""
    changed: list[dict[str, Any]] = field(default_factory=list)
    """Settings of the method that were changed on resuming: epochs done by then, setting, from and to."""
    data: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the rows of "training" and, if there are any, of "validation"."""

    @property
    def trained(self) -> bool:
        """Whether there is no epoch to come."""
        return self.stopped or self.epoch >= self.epochs

    def __str__(self) -> str:
        where = f"step {self.step} of epoch {self.epoch + 1}" if self.step else f"epoch {self.epoch}"
        return f"after {where}, of {self.epochs} epochs"

    def to_json(self) -> dict[str, Any]:
        """All fields; JSON has no infinity, so a loss that was never measured is None."""
        return asdict(self) | {"best_loss": self.best_loss if math.isfinite(self.best_loss) else None}

    @staticmethod
    def from_json(saved: Any) -> Standing | None:
        """What `to_json` gave; None of anything else, such as the nothing that a saved ensemble has.

        A standing that cannot be, such as a negative epoch, is refused.
        """
        names = [one.name for one in fields(Standing)]
        if not (isinstance(saved, dict) and saved.keys() >= set(names) and isinstance(saved["data"], dict)):
            return None
        found = {name: saved[name] for name in names}
        standing = Standing(**found | {"best_loss": math.inf if found["best_loss"] is None else found["best_loss"]})
        validate(standing)
        return standing


def check_same_run(
    held: Mapping[str, Any], asked: Mapping[str, Any], change: Sequence[str], epoch: int
) -> list[dict[str, Any]]:
    """Refuse a checkpoint of other settings; give what has changed of those settings of the method that may.

    Args:
        held: What the checkpoint says, by name; "method" is a mapping of settings.
        asked: The same of the run that is to go on.
        change: Settings of the method that may be others.
        epoch: How many epochs are done.
    """
    there, here = held["method"], asked["method"]
    changed = [
        {"epoch": epoch, "setting": name, "from": there.get(name), "to": here[name]}
        for name in change
        if there.get(name) != here[name]
    ]
    held = {**held, "method": there | {one["setting"]: one["to"] for one in changed}}
    for key, value in asked.items():
        if value != held[key]:
            there, here = _differing(held[key], value)
            raise CheckpointError(f"the checkpoint was made with {key} {there}, now it is {here}; repeat the settings")
    return changed


def _differing(held: Any, asked: Any) -> tuple[str, str]:
    """Both in few words: of two mappings only what they do not share, of long texts the ends."""
    if not (isinstance(held, Mapping) and isinstance(asked, Mapping)):
        return str(held), str(asked)
    names = [name for name in held | asked if held.get(name) != asked.get(name)]  # type: ignore[operator]
    told = reprlib.Repr()
    told.maxstring, told.maxdict = 60, 12
    held_words, asked_words = (
        ", ".join(f"{name}={told.repr(one.get(name))}" for name in names) for one in (held, asked)
    )
    return held_words, asked_words
