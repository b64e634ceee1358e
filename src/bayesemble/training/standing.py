"""Where a run stands, between two epochs or within one, and what was asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from bayesemble.core.members import State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Clock, Info
from bayesemble.training import checkpoint as checkpoints
from bayesemble.training.checkpoint import Checkpoint, Row
from bayesemble.training.ensemble import Ensemble

OnEpoch = Callable[[State, Row], bool | None]


@dataclass(frozen=True)
class Plan:
    """What was asked of a run, and how many steps that is."""

    epochs: int
    batch_size: int | None
    steps: int
    """Batches of an epoch."""
    seed: int
    device: torch.device
    patience: int | None = None
    keep_best: bool = False
    drop: bool = False
    """Whether members that are no longer finite are left behind, rather than ending the run."""
    folder: Path | None = None
    checkpoint_every: int = 1
    keep_checkpoints: int = checkpoints.KEEP
    on_epoch: OnEpoch | None = None

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.steps

    def clock(self, epoch: int, step: int) -> Clock:
        """The time of a step."""
        return Clock(epoch * self.steps + step, self.total_steps, self.seed)


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
    step: int = 0
    """Steps that are done of the epoch that is under way."""
    seconds: float = 0.0
    """What they took."""
    first_losses: list[float | None] = field(default_factory=list)
    """Loss of each member at the first step, before anything was learned; None if it was not finite."""
    dropped: list[dict[str, int]] = field(default_factory=list)
    """Members that were left behind: member, epoch and step, the latter two from 1."""
    changed: list[dict[str, Any]] = field(default_factory=list)
    """Settings of the method that were changed on resuming: epochs done by then, setting, from and to."""

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
        """What `to_json` gave; None of anything else, such as the nothing that a saved ensemble has."""
        names = [field.name for field in fields(Standing)]
        if not isinstance(saved, dict) or not saved.keys() >= set(names):
            return None
        found = {name: saved[name] for name in names}
        return Standing(**found | {"best_loss": math.inf if found["best_loss"] is None else found["best_loss"]})


@dataclass(frozen=True)
class Run:
    """Where training stands: all that a checkpoint holds."""

    ensemble: Ensemble
    standing: Standing
    best: State | None = None
    gathered: list[Info] = field(default_factory=list)
    """What the steps of the epoch that is under way told."""

    def result(self) -> Ensemble:
        """The ensemble that the run has come to, where its tensors belong; what it makes from now on is in memory."""
        task = self.ensemble.task
        state = settled(self.best or self.ensemble.state, task.allocator)
        return replace(self.ensemble, task=replace(task, allocator=MEMORY), state=state)

    def save(self, folder: str | Path, keep: int) -> None:
        """Write a checkpoint."""
        described = self.ensemble.describe() | {"progress": self.standing.to_json()}
        told = {name: torch.stack([info[name] for info in self.gathered]) for name in (self.gathered or [{}])[0]}
        found = Checkpoint(described, self.ensemble.state, self.ensemble.history, self.best, told)
        checkpoints.write(folder, found, keep)


def told_by_step(told: dict[str, torch.Tensor], steps: int) -> list[Info]:
    """What each step told, from what a checkpoint holds of them all, `(step, member)`."""
    return [{name: values[step] for name, values in told.items()} for step in range(steps)]


def settled(state: State, allocator: Allocator) -> State:
    """The state where it belongs, and on disk nothing else beside it."""
    return state.with_groups(allocator.settle(state.groups()))
