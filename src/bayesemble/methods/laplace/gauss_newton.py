"""The generalised Gauss-Newton matrix of the log likelihood in chosen leaves of one network.

    H = sum_n J_n' (R_n R_n') J_n,     J_n = df(x_n)/dw,     R_n R_n' = E_y[ -d2 log p(y|f) / df2 ]   at f = f(x_n)

It is the Fisher information matrix. The network runs in eval mode, so batch norm is a fixed linear map.

Reference: Martens (2020), "New insights and perspectives on the natural gradient method".
"""

import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesemble.core.errors import ModelError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Inputs, Leaves, Targets, WeightedTargets, map_tensors, tensors_of, total_weight
from bayesemble.methods.laplace.gaussian_blocks import Block, Layout
from bayesemble.task.likelihoods import Categorical
from bayesemble.task.task import BoundTask

BUDGET = 1 << 27  # bytes of gradients of single rows at a time
WIDE = 8  # bytes of a number in double precision, in which sums over rows are kept

Rows = Iterable[tuple[Inputs, Targets]]
"""Inputs and targets, in batches."""


@dataclass(frozen=True, eq=False)
class Network:
    """One member in eval mode, as a function of its chosen leaves."""

    task: BoundTask
    params: Leaves
    buffers: Leaves
    names: tuple[str, ...]

    @property
    def chosen(self) -> Leaves:
        """The chosen leaves."""
        return {name: self.params[name] for name in self.names}

    def outputs(self, inputs: Inputs, chosen: Leaves | None = None) -> Tensor:
        """Outputs `(row, ...)`, with other values of the chosen leaves if they are given."""
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has neither a second derivative nor a rule for vmap
            return self.task.forward(self.params | (chosen or {}), self.buffers, inputs)


_FORWARD_MODE = threading.RLock()  # torch keeps one level of forward mode for all threads


def linearised(network: Network, inputs: Inputs, away: Leaves) -> Tensor:
    """f(x; w) + J(x) away: outputs `(row, ...)` of the network made linear around its chosen leaves w."""
    with _FORWARD_MODE, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch itself, at its first use of forward mode
        try:
            outputs, change = jvp(lambda chosen: network.outputs(inputs, chosen), (network.chosen,), (away,))  # type: ignore[misc]
            return outputs + change
        except RuntimeError:  # a layer without forward mode
            pass
        try:
            return twice_backward(network, inputs, away)
        except RuntimeError as error:
            raise ModelError(
                f"{type(network.task.module).__name__} cannot be made linear in the selected leaves: "
                f"{str(error).splitlines()[0]}; use predict='samples', or select an output layer "
                "whose numbers the network gives as they are"
            ) from error


def twice_backward(network: Network, inputs: Inputs, away: Leaves) -> Tensor:
    """The same without forward mode: J'u is linear in u, and its own pull-back is J."""
    with torch.enable_grad():
        outputs, pull = vjp(lambda chosen: network.outputs(inputs, chosen), network.chosen)  # type: ignore[misc]
        push = vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(outputs))[1]
        return outputs + push(away)[0]


def log_likelihood(network: Network, rows: Rows) -> tuple[float, float]:
    """The log likelihood summed over all rows, and how many there are, or the sum of their weights."""
    total, count = 0.0, 0.0
    with torch.no_grad():
        for inputs, targets in rows:
            mean = network.task.log_likelihood(network.outputs(inputs), targets, network.params)
            size = total_weight(targets)
            total, count = total + size * float(mean), count + size
    return total, count


def output_roots(task: BoundTask, outputs: Tensor, targets: Targets, params: Leaves) -> Tensor:
    """R `(row, output, column)` with R R' = E_y[ -d2 log p(y|f) / df2 ], the outputs of a row in one line.

    A likelihood whose second derivative depends on y must know its information. A row with a weight has it in R R'.
    """
    if isinstance(targets, WeightedTargets):
        plain = output_roots(task, outputs, targets.values, params)
        return plain * targets.weights.to(plain).sqrt().reshape(-1, 1, 1)
    shape, flat = outputs.shape[1:], outputs.reshape(len(outputs), -1)
    if is_softmax(task) and len(shape) == 1:
        probs = F.softmax(flat, dim=-1)  # a root of diag(p) - p p' without a decomposition, for many classes
        return torch.diag_embed(probs.sqrt()) - probs.unsqueeze(2) * probs.sqrt().unsqueeze(1)

    independent = closed_information(task, outputs, params)
    if independent is not None:
        return torch.diag_embed(independent.reshape(flat.shape).sqrt())

    def negative(row: Tensor, target: Tensor) -> Tensor:
        return -task.log_likelihood(row.reshape(1, *shape), target.unsqueeze(0), params)

    second = vmap(jacrev(jacrev(negative)))
    values, vectors = torch.linalg.eigh(second(flat, targets))
    return vectors * values.clamp_min(0).sqrt().unsqueeze(1)


def is_softmax(task: BoundTask) -> bool:
    """Whether outputs are read as the logits of classes, all of one weight.

    A class derived from `Categorical` may read them otherwise. Soft labels and smoothing change no curvature.
    """
    own = task.likelihood
    return isinstance(own, Categorical) and type(own).log_prob is Categorical.log_prob and own.class_weights is None


def closed_information(task: BoundTask, outputs: Tensor, params: Leaves) -> Tensor | None:
    """E_y[ -d2 log p(y|f) / df2 ] in the shape of the outputs, if these are independent and the likelihood knows it.

    What a likelihood says of its information holds for the `log_prob` beside it, not for that of a derived class.
    """
    mro = type(task.likelihood).__mro__
    first = next(kind for kind in mro if {"information", "log_prob"} & vars(kind).keys())
    known = "information" in vars(first)
    return task.likelihood.information(outputs, task.likelihood_leaves(params)) if known else None


def whole(network: Network, rows: Rows, layout: Layout) -> Block:
    """The whole matrix."""
    size = sum(leaf.numel() for leaf in network.chosen.values())
    total = torch.zeros(size, size, dtype=torch.float64)
    for gradients in _row_gradients(network, rows, layout):
        total.addmm_(gradients.T, gradients)
    return Block(layout, None, total)


def diagonal(network: Network, rows: Rows, layout: Layout) -> Block:
    """The diagonal of the matrix."""
    total = torch.zeros(sum(leaf.numel() for leaf in network.chosen.values()), dtype=torch.float64)
    for gradients in _row_gradients(network, rows, layout):
        total += gradients.square().sum(0)
    return Block(layout, None, total)


def _row_gradients(network: Network, rows: Rows, layout: Layout) -> Iterator[Tensor]:
    """J_n' R_n for each row n, `(row and column of R, number)`: as many at a time as memory takes."""
    each = WIDE * sum(leaf.numel() for leaf in network.chosen.values())
    for inputs, targets in rows:
        with torch.no_grad():
            outputs = network.outputs(inputs)
        width = outputs[0].numel()
        at_once = how_many_fit(BUDGET, width * (each + WIDE * width))
        for start in range(0, len(outputs), at_once):
            part = slice(start, start + at_once)
            roots = output_roots(network.task, outputs[part], targets[part], network.params)
            own = map_tensors(lambda leaf, part=part: leaf[part], inputs)  # type: ignore[misc]
            for columns in roots.split(how_many_fit(BUDGET, each), dim=2):
                found = _pulled_back(network, own, columns)
                joined = torch.cat([found[name].reshape(*found[name].shape[:2], -1) for name in layout.names], dim=2)
                yield joined.flatten(0, 1).cpu().double()


def jacobians(network: Network, inputs: Inputs) -> Iterator[tuple[Tensor, Leaves]]:
    """Outputs `(row, ...)` and their slopes in the chosen leaves, `(row, output, ...)`, for some rows at a time."""
    with torch.no_grad():
        outputs = network.outputs(inputs)
    width = outputs[0].numel()
    numbers = sum(leaf.numel() for leaf in network.chosen.values())
    at_once = how_many_fit(BUDGET, width * outputs.element_size() * (numbers + width))
    for start in range(0, len(outputs), at_once):
        part = slice(start, start + at_once)
        own = map_tensors(lambda leaf, part=part: leaf[part], inputs)  # type: ignore[misc]
        unit = torch.eye(width, dtype=outputs.dtype, device=outputs.device).expand(len(outputs[part]), width, width)
        yield outputs[part], _pulled_back(network, own, unit)


def _pulled_back(network: Network, inputs: Inputs, columns: Tensor) -> Leaves:
    """J_n' R_n for each row n: leaves `(row, column, ...)`."""

    def of_row(row: Inputs, own: Tensor) -> Leaves:
        single = map_tensors(lambda leaf: leaf.unsqueeze(0), row)
        pull = vjp(lambda chosen: network.outputs(single, chosen).flatten(), network.chosen)[1]
        return vmap(lambda column: pull(column)[0])(own.T)

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
            return vmap(of_row)(inputs, columns)
    except RuntimeError:  # a layer that vmap cannot run; whatever else is wrong shows again
        return pulled_back_one_by_one(network, inputs, columns)


def pulled_back_one_by_one(network: Network, inputs: Inputs, columns: Tensor) -> Leaves:
    """The same without vmap, much slower."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in network.chosen.items()}
    found: dict[str, list[Tensor]] = {name: [] for name in leaves}
    num, width = len(tensors_of(inputs)[0]), columns.shape[2]
    with torch.enable_grad():
        for row, column in product(range(num), range(width)):
            single = map_tensors(lambda leaf, row=row: leaf[row : row + 1], inputs)  # type: ignore[misc]
            value = network.outputs(single, leaves).flatten() @ columns[row, :, column]
            slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
            for name, slope in zip(leaves, slopes, strict=True):
                found[name].append(slope)
    return {name: torch.stack(parts).reshape(num, width, *leaves[name].shape) for name, parts in found.items()}
