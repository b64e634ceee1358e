"""Batch-norm statistics of networks whose weights were not trained with them: averages, samples, points on a path.

After any change of weights without training, running means and variances belong to other activations. They are measured
anew in one pass over the training rows: cumulative averages over batches, weighted by their size, with dropout off.

    mean <- mean + b / (n + b) * (batch mean - mean)      for a batch of b rows after n others

Reference: Izmailov et al. (2018), "Averaging weights leads to wider optima and better generalization".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesemble.core.members import Members
from bayesemble.core.types import Inputs, Leaves, MemberFunction, TrainingData, map_tensors, tensors_of
from bayesemble.execute.executor import Executor
from bayesemble.task.adapters.still import is_still
from bayesemble.task.task import BoundTask

_RESET = {"running_mean": 0.0, "running_var": 1.0, "num_batches_tracked": 0}


def norm_buffers(module: nn.Module) -> set[str]:
    """Names of the buffers that hold running statistics of batch norm."""
    layers = _tracking_layers(module)
    return {f"{path}.{name}".lstrip(".") for path in layers for name, _ in layers[path].named_buffers(recurse=False)}


def refreshed(task: BoundTask, members: Members, data: TrainingData, executor: Executor) -> Members:
    """The same networks with batch-norm statistics of the data; without such layers, the members as they are.

    If every member has data of its own, networks take that of each member in turn.
    """
    names = norm_buffers(task.module)
    if not names:
        return members
    members = members.unshared(names)
    fresh = {name: torch.full_like(members.buffers[name], _RESET[name.rpartition(".")[2]]) for name in names}
    members = replace(members, buffers=members.buffers | fresh)
    seen, turns = 0, torch.arange(members.num_members)

    def run(params: Leaves, buffers: Leaves, inputs: Inputs, _: Tensor) -> Tensor:
        task.forward(params, buffers, inputs)
        return torch.zeros(())

    for batch in data():
        inputs, per_member = batch.inputs, batch.inputs_per_member
        if per_member:
            inputs = map_tensors(lambda leaf: leaf[turns % len(leaf)], inputs)
        rows = tensors_of(inputs)[0].shape[1 if per_member else 0]
        seen += rows
        with batch_statistics(task.module, rows / seen):
            executor.outputs(run, members, inputs, per_member)
    return members


def _tracking_layers(module: nn.Module) -> dict[str, _NormBase]:
    """Batch-norm layers with running statistics, outside of parts that stand still."""
    layers = {path: layer for path, layer in module.named_modules() if isinstance(layer, _NormBase)}
    return {path: layer for path, layer in layers.items() if layer.track_running_stats and not is_still(layer)}


def log_likelihood_of(task: BoundTask) -> MemberFunction:
    """Mean log likelihood of one member on a batch, with nothing in training but what the caller has put there."""

    def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Tensor:
        return task.log_likelihood(task.forward(params, buffers, inputs), targets, params)

    return function


@contextmanager
def batch_statistics(module: nn.Module, momentum: float | None = None) -> Iterator[None]:
    """Let batch norm use the statistics of the batch, and nothing else be in training.

    Running statistics move towards those of the batch by `momentum`; None leaves them as they are.
    """
    layers = _tracking_layers(module).values()
    before = [layer.momentum for layer in layers]
    module.train(False)
    try:
        for layer in layers:
            layer.train(True)
            layer.momentum = momentum
            layer.track_running_stats = momentum is not None
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.train(False)
            layer.momentum, layer.track_running_stats = own, True
