"""The fitted thing: it predicts, is evaluated, is saved and loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble import __version__
from bayesemble.core import settings
from bayesemble.core.arrays import as_inputs, check_member_count, check_rows
from bayesemble.core.errors import CheckpointError, DataError
from bayesemble.core.files import understood
from bayesemble.core.html import facts_table
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.core.types import Inputs, WeightedTargets, tensors_of
from bayesemble.execute.choose import AS_ASKED_FOR
from bayesemble.execute.executor import Executor
from bayesemble.execute.optimizers.of_torch import OfTorch
from bayesemble.execute.rule import FEWEST_ROWS
from bayesemble.execute.schedules import Schedule
from bayesemble.methods import Method
from bayesemble.methods.deep_ensemble import DeepEnsemble
from bayesemble.methods.repulsion.interacting import Space
from bayesemble.methods.repulsion.kernels import Kernel, Linear
from bayesemble.metrics.summary import Summary
from bayesemble.predictive import Predictive
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.networks import ModelSource
from bayesemble.task.priors import Prior
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.batches import PerMember, as_source
from bayesemble.training.draws import DrawnNetworks
from bayesemble.training.predictor import LastPredictor, Predictor
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders import recording
from bayesemble.training.run_folders.checkpoint import Checkpoint, Row
from bayesemble.training.run_folders.probe import Probe, describe_network
from bayesemble.training.run_folders.recording import Recording
from bayesemble.training.run_folders.run_lock import locked
from bayesemble.training.run_folders.standing import Standing

_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """A task, a method and the state it reached."""

    task: BoundTask
    method: Method
    state: State
    executor: Executor
    seed: int = 0
    history: list[Row] = field(default_factory=list)
    """One row per epoch."""
    execution: str = ""
    """Why this executor was taken."""
    recording: Recording | None = None
    """The members along training, if `fit(record=...)` kept them."""

    @classmethod
    def of_networks(cls, task: BoundTask, networks: Members, executor: Executor, seed: int = 0) -> Ensemble:
        """Networks that come from anywhere as plain members: an ensemble that predicts like any other."""
        return cls(task, DeepEnsemble(num_members=networks.num_members), State(networks), executor, seed)

    @property
    def num_members(self) -> int:
        """Number of independently started members."""
        return self.state.members.num_members

    def networks(self, num: int | None = None, seed: int = 0) -> DrawnNetworks:
        """Networks to average over, a few at a time: as many as wished, or (None) as many as suit the method."""
        drawn_from = self.weighed() if self.method.can_draw(self.state) else self
        return DrawnNetworks(drawn_from.method, drawn_from.state, num, seed)

    def weighed(self) -> Ensemble:
        """The ensemble of the members that weigh anything, alone."""
        weights = self.state.members.weights
        chosen = weights.nonzero().flatten()
        return self if len(chosen) == len(weights) else self.keep(chosen.tolist()).reweight(weights[chosen])

    def draw(self, num: int | None = None, seed: int = 0) -> Members:
        """The same networks as those of `networks`, all at once."""
        return self.networks(num, seed).joined()

    def predict(
        self,
        inputs: Any,
        *,
        num_draws: int | None = None,
        batch_size: int | None = None,
        keep_members: bool = True,
        seed: int = 0,
    ) -> Predictive:
        """Predict rows in batches.

        Args:
            inputs: Arrays or tensors, rows first; a tuple or dict of them; or `PerMember(inputs)`.
            num_draws: How many networks to draw; None lets the method say, which may need none.
            batch_size: Rows at a time; None takes as many as suit the network.
            keep_members: If False, forget the members' own outputs batch by batch: for very large data.
            seed: Seed of the draws.
        """
        require(batch_size is None or batch_size >= 1, f"batch_size is at least one row, got {batch_size}")
        per_member = isinstance(inputs, PerMember)
        tensors = as_inputs(inputs.inputs if isinstance(inputs, PerMember) else inputs, self.task.dtype)
        check_rows(tensors, None, per_member)
        predict = self.predictor(num_draws, seed)
        if per_member and not predict.networks.sampled:
            check_member_count(tensors, next(iter(predict.networks)).num_members)
        axis = 1 if per_member else 0
        num_rows = tensors_of(tensors)[0].shape[axis]
        if batch_size is None and num_rows > FEWEST_ROWS:
            batch_size = predict.rows_at_a_time
        parts = _split_rows(tensors, batch_size, axis)
        found = (
            predict(part, per_member=per_member, number=number, reduced=not keep_members)
            for number, part in enumerate(parts)
        )
        whole = next(found) if len(parts) == 1 else Predictive.gather(found, num_rows)
        self._last_predictor.forget_if_large()
        return whole

    def predictions(self, data: Any, *, batch_size: int | None = None) -> Iterator[tuple[Predictive, Tensor]]:
        """Predict data `(x, y)`, a `Dataset` or a `DataLoader` batch by batch, each with its targets."""
        predict = self.predictor()
        batch_size = predict.rows_at_a_time if batch_size is None else batch_size
        source = as_source(data, self.task.dtype, batch_size, shuffle=False).checked(self.task, training=False)
        for number, batch in enumerate(source.in_order(batch_size)):
            if batch.inputs_per_member:
                raise DataError("the members are averaged, so they must share the data; use predict for PerMember data")
            if isinstance(batch.targets, WeightedTargets):
                raise DataError("predictions are scored with every row counting alike; leave the weights out: (x, y)")
            yield predict(batch.inputs, number=number), batch.targets.cpu()
        self._last_predictor.forget_if_large()

    def predictor(self, num_draws: int | None = None, seed: int = 0) -> Predictor:
        """Predicts batch after batch of rows with the same networks: see `LastPredictor`."""
        found = self._last_predictor.find(self.state, (num_draws, seed))
        if found is None:
            found = Predictor(self.task, self.networks(num_draws, seed), self.executor, self._threads_asked_for)
            self._last_predictor.keep(self.state, (num_draws, seed), found)
        return found

    @property
    def _threads_asked_for(self) -> bool:
        return self.execution in ("", AS_ASKED_FOR)

    @cached_property
    def _last_predictor(self) -> LastPredictor:
        return LastPredictor()

    def evaluate(self, data: Any, ood: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
        """Scores on data `(x, y)`, a `Dataset` or a `DataLoader`; `ood` are inputs of foreign data."""
        summary = Summary(ood=ood is not None)
        for predictive, targets in self.predictions(data, batch_size=batch_size):
            summary.update(predictive, targets)
        if ood is not None:
            summary.update_ood(self.predict(ood, batch_size=batch_size, keep_members=False))
        return summary.compute()

    def reweight(self, weights: Any) -> Ensemble:
        """The same members under other weights, normalised to sum to one: see `bayesemble.weighting`."""
        members = self.state.members
        return replace(self, state=replace(self.state, members=members.reweight(weights)))

    def keep(self, indices: Sequence[int]) -> Ensemble:
        """An ensemble of some of the members, equally weighted. It predicts, but cannot be trained further."""
        state, positions, own = self.state, torch.as_tensor(list(indices)), self.method.drawn_slots
        slots = {
            slot: {name: leaf[positions] for name, leaf in leaves.items()} if slot in own else leaves
            for slot, leaves in state.slots.items()
        }
        kept = State(state.members.take(positions), slots if own else {})
        return replace(self, method=replace(self.method, num_members=len(indices)), state=kept)

    def save(self, folder: str | Path) -> None:
        """Write the ensemble into a folder; `load` brings it back.

        What `save` wrote there before is replaced; a folder in which `fit` keeps a run is refused.
        """
        with locked(folder):
            checkpoints.check_replaceable(folder)
            checkpoints.write(folder, Checkpoint(self.describe(), self.state, self.history), keep=1)
            if self.recording is not None:
                self.recording.copy_to(Path(folder))

    def describe(self) -> dict[str, Any]:
        """Task, method, settings, seeds, versions and what the network computes, as JSON."""
        task = self.task
        return {
            "library": __version__,
            "torch": torch.__version__,
            "model": type(task.module).__name__,
            "task": {
                "likelihood": settings.dump(task.likelihood),
                "prior": settings.dump(task.prior),
                "temperature": task.temperature,
                "output": task.output if isinstance(task.output, str) else None,
                "num_data": task.num_data,
                "num_rows": task.num_rows,
                "output_shape": list(task.output_shape),
                "stochastic": task.stochastic,
            },
            "method": settings.dump(self.method),
            "executor": settings.dump(self.executor),
            "execution": self.execution,
            "seed": self.seed,
            "network": describe_network(task, self.state.members),
        }

    def __repr__(self) -> str:
        name = type(self.task.module).__name__
        return f"Ensemble({self.num_members} x {name}, {type(self.method).__name__}, {self.executor})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        facts = {
            "members": f"{self.num_members:,}",
            "network": f"{type(self.task.module).__name__}, {self.task.num_parameters:,} parameters",
            "likelihood": type(self.task.likelihood).__name__,
            "prior": "flat" if self.task.prior is None else type(self.task.prior).__name__,
            "executor": str(self.executor),
            "epochs": f"{len(self.history):,}",
        }
        if self.history:
            facts["training"] = f"{sum(row['seconds'] for row in self.history):.1f} s"
            losses = [loss for loss in self.history[-1].get("loss", []) if math.isfinite(loss)]
            if losses:
                facts["last loss of members"] = f"{min(losses):.4g} to {max(losses):.4g}"
        return facts_table(f"Ensemble: {type(self.method).__name__}", facts)


def evaluate(ensemble: Ensemble, data: Any, ood: Any = None) -> dict[str, float]:
    """Scores of an ensemble on data, and on the inputs of foreign data: see `Ensemble.evaluate`."""
    return ensemble.evaluate(data, ood)


def load(
    folder: str | Path,
    model: ModelSource,
    *,
    output: str | Callable[[Any], Tensor] | None = None,
    mapped: bool = False,
) -> Ensemble:
    """Bring back an ensemble from the folder of `Ensemble.save` or of `fit(checkpoint=...)`.

    The ensemble owns its weights: whatever becomes of the folder, its predictions stay.

    Args:
        folder: The run folder.
        model: The network or factory that was trained; only its code is used, which has to compute what it did then.
        output: As for `Task`, needed again if it was a function.
        mapped: Leave the weights in the file and bring in what is used, for ensembles that do not fit into memory. The
            file must then stay as it is: if somebody overwrites it, predictions change without a word, and if somebody
            cuts it short, the process dies.
    """
    found = restore(checkpoints.read(folder, mapped).kept, model, output, str(folder))
    return replace(found, recording=recording.find(folder))


def restore(
    found: Checkpoint, model: ModelSource, output: str | Callable[[Any], Tensor] | None, folder: str
) -> Ensemble:
    """Make an ensemble of what a checkpoint holds, checking it against the network leaf by leaf."""
    run = found.run
    with understood(f"run.json in {folder}", "does not describe a run of this library"):
        saved, probe = run["task"], Probe.from_json(run["network"])
        task = Task(
            model,
            settings.parse(saved["likelihood"], Likelihood),
            None if saved["prior"] is None else settings.parse(saved["prior"], Prior),
            temperature=saved["temperature"],
            output=output if output is not None else saved["output"],
        ).rebind(saved, None if probe is None else probe.rows)
        method = settings.parse(run["method"], Method, (Schedule, Space, Kernel, Linear, OfTorch))
        executor = settings.parse(run["executor"], Executor)
        seed, execution = int(run["seed"]), str(run["execution"])
        Standing.from_json(run.get("progress"))
        versions = {"bayesemble": (run["library"], __version__), "torch": (run["torch"], torch.__version__)}
    _check_weights(found.state.members, folder)
    _check_leaves(task, found.state.members, folder)
    if other := [f"{name} {there}, here is {here}" for name, (there, here) in versions.items() if there != here]:
        warnings.warn(f"the run was made with {' and '.join(other)}: bits may differ", stacklevel=3)
    if probe is not None:
        probe.check(task, found.kept.state.members, folder)
    return Ensemble(task, method, executor.arrange(found.state), executor, seed, found.history, execution)


def _check_weights(members: Members, folder: str) -> None:
    """Refuse members without a whole set of weights, and leaves that are not one for each member, or not finite."""
    weights = members.weights
    possible = weights.dim() == 1 and weights.is_floating_point() and bool((weights >= 0).all())
    if not (possible and abs(float(weights.double().sum()) - 1) < _ROUNDING):
        raise CheckpointError(f"the weights of the members in {folder} are not non-negative numbers with the sum 1")
    for name, leaf in (members.params | members.buffers).items():
        if name not in members.shared and (leaf.dim() == 0 or len(leaf) != len(weights)):
            raise CheckpointError(f"{name!r} in {folder} is {tuple(leaf.shape)}, but there are {len(weights)} members")
        # Infinite numbers in a buffer may be meant, as in the mask of an attention.
        if not (leaf.isfinite() if name in members.params else ~leaf.isnan()).all():
            raise CheckpointError(f"{name!r} in {folder} is not finite: training had diverged")


def _check_leaves(task: BoundTask, members: Members, folder: str) -> None:
    """Compare names, shapes and number types with the network; name the first leaf that differs."""
    expected = dict(zip(("parameter", "buffer"), task.new_member(seed=0), strict=True))
    found = {"parameter": members.params, "buffer": members.buffers}
    for kind, leaves in expected.items():
        for name in [*leaves, *(extra for extra in found[kind] if extra not in leaves)]:
            here, there = found[kind].get(name), leaves.get(name)
            if here is None or there is None:
                lacking = "the saved run" if here is None else "the network"
                raise CheckpointError(f"{kind} {name!r} is not in {lacking}; is {folder} a run of this network?")
            shape = here.shape if name in members.shared else here.shape[1:]
            if shape != there.shape or here.dtype != there.dtype:
                raise CheckpointError(
                    f"{kind} {name!r} is {tuple(shape)} {here.dtype} in {folder}, "
                    f"but the network has {tuple(there.shape)} {there.dtype}"
                )


def _split_rows(inputs: Inputs, batch_size: int | None, axis: int) -> list[Inputs]:
    """Views of `batch_size` rows each, of nested inputs; None is all rows."""
    if batch_size is None:
        return [inputs]
    if isinstance(inputs, Tensor):
        return list(inputs.split(batch_size, dim=axis))
    leaves, structure = pytree.tree_flatten(inputs)
    pieces = zip(*(leaf.split(batch_size, dim=axis) for leaf in leaves), strict=True)
    return [pytree.tree_unflatten(piece, structure) for piece in pieces]
