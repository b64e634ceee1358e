"""What a network computes, told by its outputs on made-up rows, which stand in run.json.

Leaves are compared by name and shape when a run is opened, but an activation has none: the network in the code must
also compute what the one that was saved did. No row of the training data is kept for that: real numbers of the rows are
standard normal, whole ones the largest of the first rows, so that indices and masks stay valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core import seeds
from bayesemble.core.errors import CheckpointError
from bayesemble.core.members import Members
from bayesemble.core.types import Inputs
from bayesemble.task.adapters.around_shards import AroundShards
from bayesemble.task.task import BoundTask

_ROWS = 2
_MOST_OUTPUTS = 64
"""Of more, as many are taken from the first to the last."""
_MOST_INPUTS = 1 << 24
"""Rows of more numbers are not made up."""
_DIFFERENCE = 1e-3
"""How far outputs may differ from saved ones, as a share of the largest."""
_OF_DEVICES = 1e-2
"""The same of outputs that came from another device than the CPU, on which runs are opened: it rounds otherwise."""


def describe_network(task: BoundTask, members: Members) -> dict[str, Any] | None:
    """What is saved of a network: how its inputs look, and its outputs on such rows.

    None if nothing can be told: the network is random, is sharded over processes, cannot run on made-up rows, or no row
    is known.
    """
    if task.example is None or isinstance(task.module, AroundShards):
        return None
    try:
        inputs = [_describe(path, leaf) for path, leaf in pytree.tree_flatten_with_path(task.example)[0]]
        rows = _made_up(inputs)
        first, second = (_outputs(task, members, rows, seed) for seed in (0, 1))
    except Exception:  # whatever a network does on rows that are none
        return None
    if _difference(first, second):
        return None
    return {"inputs": inputs, "outputs": first.tolist(), "device": members.weights.device.type}


@dataclass(frozen=True, eq=False)
class Probe:
    """What was saved of a network."""

    rows: Inputs
    outputs: Tensor
    device: str
    """Where it ran."""

    @staticmethod
    def from_json(saved: Any) -> Probe | None:
        """What `describe_network` gave; ValueError, TypeError or KeyError of anything else."""
        if saved is None:
            return None
        outputs = [math.nan if value is None else float(value) for value in saved["outputs"]]
        return Probe(_made_up(saved["inputs"]), torch.tensor(outputs, dtype=torch.float64), str(saved["device"]))

    def check(self, task: BoundTask, members: Members, folder: str) -> None:
        """Refuse a network that does not give the outputs that were saved."""
        try:
            here = _outputs(task, members, self.rows, seed=0)
        except Exception as error:
            if self.device != "cpu":  # it may need its device
                return
            raise CheckpointError(
                f"the network cannot run any more on rows like those of {folder} ({type(error).__name__}: {error}); "
                "pass the one that was trained"
            ) from error
        difference = _difference(self.outputs, here)
        if difference > max(_DIFFERENCE if self.device == "cpu" else _OF_DEVICES, 8 * torch.finfo(task.dtype).eps):
            raise CheckpointError(
                f"the network computes something else than when {folder} was saved (its outputs on a probe differ by "
                f"{difference:.2g} of their size): was an activation or a layer without weights changed?"
            )


def _made_up(inputs: list[dict[str, Any]]) -> Inputs:
    """Rows that look as described, the same each time."""
    leaves = {one["name"]: _make(number, **one) for number, one in enumerate(inputs)}
    names = list(leaves)
    if names == [None]:
        return leaves[None]
    return tuple(leaves.values()) if names == list(range(len(names))) else leaves


def _describe(path: tuple[Any, ...], leaf: Tensor) -> dict[str, Any]:
    name = None if not path else path[0].idx if isinstance(path[0], pytree.SequenceKey) else path[0].key
    largest = None if leaf.is_floating_point() else int(leaf.max())
    kind = str(leaf.dtype).removeprefix("torch.")
    return {"name": name, "type": kind, "shape": list(leaf.shape[1:]), "largest": largest}


def _make(number: int, name: str | int | None, type: str, shape: list[int], largest: int | None) -> Tensor:
    dtype, size = getattr(torch, type), (_ROWS, *shape)
    if not isinstance(dtype, torch.dtype) or math.prod(size) > _MOST_INPUTS:
        raise ValueError(f"rows of {type} {shape} cannot be made up")
    try:
        if largest is None:
            return torch.randn(size, generator=seeds.generator(0, "probe", number)).to(dtype)
        return torch.full(size, largest, dtype=dtype)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"rows of {type} {shape} with {largest} cannot be made up") from error


def _outputs(task: BoundTask, members: Members, rows: Inputs, seed: int) -> Tensor:
    """Some outputs of the first member of each architecture, with dropout off; NaN where they are not finite."""
    device, found = members.weights.device, []
    rows = pytree.tree_map(lambda leaf: leaf.to(device), rows)
    few = members.part(0, task.num_architectures)
    with torch.no_grad(), seeds.scoped(seed):
        for params, buffers in few.split():
            own = {name: buffer.clone() for name, buffer in buffers.items()}
            outputs = task.forward(params, own, rows)
            if task.output_shape not in (None, tuple(outputs.shape[1:])):
                raise ValueError(f"outputs are {tuple(outputs.shape[1:])} for each row, and were {task.output_shape}")
            found.append(outputs.double().flatten())
    outputs = torch.cat(found).cpu()
    chosen = torch.linspace(0, len(outputs) - 1, min(len(outputs), _MOST_OUTPUTS)).round().long()
    return outputs[chosen].where(outputs[chosen].isfinite(), math.nan)


def _difference(before: Tensor, here: Tensor) -> float:
    """The largest difference as a share of the largest output; NaN equals NaN alone."""
    if len(before) != len(here) or not torch.equal(before.isnan(), here.isnan()):
        return math.inf
    before, here = before.nan_to_num(), here.nan_to_num()
    size = float(torch.cat([before, here]).abs().max())
    return float((before - here).abs().max()) / size if size else 0.0
