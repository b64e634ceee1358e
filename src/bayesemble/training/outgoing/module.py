"""An ensemble as one plain module: its networks side by side, and what is read off their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.core.types import Inputs, Leaves, map_tensors
from bayesemble.methods import Method
from bayesemble.predictive import Predictive
from bayesemble.task.networks import pick_output
from bayesemble.task.task import BoundTask
from bayesemble.training.outgoing.fixed_dropout import begin, with_fixed_dropout
from bayesemble.training.outgoing.networks import as_run, that_weigh
from bayesemble.training.outgoing.readings import Rules, read


class EnsembleModule(nn.Module):
    """The networks of an ensemble, run one after another, and named outputs of the mixture that they make.

    What it gives is differentiable in its inputs, and in its parameters. It stands in evaluation to begin with.
    """

    weights: Tensor
    """What each network weighs, `(member,)`; they sum to one."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        weights: Tensor,
        task: BoundTask,
        leaves: Leaves,
        names: Sequence[str] | None,
        rules: Rules,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(networks)
        self.register_buffer("weights", weights.clone())
        self.likelihood = nn.Module()
        for name, leaf in leaves.items():
            self.likelihood.register_buffer(name, leaf.detach().clone())
        self.outputs = None if names is None else tuple(names)
        self.rules = rules
        self._likelihood, self._calibration, self._pick = task.likelihood, rules.calibration, task.output
        # Whether these are so must not be asked of the tensor while a file is written.
        self._known = {"_all_weigh": True, "_several_weigh": bool(1 - weights.square().sum() > 1e-12)}
        self.train(False)

    def forward(self, *inputs: Any, **named_inputs: Any) -> dict[str, Tensor]:
        """What is read off the networks' outputs, by name; inputs are those of the network."""
        outputs = self.member_outputs(*inputs, **named_inputs)
        return read(self.predictive(outputs), outputs, self.outputs, self.rules)

    def member_outputs(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Outputs of each network, `(member, row, ...)`."""
        found = []
        for network in self.members:
            begin(network)
            found.append(pick_output(network(*inputs, **named_inputs), self._pick))
        outputs = torch.stack(found)
        # As a prediction does: probabilities need more digits than half precision has.
        return outputs if outputs.dtype.itemsize >= 4 else outputs.float()

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture that outputs `(member, row, ...)` of the networks make."""
        leaves = {name: leaf.to(outputs.dtype) for name, leaf in self.likelihood.named_buffers()}
        found = self._known_of(self._likelihood.predictive(outputs, leaves, self.weights))
        return found if self._calibration is None else self._known_of(self._calibration.apply(found))

    def _known_of(self, predictive: Predictive) -> Predictive:
        vars(predictive).update(self._known)
        return predictive


def module_of(
    ensemble: Any, outputs: Sequence[str] | None, num_draws: int | None, seed: int, level: float | None
) -> EnsembleModule:
    """The ensemble as a module; see `Ensemble.module`."""
    rules = Rules.of(level, ensemble.calibration)
    require(not isinstance(outputs, str), f"outputs is a list of names, such as [{outputs!r}], got {outputs!r}")
    require(outputs is None or len(outputs) > 0, "outputs names what the module shall give; it is empty")
    task, networks = ensemble.task, ensemble.networks(num_draws, seed)
    if num_draws is None and networks.sampled and _in_closed_form(networks.method, networks.state, task):
        raise SettingError(
            f"{type(ensemble.method).__name__} predicts in closed form here, which a module of networks cannot; say "
            f"how many to draw, such as num_draws={ensemble.method.draws}: it then equals predict(x, num_draws=...)"
        )
    members = that_weigh(networks.joined())
    modules = as_run(ensemble, members)
    seeds = networks.dropout_seeds(0, 0, members.num_members)
    if seeds is not None:
        with_fixed_dropout(modules, _on(task.example, members.weights.device), seeds)
    leaves = task.likelihood_leaves(members.params)
    found = EnsembleModule(modules, members.weights, task, leaves, outputs, rules)
    if task.output_shape is not None:  # refuses names that mean nothing, before any rows come
        few = torch.zeros(members.num_members, 1, *task.output_shape, dtype=task.dtype, device=members.weights.device)
        read(found.predictive(few), few, outputs, rules)
    return found


def _in_closed_form(method: Method, state: Any, task: BoundTask) -> bool:
    if not task.likelihood.reads_normals or type(method).normal_outputs is Method.normal_outputs:
        return False
    return task.example is None or method.normal_outputs(state, task, task.example) is not None


def _on(inputs: Inputs | None, device: torch.device) -> Inputs | None:
    return None if inputs is None else map_tensors(lambda leaf: leaf.to(device), inputs)
