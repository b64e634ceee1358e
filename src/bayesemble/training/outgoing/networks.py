"""The networks of an ensemble as ordinary modules, each with the leaves of a member in place of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Inputs, Leaves
from bayesemble.methods import Method
from bayesemble.task.networks import Alternatives
from bayesemble.task.running import OF_METHOD, network_leaves
from bayesemble.task.task import BoundTask


class Tangent(nn.Module):
    """A draw that its method runs in another way than by the forward pass of a network, such as made linear."""

    def __init__(self, network: nn.Module, method: Method, state: State, task: BoundTask, kept: Leaves) -> None:
        super().__init__()
        self.network = network
        self._run, self._names = (method, state, task), list(kept)
        for number, leaf in enumerate(kept.values()):
            self.register_buffer(f"kept_{number}", leaf.clone())

    def forward(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Outputs `(row, ...)`."""
        method, state, task = self._run
        kept = {name: self.get_buffer(f"kept_{number}") for number, name in enumerate(self._names)}
        params: Leaves = dict(self.network.named_parameters())
        buffers = dict(self.network.named_buffers()) | kept
        return method.member_outputs(state, task, params, buffers, as_one(inputs, named_inputs))


def as_one(inputs: tuple[Any, ...], named_inputs: dict[str, Any]) -> Inputs:
    """Arguments of a call as the inputs that a task knows."""
    return named_inputs or (inputs[0] if len(inputs) == 1 else inputs)


def as_call(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as the arguments of a call."""
    if isinstance(inputs, dict):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def networks_with(task: BoundTask, members: Members, *, share: bool) -> list[nn.Module]:
    """A copy of the network for each member, in evaluation; with `share`, leaves that all have in common are one.

    What members of a likelihood or a method have beside the leaves of the network is left out.
    """
    template = task.module
    trained = {name for name, parameter in template.named_parameters() if parameter.requires_grad}
    common: dict[str, Tensor] = {}
    found = []
    for params, buffers in members.split():
        leaves = network_leaves(params | buffers)
        placed = {}
        for name, old in (*template.named_parameters(), *template.named_buffers()):
            new = common.get(name)
            if new is None:
                new = leaves[name].detach().clone()
                new = nn.Parameter(new, requires_grad=name in trained) if isinstance(old, nn.Parameter) else new
                if share and name in members.shared:
                    common[name] = new
            placed[id(old)] = new
        network = copy.deepcopy(template, placed).train(False)
        found.append(network[int(network.architecture)] if isinstance(network, Alternatives) else network)
    return found


def modules_of(ensemble: Any, num_draws: int | None, seed: int) -> list[nn.Module]:
    """The networks of an ensemble that weigh anything, each on its own; see `Ensemble.modules`."""
    method, state, task = ensemble.method, ensemble.state, ensemble.task
    repeated = method.keeps_dropout and num_draws is None  # the same networks, each time with other units left out
    members = method.networks(state) if repeated else ensemble.draw(num_draws, seed)
    if not method.runs_plainly(state, task):
        raise SettingError(
            f"the draws of {type(method).__name__} are made linear around their members, which no ordinary network "
            "is; use ensemble.module(), which runs them so, or Laplace(predict='samples')"
        )
    return networks_with(task, that_weigh(members), share=False)


def that_weigh(members: Members) -> Members:
    """The members that weigh anything, alone; weights of others stay as they are."""
    chosen = members.weights > 0
    return members if chosen.all() else members.take(chosen.nonzero().flatten()).reweight(members.weights[chosen])


def kept_by_method(buffers: Leaves) -> Leaves:
    """What a method keeps for itself among the buffers of a draw."""
    return {name: leaf for name, leaf in buffers.items() if name.startswith(OF_METHOD)}


def as_run(ensemble: Any, members: Members) -> Sequence[nn.Module]:
    """Modules that give what each member gives in a prediction."""
    method, state, task = ensemble.method, ensemble.state, ensemble.task
    networks = networks_with(task, members, share=True)
    if method.runs_plainly(state, task):
        return networks
    kept = [kept_by_method(buffers) for _, buffers in members.split()]
    with torch.no_grad():
        return [Tangent(network, method, state, task, own) for network, own in zip(networks, kept, strict=True)]
