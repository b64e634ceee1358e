"""Rows into predictions, batch by batch, with the same networks for all of them, and for those of the next call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from bayesemble.core.errors import BayesembleError, DataError, SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Inputs, Leaves, map_tensors, tensors_of
from bayesemble.execute.choose import for_draws
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.programs.outputs import RecordedOutputs
from bayesemble.execute.programs.predictions import RecordedPredictions
from bayesemble.execute.ranks.predictions import of_everyone
from bayesemble.execute.ranks.team import ALONE
from bayesemble.execute.rule import FEWEST_ROWS, PredictionLoad, prediction_load
from bayesemble.methods import Method
from bayesemble.predictive import Predictive
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.task import BoundTask
from bayesemble.training.afterwards.calibration import Calibration
from bayesemble.training.draws import DrawnNetworks
from bayesemble.training.pretrained.frozen_features import FrozenInPrediction

_ROWS_OF_DRAWS = 1024
_MOST_BYTES_KEPT = 1 << 26
_AT_LEAST_SINGLE = (torch.float32, torch.float64)
_changes = attrgetter("_version")


@dataclass(frozen=True, eq=False)
class Predictor:
    """Networks, the task they are of, and how to run them."""

    task: BoundTask
    networks: DrawnNetworks
    executor: Executor
    threads_asked_for: bool = True
    """Whether the executor's number of threads is to be kept to. Otherwise it is for steps of training, and many rows
    get as many as torch has."""
    calibration: Calibration | None = None
    """What every prediction is corrected by."""
    _for_draws: dict[Any, Executor] = field(default_factory=dict, init=False, repr=False)
    """How networks that are drawn are run, by the shapes of a row."""
    _recorded: dict[Executor, RecordedOutputs] = field(default_factory=dict, init=False, repr=False)

    def __call__(
        self, inputs: Inputs, *, per_member: bool = False, number: int = 0, reduced: bool = False
    ) -> Predictive:
        """Predict rows in one go, `(row, ...)` or `(member, row, ...)`; `number` counts the batches of rows."""
        if per_member and self.networks.sampled:
            raise DataError(
                "networks that are drawn share their data; for data of one member use ensemble.keep([i]).predict(x)"
            )
        inputs = self._moved(inputs)
        try:
            with thread_count(self._executor_of(inputs, per_member)):
                found = self._in_closed_form(inputs)
                if found is None and self._is_alike and not per_member:
                    predict = partial(self._by_networks, inputs, per_member, number)
                    return self._predictions(inputs, reduced, _running_network(self.task), predict)
                found = self._by_networks(inputs, per_member, number) if found is None else found
                return found.reduce() if reduced else found
        except BayesembleError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes, hint = [tuple(leaf.shape) for leaf in tensors_of(inputs)], ""
            if isinstance(error, TypeError) and not isinstance(inputs, Tensor):
                hint = "; if some of these are no inputs, say by Task(..., unpack=...) which are, or pass inputs alone"
            raise DataError(f"the network cannot run on inputs of shape {shapes}: {error}{hint}") from error

    @cached_property
    def rows_at_a_time(self) -> int:
        """How many rows to predict in one go, unless told otherwise."""
        together = self.networks.team is not ALONE  # with processes that would come to another number
        if together or self._load is None or not self.networks.at_hand or _mixes_rows(self.task.module):
            return _ROWS_OF_DRAWS
        found = self._load.rows_at_a_time
        return min(found, _ROWS_OF_DRAWS) if self.networks.sampled else found

    @cached_property
    def _is_alike(self) -> bool:
        """Whether batches of rows are predicted by the same operations on the same networks."""
        method = self.networks.method
        quicker = type(method).outputs_at_once is not Method.outputs_at_once
        alone = self.networks.team is ALONE  # others cannot be told anything by what was recorded
        return alone and self.networks.at_hand and not method.keeps_dropout and not (self.networks.sampled and quicker)

    @cached_property
    def _predictions(self) -> RecordedPredictions:
        networks = self.networks  # what is kept here must not hold the predictor, which would outlive its last user

        def leaves() -> list[Tensor]:
            return [leaf for part in networks for leaf in (*part.params.values(), *part.buffers.values())]

        return RecordedPredictions(leaves, self.task.likelihood)

    @cached_property
    def _load(self) -> PredictionLoad | None:
        """What a row asks of the networks, where that is known and rows have nothing to do with those beside them."""
        # What dropout drops depends on the batch a row is in, which must not be another one when an ensemble is loaded.
        if self.task.example is None or self.networks.method.keeps_dropout:
            return None
        few = self._moved(self.task.example)
        with thread_count(self.executor):
            if self._in_closed_form(few) is not None:
                return None
            members = next(iter(self.networks))
            return prediction_load(self.executor, self.task, members, few)

    def _executor_of(self, inputs: Inputs, per_member: bool) -> Executor:
        """The executor, with the number of threads that suits these rows."""
        rows = tensors_of(inputs)[0].shape[1 if per_member else 0]
        if self.threads_asked_for or self.executor.threads is None or rows <= FEWEST_ROWS or self._load is None:
            return self.executor
        return replace(self.executor, threads=None) if self._load.needs_threads(rows) else self.executor  # type: ignore[type-var]

    def _in_closed_form(self, inputs: Inputs) -> Predictive | None:
        """The prediction without networks being drawn, if none were asked for, the method and the likelihood can."""
        networks = self.networks
        if networks.num is not None or not networks.sampled or not self.task.likelihood.reads_normals:
            return None
        found = networks.method.normal_outputs(networks.state, self.task, inputs)
        if found is None:
            return None
        means, variances = (_at_least_single(part.cpu()) for part in found)
        self._check_axes(means, inputs, per_member=False)
        (means, variances), members = self._of_everyone((means, variances), networks.state.members, inputs)
        return self._calibrated(self.task.predictive_of_normals(means, variances, members))

    def _of_everyone(
        self, outputs: tuple[Tensor, ...], members: Members, inputs: Inputs
    ) -> tuple[tuple[Tensor, ...], Members]:
        """With those of networks on other processes, where these are not all."""
        num, team = self.networks.state.members.num_members, self.networks.team
        return of_everyone(outputs, _without_network(members), inputs, num, team)

    def _by_networks(self, inputs: Inputs, per_member: bool, number: int) -> Predictive:
        if self.networks.sampled and self.networks.team is not ALONE:
            raise SettingError(
                f"{type(self.networks.method).__name__} draws networks from all members, but these stayed on their "
                "ranks: train with Ranks(gather=True), or with gather=False for predictions of the members here"
            )
        outputs: list[Tensor] = []
        parts: list[Members] = []
        begin, run = 0, self._runner(inputs, per_member, number)
        for members in self.networks:
            numbers = range(begin, begin + members.num_members)
            found = self._at_once(members, numbers, inputs)
            outputs.append(_at_least_single((run(members, begin) if found is None else found).cpu()))
            parts.append(_without_network(members))
            begin += members.num_members
        whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        self._check_axes(whole, inputs, per_member)
        members = parts[0] if len(parts) == 1 else Members.concat(parts)
        (whole,), members = self._of_everyone((whole,), members, inputs)
        return self._calibrated(self.task.predictive(whole, members))

    def _check_axes(self, outputs: Tensor, inputs: Inputs, per_member: bool) -> None:
        """Refuse inputs with an axis too many or too few, which many a network runs on all the same."""
        shapes, known = [tuple(leaf.shape) for leaf in tensors_of(inputs)], self.task.output_shape
        rows, own = shapes[0][1 if per_member else 0], tuple(outputs.shape[1:])
        if own[:1] == (rows,) and (known is None or len(own) == len(known) + 1):
            return
        given = f"outputs {own}" + ("" if known is None else f", in training {known} for each row")
        raise DataError(
            f"inputs of shape {shapes} are not rows as in training: for {rows} rows there are {given}; the first axis "
            "of inputs is that of the rows, so that a single row is x[None]"
        )

    def _calibrated(self, predictive: Predictive) -> Predictive:
        return predictive if self.calibration is None else self.calibration.apply(predictive)

    def _runner(self, inputs: Inputs, per_member: bool, number: int) -> Callable[[Members, int], Tensor]:
        """A function of some of the networks, and the number of the first, that gives their outputs."""
        recorded: dict[Executor, Callable[[Members], Tensor]] = {}

        def run(members: Members, begin: int) -> Tensor:
            executor = self._best_executor(members, inputs)
            random = self.networks.dropout_seeds(number, begin, members.num_members)
            if per_member or random is not None:
                return executor.outputs(self._member_outputs, members, inputs, per_member, random)
            if executor not in recorded:
                recorded[executor] = self._outputs_by(executor).of(inputs)
            return recorded[executor](members)

        return run

    def _outputs_by(self, executor: Executor) -> RecordedOutputs:
        if executor not in self._recorded:
            network = partial(_running_network, self.task)
            frozen = None if self._frozen is None else self._frozen.of
            self._recorded[executor] = RecordedOutputs(executor, self._member_outputs, network, frozen)
        return self._recorded[executor]

    @cached_property
    def _frozen(self) -> FrozenInPrediction | None:
        """Frozen parts that may run once for several networks that do no more than run."""
        method, several = self.networks.method, self.networks.sampled or self.networks.state.members.num_members > 1
        plain = type(method).member_outputs is Method.member_outputs and not method.keeps_dropout
        return FrozenInPrediction(self.task) if several and plain else None

    def _at_once(self, members: Members, numbers: range, inputs: Inputs) -> Tensor | None:
        """Outputs of drawn networks, if the method has a quicker way than to run each."""
        if not self.networks.sampled:
            return None
        return self.networks.method.outputs_at_once(self.networks.state, self.task, members, numbers, inputs)

    def _best_executor(self, members: Members, inputs: Inputs) -> Executor:
        """For networks that are drawn, tried on the first rows of their kind."""
        if not self.networks.sampled:
            return self.executor
        leaves, structure = pytree.tree_flatten(inputs)
        kind = structure, *[(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        if kind not in self._for_draws:
            self._for_draws[kind] = for_draws(self.executor, self._member_outputs, members, inputs)
        return self._for_draws[kind]

    def _moved(self, inputs: Inputs) -> Inputs:
        device = self.networks.state.members.weights.device
        return map_tensors(lambda leaf: leaf if leaf.device == device else leaf.to(device), inputs)

    @property
    def _member_outputs(self) -> Callable[[Leaves, Leaves, Inputs, Tensor], Tensor]:
        return partial(_member_outputs, self.networks, self.task)


def _running_network(task: BoundTask) -> nn.Module:
    """The network of this thread, as it is run."""
    return task.module.train(False) if task.module.training else task.module


def _member_outputs(
    networks: DrawnNetworks, task: BoundTask, params: Leaves, buffers: Leaves, inputs: Inputs, _: Tensor
) -> Tensor:
    return networks.method.member_outputs(networks.state, task, params, buffers, inputs)


class _Kept(NamedTuple):
    request: Any
    leaves: list[Tensor]
    changes: list[int]
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
        leaves = _leaves_of(state)
        same = len(leaves) == len(kept.leaves) and all(map(is_, leaves, kept.leaves))
        return kept.predictor if same and list(map(_changes, leaves)) == kept.changes else None

    def keep(self, state: State, request: Any, predictor: Predictor) -> None:
        """Keep it in place of the one before, if changes of the state can be seen."""
        leaves = _leaves_of(state)
        seen = not any(leaf.is_inference() for leaf in leaves)
        self._kept = _Kept(request, leaves, list(map(_changes, leaves)), predictor) if seen else None

    def forget_if_large(self) -> None:
        """Give back the memory of large networks, which are drawn again when they are needed again."""
        kept = self._kept
        if kept is not None and kept.predictor.networks.bytes_kept > _MOST_BYTES_KEPT:
            self._kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LastPredictor, ()


def _leaves_of(state: State) -> list[Tensor]:
    members = state.members
    leaves = [members.weights, *members.params.values(), *members.buffers.values()]
    for slot in state.slots.values():
        leaves += slot.values()
    return leaves


def _mixes_rows(network: nn.Module) -> bool:
    """Whether the output of a row depends on those beside it, as far as that can be seen: batch norm of the batch."""
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in network.modules())


def _without_network(members: Members) -> Members:
    """The weights, and the leaves of the likelihood, on the CPU: what a prediction needs beside the outputs."""
    own = {name: leaf.cpu() for name, leaf in members.params.items() if name.startswith(OF_LIKELIHOOD)}
    return Members({name: _at_least_single(leaf) for name, leaf in own.items()}, {}, members.weights.cpu().clone())


def _at_least_single(values: Tensor) -> Tensor:
    """Probabilities and scores need more digits than half precision has, whatever the network computes in."""
    return values if values.dtype in _AT_LEAST_SINGLE else values.to(torch.promote_types(values.dtype, torch.float32))
