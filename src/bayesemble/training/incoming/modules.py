"""Networks that were trained elsewhere, side by side as members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.types import Inputs, Leaves
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.networks import dropout_layers, pick_output
from bayesemble.task.priors import Prior
from bayesemble.task.running import called_with
from bayesemble.task.starts.weights import copied
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.batches import source_for
from bayesemble.training.incoming.starts import as_starts

_ROUNDING = 1e-3  # of the largest output, between a network and the first one with its leaves


def side_by_side(
    modules: Sequence[nn.Module],
    likelihood: Likelihood,
    prior: Prior | None,
    output: str | Callable[[Any], Tensor] | None,
    targets: str | None,
    unpack: Callable[[Any], Any] | None,
    data: Any,
) -> tuple[BoundTask, Members]:
    """The task that the networks answer, and the networks as members; see `Ensemble.from_modules`."""
    modules = [] if isinstance(modules, nn.Module) else list(modules)
    if not modules or not all(isinstance(one, nn.Module) for one in modules):
        raise SettingError(
            'modules is a list of one network or more; for a single one there is Task(network, ..., start="given") too'
        )
    _check_alike(modules)
    options: dict[str, Any] = {"output": output, "start": "given", "targets": targets, "unpack": unpack}
    task = Task(_trainable(modules[0]), likelihood, prior, **options)
    if likelihood.leaves((1,)):
        raise SettingError(
            f"{likelihood} learns its noise with the networks, which these have done without; say what it is, such as "
            "be.Gaussian(noise=0.3)"
        )
    if data is not None:
        source = source_for(task, data)
        bound = task.bind(source.num_data, source.example())
    elif prior is None:
        facts = {"num_data": 0, "num_rows": 0, "output_shape": None}
        bound = task.rebind(facts | {"stochastic": bool(dropout_layers(task.module))})
    else:
        raise SettingError("a prior is weighed against the rows of the training data; pass data=(x, y) with it")
    starts = as_starts(modules, bound)
    if bound.example is not None:
        for number, (module, leaves) in enumerate(zip(modules, starts, strict=True)):
            _check_outputs(bound, number, module, leaves, bound.example)
    return bound, replace(bound, starts=starts).new_members(len(modules), seed=0)


def _trainable(module: nn.Module) -> nn.Module:
    """A copy of a network; of one that is frozen altogether, all parameters count as trained."""
    own = copied(module)
    return own if any(leaf.requires_grad for leaf in own.parameters()) else own.requires_grad_()


def _check_alike(modules: Sequence[nn.Module]) -> None:
    """Refuse networks whose code differs, as far as that can be seen without running them."""
    first = modules[0]
    for number, other in enumerate(modules):
        same = type(other) is type(first) and _layers(other) == _layers(first)
        if not same:
            ours, theirs = ((_layers(one) | {"": type(one).__name__}) for one in (first, other))
            name = next(name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name))
            raise ModelError(
                f"networks of one structure are needed: {name or 'the whole'!r} is {ours.get(name)} in number 0 and "
                f"{theirs.get(name)} in number {number}; make an ensemble of each structure"
            )


def _layers(module: nn.Module) -> dict[str, str]:
    """Class and settings of each layer by name."""
    return {name: f"{type(layer).__name__}({layer.extra_repr()})" for name, layer in module.named_modules() if name}


def _check_outputs(
    task: BoundTask, number: int, module: nn.Module, leaves: tuple[Leaves, Leaves], inputs: Inputs
) -> None:
    """Refuse a network that computes something else than the first one does with the same leaves."""
    with torch.no_grad():
        own = pick_output(called_with(copied(module).train(False), {}, inputs), task.output)
        ours = task.forward(*leaves, inputs)
    if own.shape != ours.shape or (own - ours).abs().max() > _ROUNDING * own.abs().max():
        raise ModelError(
            f"network number {number} computes something else than number 0 does with its weights; an ensemble runs "
            "the code of the first for all"
        )
