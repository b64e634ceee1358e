"""The fitted thing: it predicts, is evaluated, is saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.arrays import check_member_count, check_rows
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves, in_parts, tensors_of
from bayesemble.execute.choose import AS_ASKED_FOR, wished
from bayesemble.execute.executor import Executor
from bayesemble.execute.rule import FEWEST_ROWS
from bayesemble.methods import Method
from bayesemble.methods.deep_ensemble import DeepEnsemble
from bayesemble.methods.moments import prior_of
from bayesemble.metrics.summary import Summary
from bayesemble.predictive import Predictive
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.priors import Prior
from bayesemble.task.task import BoundTask
from bayesemble.training.afterwards.arviz_tree import to_arviz
from bayesemble.training.afterwards.calibration import Calibration, fit_calibration
from bayesemble.training.afterwards.concat import concat
from bayesemble.training.batches import PerMember, source_for
from bayesemble.training.draws import DrawnNetworks
from bayesemble.training.incoming.loaded_rows import batches_of_inputs, is_loaded, joined, rows_at_hand, split_rows
from bayesemble.training.incoming.loaders import LoaderSource, check_batch_size
from bayesemble.training.incoming.modules import side_by_side
from bayesemble.training.incoming.parts import Part
from bayesemble.training.outgoing.botorch_model import botorch_model
from bayesemble.training.outgoing.description import describe, facts_of
from bayesemble.training.outgoing.export import Draws, export
from bayesemble.training.outgoing.module import EnsembleModule, module_of
from bayesemble.training.outgoing.networks import modules_of
from bayesemble.training.predictor import LastPredictor, Predictor
from bayesemble.training.pretrained.saving import write_pretrained
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.checkpoint import Checkpoint, Row
from bayesemble.training.run_folders.recording import Recording
from bayesemble.training.run_folders.run_lock import locked


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
    calibration: Calibration | None = None
    """What held-out rows said of its predictions, which follow it: see `calibrate`."""
    part: Part | None = None
    """Which members of which method these are, if `fit(members=...)` trained them alone."""

    @classmethod
    def of_networks(cls, task: BoundTask, networks: Members, executor: Executor, seed: int = 0) -> Ensemble:
        """Networks that come from anywhere as plain members: an ensemble that predicts like any other."""
        return cls(task, DeepEnsemble(num_members=networks.num_members), State(networks), executor, seed)

    @classmethod
    def from_modules(
        cls,
        modules: Sequence[nn.Module],
        likelihood: Likelihood,
        *,
        data: Any = None,
        prior: Prior | None = None,
        output: str | Callable[[Any], Tensor] | None = None,
        targets: str | None = None,
        unpack: Callable[[Any], Any] | None = None,
        executor: str | Executor = "loop",
    ) -> Ensemble:
        """An ensemble of networks that were trained elsewhere; it predicts, is scored, saved and weighed like others.

        Args:
            modules: Networks of one structure, each with its own weights and buffers, which are copied.
            likelihood: How their outputs are read.
            data: Their training data, as for `fit`. Where it is given, every network is run on a few rows to see that
                it computes what the code of the first does with its weights, and what needs the number of rows works.
            prior: What was believed of the weights, which needs `data`.
            output: As for `Task`, like `targets` and `unpack`.
            executor: How they are run: "loop", "vmap" or an object such as `Vmap(chunk=4)`.
        """
        found = wished(executor)
        if found is None:
            raise SettingError(f"executor is 'loop', 'vmap' or an object such as be.Vmap(chunk=4), got {executor!r}")
        task, members = side_by_side(modules, likelihood, prior, output, targets, unpack, data)
        return cls.of_networks(task, found.arrange(State(members)).members, found)

    @staticmethod
    def concat(parts: Sequence[Ensemble]) -> Ensemble:
        """Members that `fit(..., members=range(a, b))` trained apart, as one ensemble: that of training them together.

        Parts come in any order; task, method and seed must be the same, and no number may be there twice or lack.
        """
        return concat(parts)

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
            inputs: Arrays or tensors, rows first; a tuple or mapping of them; `PerMember(inputs)`; a `DataLoader`, data
                set, stream or iterator of such batches, whose targets, if it has any, are left aside.
            num_draws: How many networks to draw; None lets the method say, which may need none.
            batch_size: Rows at a time; None takes as many as suit the network.
            keep_members: If False, forget the members' own outputs batch by batch: for very large data.
            seed: Seed of the draws.
        """
        require(batch_size is None or batch_size >= 1, f"batch_size is at least one row, got {batch_size}")
        if is_loaded(inputs):
            options: dict[str, Any] = {"batch_size": batch_size, "keep_members": keep_members, "seed": seed}
            return joined(list(self.predict_iter(inputs, num_draws=num_draws, **options)))
        per_member = isinstance(inputs, PerMember)
        rows = inputs.inputs if isinstance(inputs, PerMember) else inputs
        tensors = rows_at_hand(rows, self.task)
        check_rows(tensors, None, per_member)
        predict = self.predictor(num_draws, seed)
        if per_member and not predict.networks.sampled:
            check_member_count(tensors, next(iter(predict.networks)).num_members)
        axis = 1 if per_member else 0
        num_rows = tensors_of(tensors)[0].shape[axis]
        if batch_size is None and num_rows > FEWEST_ROWS:
            batch_size = predict.rows_at_a_time
        parts = split_rows(tensors, batch_size, axis)
        found = (
            predict(part, per_member=per_member, number=number, reduced=not keep_members)
            for number, part in enumerate(parts)
        )
        whole = next(found) if len(parts) == 1 else Predictive.gather(found, num_rows)
        self._last_predictor.forget_if_large()
        return whole

    def predict_iter(
        self,
        inputs: Any,
        *,
        num_draws: int | None = None,
        batch_size: int | None = None,
        keep_members: bool = True,
        seed: int = 0,
    ) -> Iterator[Predictive]:
        """Predict rows as they come, a prediction for each batch: see `predict`; a stream need not end."""
        predict = self.predictor(num_draws, seed)
        for number, part in enumerate(batches_of_inputs(inputs, self.task, batch_size, predict.rows_at_a_time)):
            yield predict(part, number=number, reduced=not keep_members)
        self._last_predictor.forget_if_large()

    def predictions(
        self, data: Any, *, batch_size: int | None = None, seed: int = 0
    ) -> Iterator[tuple[Predictive, Tensor]]:
        """Predict data `(x, y)`, a `Dataset`, a `DataLoader` or a stream batch by batch, each with its targets."""
        for predictive, targets, weights in self._predictions(data, batch_size, seed, weights=False):
            if weights is not None:
                raise DataError("every row counts alike here; leave the weights out: (x, y)")
            yield predictive, targets

    def _predictions(
        self, data: Any, batch_size: int | None, seed: int, weights: bool
    ) -> Iterator[tuple[Predictive, Tensor, Tensor | None]]:
        """Predictions of each batch, its targets, and the weights of its rows, if they have any."""
        require(batch_size is None or batch_size >= 1, f"batch_size is at least one row, got {batch_size}")
        predict = self.predictor(seed=seed)
        size = predict.rows_at_a_time if batch_size is None else batch_size
        source = source_for(self.task, data, size, shuffle=False, weights=weights)
        if isinstance(source, LoaderSource):
            check_batch_size(source.loader, batch_size)
        source = source.checked(self.task, training=False)
        for number, batch in enumerate(source.in_order(size)):
            if batch.inputs_per_member:
                raise DataError("the members are averaged, so they must share the data; use predict for PerMember data")
            yield predict(batch.inputs, number=number), *in_parts(batch.targets.cpu())
        self._last_predictor.forget_if_large()

    def predictor(self, num_draws: int | None = None, seed: int = 0) -> Predictor:
        """Predicts batch after batch of rows with the same networks: see `LastPredictor`."""
        found = self._last_predictor.find(self.state, (num_draws, seed))
        if found is None:
            networks, threads = self.networks(num_draws, seed), self.execution in ("", AS_ASKED_FOR)
            found = Predictor(self.task, networks, self.executor, threads, self.calibration)
            self._last_predictor.keep(self.state, (num_draws, seed), found)
        return found

    @cached_property
    def _last_predictor(self) -> LastPredictor:
        return LastPredictor()

    def evaluate(
        self, data: Any, ood: Any = None, *, batch_size: int | None = None, weights: bool = False
    ) -> dict[str, float]:
        """Scores on data `(x, y)`, a `Dataset`, a `DataLoader` or a stream; `ood` are inputs of foreign data.

        Of `(x, y, w)` each row counts by its weight, as if it were there so many times; `weights=True` says that the
        third that a data set or a loader gives is a weight. How well doubt tells foreign data apart has no weights.
        """
        summary = Summary(ood=ood is not None)
        for predictive, targets, own in self._predictions(data, batch_size, seed=0, weights=weights):
            summary.update(predictive, targets, own)
        if ood is not None:
            summary.update_ood(self.predict(ood, batch_size=batch_size, keep_members=False))
        return summary.compute()

    def calibrate(
        self, data: Any, *, level: float | None = None, risk: float | None = None, **options: Any
    ) -> Ensemble:
        """The same ensemble with predictions that held-out rows have corrected; an earlier calibration is replaced.

        Calibrate last: `keep` and `reweight` leave the calibration as it is, though it was found for all members.

        Args:
            data: Rows `(x, y)` that were not trained on, as for `evaluate`; those of training make it too sure.
            level: How often sets of classes, or intervals of numbers, shall hold the target.
            risk: The largest acceptable error rate among answered rows, of classes.
            options: `confidence`, `share` and `seed` of `bayesemble.training.afterwards.calibration.fit_calibration`.
        """
        own = replace(self, calibration=None)
        return replace(own, calibration=fit_calibration(own.predictions(data), level=level, risk=risk, **options))

    def as_prior(self, covariance: str = "diag", least: float = 0.0) -> PosteriorPrior:
        """What this ensemble has learned of the weights, as the prior of a task with further data: see `prior_of`.

        Args:
            covariance: "diag" has a standard deviation for each weight, "full" the covariance of all weights, which
                `Laplace(structure="full", select="all")` knows.
            least: A standard deviation that none is below, for weights without any spread in this ensemble.
        """
        own = self.weighed()
        return prior_of(own.method, own.state, own.draw, covariance, least)

    def reweight(self, weights: Any) -> Ensemble:
        """The same members under other weights, normalised to sum to one: see `bayesemble.weighting`."""
        members = self.state.members
        return replace(self, state=replace(self.state, members=members.reweight(weights)))

    def keep(self, indices: Sequence[int]) -> Ensemble:
        """An ensemble of some of the members, equally weighted. It predicts, but cannot be trained further."""
        kept = self.state.take(torch.as_tensor(list(indices)), self.method.drawn_slots)
        return replace(self, method=replace(self.method, num_members=len(indices)), state=kept, part=None)

    def save(self, folder: str | Path, *, backbone: bool = False) -> None:
        """Write the ensemble into a folder; `load` brings it back.

        Of an adapted network (`be.adapt`, peft) only what was trained is written, unless the backbone is asked for too:
        `load` then needs the network with the same frozen weights, which it checks by their sha256.

        What `save` wrote there before is replaced; a folder in which `fit` keeps a run is refused.
        """
        described = self.describe() | ({"backbone": None} if backbone else {})
        with locked(folder):
            checkpoints.check_replaceable(folder)
            found = Checkpoint(described, self.state, self.history, centers=self.prior_centers)
            checkpoints.write(folder, found, keep=1)
            if self.recording is not None:
                self.recording.copy_to(Path(folder))

    @property
    def prior_centers(self) -> Leaves:
        """The weights that the task's prior stands around; none of a prior around zero."""
        return {} if self.task.prior is None else self.task.prior.centers

    def save_pretrained(
        self, folder: str | Path, data: Any = None, ood: Any = None, *, num: int | None = None, limits: str = ""
    ) -> None:
        """Write low-rank adapters as the package peft reads them, a folder for each member, and a page about them.

        Args:
            folder: Where `member-000`, ..., `ensemble.json` and `README.md` are written.
            data: `(x, y)` or other data that the scores on the page are measured on; without it the page has none.
            ood: Inputs of foreign data, to measure how well doubt tells them apart.
            num: How many networks a method that draws them gives; None is as many as suit the method.
            limits: A sentence on what the ensemble is not for.
        """
        write_pretrained(self, Path(folder), data, ood, num, limits)

    def to_arviz(self, data: Any = None, *, num: int | None = None, seed: int = 0) -> Any:
        """Weights of the networks as a tree of ArviZ; with data `(x, y)`, each one's log likelihood of every row too.

        The chains of a sampler (HMC, cyclical SG-MCMC) are chains. All other networks, members or `num` that are drawn
        by their weights, are draws of one chain: nothing links a member to the one before.
        """
        return to_arviz(self, data, num, seed)

    def module(
        self,
        outputs: Sequence[str] | None = None,
        *,
        num_draws: int | None = None,
        seed: int = 0,
        level: float | None = None,
    ) -> EnsembleModule:
        """A plain `nn.Module` of all networks, with outputs by name, equal to `predict` and differentiable.

        Its `forward` takes what the network takes and gives a dictionary. Networks are copies; those that weigh nothing
        are left out. Networks that are drawn are drawn once, here. Units that Monte Carlo dropout drops are those of
        `predict` for a single row, the same for all rows.

        Args:
            outputs: Names of what it gives, see `bayesemble.training.outgoing.readings`; None gives probs, entropy,
                aleatoric and epistemic of classes, and mean, std, low, high, aleatoric and epistemic of numbers; of a
                calibrated ensemble also set and abstain, if these were calibrated.
            num_draws: As for `predict`. Where that needs no draws, as Laplace under `Gaussian`, a number is needed.
            seed: Seed of the draws.
            level: How often the interval from low to high holds the target; None is the level of the calibration, or
                0.9 without one.
        """
        return module_of(self, outputs, num_draws, seed, level)

    def modules(self, *, num_draws: int | None = None, seed: int = 0) -> list[nn.Module]:
        """The networks that `predict` averages over, each an ordinary network of its own.

        They stand in the order of `module().weights`; those that weigh nothing are left out. What is done with their
        outputs, the likelihood and a calibration, is not in them.
        """
        return modules_of(self, num_draws, seed)

    def export(
        self,
        path: str | Path,
        outputs: Sequence[str] | None = None,
        *,
        num_draws: int | None = None,
        seed: int = 0,
        level: float | None = None,
        inputs: Any = None,
    ) -> list[str]:
        """Write `module(...)` as a file, `model.pt2` or `model.onnx`, and give the names of its outputs.

        It takes any number of rows. Before it gets its name, it is run on 1, 2 and 7 rows and compared with `predict`:
        those of `inputs`, or (None) rows like those of training.
        """
        return export(self, Path(path), outputs, Draws(num_draws, seed), level, inputs)

    def to_botorch(self, *, num_draws: int | None = None, seed: int = 0) -> Any:
        """A model of BoTorch, whose posterior is over the networks' means; needs the extra `botorch`."""
        return botorch_model(self, num_draws, seed)

    def describe(self) -> dict[str, Any]:
        """Task, method, settings, seeds, versions and what the network computes, as JSON."""
        return describe(self)

    def __repr__(self) -> str:
        name = type(self.task.module).__name__
        return f"Ensemble({self.num_members} x {name}, {type(self.method).__name__}, {self.executor})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        return facts_of(self)


def evaluate(ensemble: Ensemble, data: Any, ood: Any = None, *, weights: bool = False) -> dict[str, float]:
    """Scores of an ensemble on data, and on the inputs of foreign data: see `Ensemble.evaluate`."""
    return ensemble.evaluate(data, ood, weights=weights)
