"""Priors over functions: scales of weights whose networks behave like a Gaussian process, or like given functions.

A prior over weights is hard to have an opinion on, a prior over functions is not. With weights w = s_l * noise in each
leaf l, functions f = f(x; w) at some inputs depend on the scales s, which are moved until functions of the network
look like those that are wanted:

    moments        E <C_1 - K, C_2 - K> / |K|^2,     C_1, C_2: second moments of two independent sets of functions
    wasserstein    mean over directions u of the squared Wasserstein distance between u'f and u'g,  g the wanted ones

The first has no bias from the number of functions, and knows nothing beyond moments. The second, the sliced Wasserstein
distance, compares whole distributions. The noise is drawn once, so that the distance is a smooth function of the few
scales, which L-BFGS minimises; its gradient is d/d log s_l = sum over draws of <df, w_l>.

Reference: Flam-Shepherd, Requeima & Duvenaud (2017), "Mapping Gaussian process priors to Bayesian neural networks";
Tran et al. (2022), "All you need is a good functional prior for Bayesian deep learning"; Bonneel et al. (2015) for the
sliced distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs, check_rows, numbers
from bayesemble.core.errors import BayesembleError, DataError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Batch, Inputs, Leaves, Outputs, tensors_of
from bayesemble.execute.choose import for_draws
from bayesemble.execute.executor import Executor
from bayesemble.execute.loop import Loop
from bayesemble.task.priors import LaplacePrior, NormalPrior, Prior
from bayesemble.task.task import BoundTask, Task

_DIRECTIONS = 200  # of the sliced distance
_SHOWN, _MEASURED = 10, 2000  # functions that are kept for a figure, and that the distances are measured with
_FARTHEST = 6.0  # nats that the logarithm of a scale moves at most, a factor of 400
DISTANCES = ("moments", "wasserstein")

LogScales = dict[str, float]
"""Logarithms of scales, by the names of leaves."""


@dataclass(frozen=True, eq=False)
class MatchedPrior:
    """A prior whose functions look like those that were wanted, and functions of before and after."""

    prior: Prior
    """With a scale for each leaf."""
    task: Task
    """The task under this prior."""
    inputs: Inputs
    wanted: Tensor
    """Some functions that were wanted, `(function, row, ...)`: given ones, or draws of the Gaussian process."""
    before: Tensor
    """Functions of the prior that was there before, `(function, row, ...)`."""
    after: Tensor
    """Functions of the prior that was found, from the same noise."""
    distance_before: float
    """Of the prior that was there before, as a share of the size of what was wanted."""
    distance_after: float


def match_prior(
    task: Task,
    *,
    inputs: Any,
    kernel: Any = None,
    functions: Any = None,
    distance: str = "moments",
    num: int = 1000,
    steps: int = 100,
    seed: int = 0,
) -> MatchedPrior:
    """Find scales of the prior, one for each leaf, whose functions look like a Gaussian process or like examples.

    Args:
        task: What is inferred. Its prior, a `NormalPrior` or `LaplacePrior`, is what the search begins at; that of a
            task without one is Normal(0, 1 / fan-in).
        inputs: Rows at which functions are compared; where they are is what the prior will be right about.
        kernel: Covariance of a Gaussian process with mean 0: a matrix `(row, row)`, or a function of the inputs as rows
            of numbers, such as `be.kernels.RBF(bandwidth=1.0)` or a kernel of scikit-learn. Several outputs are
            independent.
        functions: Instead of a kernel, examples `(function, row)` or `(function, row, output)`: what the outputs of the
            network should look like before it has seen data.
        distance: "moments" or "wasserstein", see above.
        num: Functions that are drawn to compare; scales are found to within some 1 / sqrt(num).
        steps: Most steps of the minimiser.
        seed: All randomness derives from it.

    Scales that functions do not tell apart, as those of two layers with a ReLU between them, share out among themselves
    what their product should be, by where they began.
    """
    require((kernel is None) != (functions is None), "give either a kernel or functions, one of the two")
    require(distance in DISTANCES, f"distance is one of {', '.join(DISTANCES)}, not {distance!r}")
    require(num >= 4 and steps >= 1, f"at least 4 functions and a step are needed, got num={num} and steps={steps}")
    tensors = as_inputs(inputs, task.dtype)
    check_rows(tensors, None, False)
    bound = task.bind(len(tensors_of(tensors)[0]), tensors)
    sampler = _Functions(bound, _start(task), tensors)
    wanted = _Wanted.of(kernel, functions, tensors, bound, seed)
    begun = {name: math.log(one) for name, one in sampler.scales.items()}
    far, noise = wanted.distance(distance, seed), sampler.noise(num, seeds.child(seed, "noise"))
    scales = _minimised(sampler, noise, far, sampler.resized(begun, noise, wanted), steps)
    found = _with_scales(sampler.prior, {name: math.exp(scale) for name, scale in scales.items()})
    fresh = sampler.noise(_MEASURED, seeds.child(seed, "look"))
    before, after = (sampler.draw(one, fresh) for one in (begun, scales))
    return MatchedPrior(
        found,
        replace(task, prior=found),
        tensors,
        wanted.some(_SHOWN),
        before[:_SHOWN],
        after[:_SHOWN],
        float(far(before.flatten(1))),
        float(far(after.flatten(1))),
    )


def _minimised(
    sampler: _Functions, noise: Leaves, far: Callable[[Tensor], Tensor], begun: LogScales, steps: int
) -> LogScales:
    """The scales of least distance, from where they begin."""
    from scipy.optimize import minimize

    def value_and_slope(point: Any) -> tuple[float, Any]:
        value, slopes = sampler.slopes(dict(zip(begun, point.tolist(), strict=True)), noise, far)
        return value, np.array([slopes[name] for name in begun])

    start = np.array(list(begun.values()))
    bounds = [(one - _FARTHEST, one + _FARTHEST) for one in start]
    found = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return dict(zip(begun, found.x.tolist(), strict=True))


def _start(task: Task) -> Prior:
    prior = NormalPrior(scaling="fan_in") if task.prior is None else task.prior
    if not isinstance(prior, NormalPrior | LaplacePrior):
        raise SettingError(f"scales of a NormalPrior or a LaplacePrior can be matched, the task has {prior}")
    if isinstance(prior, NormalPrior) and prior.center != "zero":
        raise SettingError(f"scales of a prior around zero can be matched, the task has {prior}")
    return prior


def _with_scales(prior: Prior, scales: dict[str, float]) -> Prior:
    return NormalPrior(scales) if isinstance(prior, NormalPrior) else LaplacePrior(scales)


class _Functions:
    """Functions of networks whose weights are scales times noise."""

    def __init__(self, task: BoundTask, prior: Prior, inputs: Inputs) -> None:
        self.task, self.prior, self.inputs = task, prior, inputs
        self.scales = prior.scales(task.shapes)
        self.start = task.new_members(2, 0)
        self._unit = _with_scales(prior, dict.fromkeys(task.shapes, 1.0))
        self._chosen: Executor | None = None

    def noise(self, num: int, seed: int) -> Leaves:
        """Weights of networks `(function, ...)` for scales of 1."""
        generators = [seeds.generator(seed, "function", index) for index in range(num)]
        drawn = [self._unit.sample(self.task.shapes, generator, self.task.dtype) for generator in generators]
        return {name: torch.stack([one[name] for one in drawn]) for name in self.task.shapes}

    def draw(self, scales: LogScales, noise: Leaves) -> Tensor:
        """Functions `(function, row, ...)`, in double precision."""
        networks = self._networks(scales, noise)
        return self._executor(networks).outputs(self._outputs, networks, self.inputs, per_member=False).double()

    def resized(self, scales: LogScales, noise: Leaves, wanted: _Wanted) -> LogScales:
        """The same with another scale of the output layer, if there is one, so that functions have the wanted size."""
        try:
            names = self.task.select("output")
        except BayesembleError:
            return scales
        size = float(self.draw(scales, noise).flatten(1).square().sum(1).mean())
        factor = math.log(float(wanted.moments.diagonal().sum()) / size) / 2 if size > 0 else 0.0
        return {name: scale + (factor if name in names else 0.0) for name, scale in scales.items()}

    def slopes(
        self, scales: LogScales, noise: Leaves, far: Callable[[Tensor], Tensor]
    ) -> tuple[float, dict[str, float]]:
        """A distance, and its gradient in the logarithms of the scales."""
        networks, seen = self._networks(scales, noise), list[float]()

        def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Any) -> Outputs:
            return {"functions": self._outputs(params, buffers, inputs, targets)}

        def couple(outputs: Outputs) -> Tensor:
            value = far(outputs["functions"].double().flatten(1))
            seen.append(float(value.detach()))
            return value

        batch = Batch(self.inputs, torch.zeros(len(tensors_of(self.inputs)[0])))
        found = self._executor(networks).coupled_gradients(function, couple, networks, batch)
        moved = {name: found[name].double() * networks.params[name].double() for name in scales}
        return seen[-1], {name: float(leaf.sum()) for name, leaf in moved.items()}

    def _networks(self, scales: LogScales, noise: Leaves) -> Members:
        fixed = self.start.take(torch.zeros(len(next(iter(noise.values()))), dtype=torch.long))
        return replace(
            fixed, params=fixed.params | {name: leaf * math.exp(scales[name]) for name, leaf in noise.items()}
        )

    def _outputs(self, params: Leaves, buffers: Leaves, inputs: Inputs, targets: Any) -> Tensor:
        return self.task.forward(params, buffers, inputs)

    def _executor(self, networks: Members) -> Executor:
        if self._chosen is None:
            self._chosen = for_draws(Loop(draws_by_vmap=True), self._outputs, networks, self.inputs)
        return self._chosen


@dataclass(frozen=True, eq=False)
class _Wanted:
    """What functions should look like at the inputs, all outputs in one line."""

    moments: Tensor
    """`(number, number)`: E[f f']."""
    draw: Callable[[int, int], Tensor]
    """Some functions `(function, number)`, by their number and a seed."""
    shape: tuple[int, ...]
    """Of one function."""

    @staticmethod
    def of(kernel: Any, functions: Any, inputs: Inputs, task: BoundTask, seed: int) -> _Wanted:
        rows = len(tensors_of(inputs)[0])
        assert task.output_shape is not None  # it has met the inputs
        shape = (rows, *task.output_shape)
        if kernel is not None:
            return _Wanted.process(_covariance(kernel, inputs, rows), shape)
        given = numbers(functions, "functions").double()
        if given.dim() == 2 and math.prod(task.output_shape) == 1:
            given = given.reshape(-1, *shape) if given.shape[1] == rows else given
        if tuple(given.shape[1:]) != shape or len(given) < 2 or not given.isfinite().all():
            raise DataError(
                f"functions must be two or more with the shape {shape} of the network's outputs at the inputs, and "
                f"finite; got {tuple(given.shape)}"
            )
        flat = given.flatten(1)

        def draw(num: int, seed: int) -> Tensor:
            chosen = torch.randint(len(flat), (num,), generator=seeds.generator(seed, "wanted"))
            return flat[chosen] if num != len(flat) else flat

        return _Wanted(flat.T @ flat / len(flat), draw, shape)

    @staticmethod
    def process(covariance: Tensor, shape: tuple[int, ...]) -> _Wanted:
        """Draws of a Gaussian process, the same for each output."""
        outputs = math.prod(shape[1:])
        values, vectors = torch.linalg.eigh(covariance)
        require(
            bool(values.min() > -1e-6 * values.max().clamp_min(1e-300)),
            f"the kernel is not a covariance: its smallest eigenvalue is {float(values.min()):.3g}",
        )
        root = vectors * values.clamp_min(0).sqrt()

        def draw(num: int, seed: int) -> Tensor:
            normal = torch.randn(num, len(root), outputs, generator=seeds.generator(seed, "wanted"), dtype=root.dtype)
            return torch.einsum("rk,nko->nro", root, normal).flatten(1)

        return _Wanted(torch.kron(covariance, torch.eye(outputs, dtype=root.dtype)), draw, shape)

    def some(self, num: int) -> Tensor:
        drawn = self.draw(num, 0)
        return drawn[:num].reshape(-1, *self.shape)

    def distance(self, kind: str, seed: int) -> Callable[[Tensor], Tensor]:
        """The distance of functions `(function, number)` from what is wanted, as a share of the size of that."""
        if kind == "moments":
            return self._between_moments
        return lambda functions: self._sliced(functions, seed)

    def _between_moments(self, functions: Tensor) -> Tensor:
        half = len(functions) // 2
        gaps = [part.T @ part / len(part) - self.moments for part in functions.split([half, len(functions) - half])]
        return (gaps[0] * gaps[1]).sum() / self.moments.square().sum()

    def _sliced(self, functions: Tensor, seed: int) -> Tensor:
        generator = seeds.generator(seed, "directions")
        along = torch.randn(functions.shape[1], _DIRECTIONS, generator=generator, dtype=functions.dtype)
        along = along / along.norm(dim=0)
        own, wanted = ((some @ along).sort(0).values for some in (functions, self.draw(len(functions), seed)))
        return (own - wanted).square().mean() * functions.shape[1] / self.moments.diagonal().sum()


def _covariance(kernel: Any, inputs: Inputs, rows: int) -> Tensor:
    """The kernel's matrix `(row, row)` at the inputs."""
    found = kernel
    if callable(kernel):
        if not isinstance(inputs, Tensor):
            raise SettingError("a kernel is a function of one tensor; give its matrix at these inputs instead")
        found = kernel(inputs.double().flatten(1))
    matrix = numbers(found, "kernel").double()
    if matrix.shape != (rows, rows) or not torch.allclose(matrix, matrix.T, atol=1e-6):
        raise DataError(
            f"the kernel must be a symmetric matrix {(rows, rows)} at the inputs, got {tuple(matrix.shape)}"
        )
    return matrix
