"""A run of training: what was asked of it, and all that it has come to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bayesemble.core.members import State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Clock, Info
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.training.callbacks.base import Callbacks
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.over_ranks.states import sharded
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.due import EVERY_EPOCH, Every
from bayesemble.training.run_folders.fingerprint import Fingerprint
from bayesemble.training.run_folders.standing import Standing


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
    checkpoint_every: Every = EVERY_EPOCH
    keep_checkpoints: int = checkpoints.KEEP
    callbacks: Callbacks = field(default_factory=Callbacks)
    data: dict[str, Fingerprint] = field(default_factory=dict)
    """What tells the rows of "training" and "validation" from others, if there is a folder."""
    team: Team = ALONE
    """The processes that hold the members."""
    whole: Method | None = None
    """The method of all members, if there are several processes."""

    @property
    def spread(self) -> tuple[Team, Method | None]:
        """Who holds the members, and the method of them all."""
        return self.team, self.whole

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.steps

    def clock(self, epoch: int, step: int) -> Clock:
        """The time of a step."""
        return Clock(epoch * self.steps + step, self.total_steps, self.seed)


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
        return replace(self.ensemble, task=replace(task, allocator=MEMORY, precision=None, max_batch=None), state=state)

    def save(self, folder: str | Path, keep: int, spread: tuple[Team, Method | None] = (ALONE, None)) -> None:
        """Write a checkpoint; where several processes hold the members, each writes its own."""
        team, whole = spread
        kept = replace(self.ensemble, state=self.best or self.ensemble.state, method=whole or self.ensemble.method)
        described = kept.describe() | {"progress": self.standing.to_json()}
        told = {name: torch.stack([info[name] for info in self.gathered]) for name in (self.gathered or [{}])[0]}
        found = Checkpoint(
            described, self.ensemble.state, self.ensemble.history, self.best, told, self.ensemble.prior_centers
        )
        found, shards = (found, None) if team is ALONE else sharded(found, self.ensemble.method, team)
        checkpoints.write(folder, found, keep, shards)


def told_by_step(told: dict[str, torch.Tensor], steps: int) -> list[Info]:
    """What each step told, from what a checkpoint holds of them all, `(step, member)`."""
    return [{name: values[step] for name, values in told.items()} for step in range(steps)]


def settled(state: State, allocator: Allocator) -> State:
    """The state where it belongs, and on disk nothing else beside it."""
    return state.with_groups(allocator.settle(state.groups()))
