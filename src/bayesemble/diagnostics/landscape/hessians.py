"""How sharply the loss bends at each member: the largest eigenvalues of its Hessian, and the trace.

    H = d2/dw2  mean_n -log p(y_n | x_n, w)

over all parameters w of one member, those of the likelihood among them, in eval mode, so that batch norm is fixed and
dropout off. Products with H come from the package curvlinops-for-pytorch, an extra. Eigenvalues are found by Lanczos'
method, and the trace by Hutchinson's, tr H = E[z'Hz] for random signs z. Both depend on how weights are scaled, which
a ReLU network can change without becoming another function: compare only networks that were trained alike.

Reference: Hutchinson (1989), "A stochastic estimator of the trace of the influence matrix"; Dinh et al. (2017),
"Sharp minima can generalize for deep nets", for the warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from torch import Tensor, nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError
from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape import measure
from bayesemble.methods.laplace.gauss_newton import Network
from bayesemble.methods.laplace.kronecker import Batches, curvlinops
from bayesemble.task.task import BoundTask
from bayesemble.training.batches import source_for
from bayesemble.training.ensemble import Ensemble

_EIGENVALUE_TOLERANCE = 1e-4  # relative to the eigenvalue
_MOST_LANCZOS_RESTARTS = 20
_BATCH_SIZE = 1024


@dataclass(frozen=True, eq=False)
class Sharpness:
    """Curvature of the mean loss at each member, with how good the member is beside it."""

    eigenvalues: Tensor
    """(member, top), largest first; nan where Lanczos' method did not settle."""
    trace: Tensor
    """(member,), estimated sum of all eigenvalues."""
    trace_error: Tensor
    """(member,), standard error of the estimate; nan for one sample."""
    loss: Tensor
    """(member,), mean of -log p(y|x) in nats on the same data."""
    error: Tensor
    """(member,), share of wrong classes; for numbers, the root mean squared error."""
    classes: bool
    """Whether classes are told apart, rather than numbers predicted."""


def sharpness(
    ensemble: Ensemble, data: Any, *, top: int = 3, samples: int = 30, steps: int = 30, seed: int = 0
) -> Sharpness:
    """Find the largest Hessian eigenvalues and the trace at each member.

    Args:
        ensemble: Any fitted ensemble; its members are looked at one by one.
        data: Rows that the loss is a mean over, `(x, y)`, a `Dataset` or a `DataLoader`.
        top: How many eigenvalues; fewer than there are parameters.
        samples: Random vectors for the trace, a product with the Hessian each.
        steps: Lanczos vectors, a product with the Hessian each; more find eigenvalues that lie close together.
        seed: Seed of both.
    """
    members = measure.members_of(ensemble)
    size = sum(leaf[0].numel() for leaf in members.params.values())
    require(1 <= top < size, f"top is a number from 1, and below that of the parameters, {size}; got {top}")
    require(steps > top, f"steps must be more than top, got steps={steps} for top={top}")
    require(samples >= 1, f"samples is a number from 1, got {samples}")
    measured = measure.measure(ensemble, [members], data)
    source = source_for(ensemble.task, data, _BATCH_SIZE, shuffle=False)
    source = source.checked(ensemble.task, training=False)
    source = source.to(members.weights.device)
    rows = Batches(lambda: ((batch.inputs, batch.targets) for batch in source.in_order(_BATCH_SIZE)))
    values, traces = [], []
    for index, (params, buffers) in enumerate(members.split()):
        network = Network(ensemble.task, params, buffers, tuple(params))
        with _explained(ensemble.task):
            hessian = _hessian(network, rows)
            values.append(_eigenvalues(hessian, top, steps, seeds.generator(seed, "member", index, "lanczos")))
            traces.append(_traces(hessian, samples, seeds.child(seed, "member", index, "trace")))
    trace = torch.stack(traces)
    error = trace.std(1) / math.sqrt(samples) if samples > 1 else torch.full_like(trace[:, 0], math.nan)
    return Sharpness(torch.stack(values), trace.mean(1), error, measured.loss, measured.error, measured.classes)


def _eigenvalues(hessian: Any, top: int, steps: int, generator: torch.Generator) -> Tensor:
    """The largest eigenvalues, `(top,)`, by Lanczos' method from a random start."""
    size = hessian.shape[0]
    start = torch.randn(size, generator=generator, dtype=torch.float64).numpy()
    limits = {"ncv": min(steps, size), "maxiter": _MOST_LANCZOS_RESTARTS, "tol": _EIGENVALUE_TOLERANCE}
    try:
        found = eigsh(hessian.to_scipy(), top, which="LA", v0=start, return_eigenvectors=False, **limits)
    except ArpackNoConvergence as unsettled:
        found = unsettled.eigenvalues
    values = torch.full((top,), math.nan, dtype=torch.float64)
    values[: len(found)] = torch.as_tensor(found).sort(descending=True).values
    return values


def _traces(hessian: Any, samples: int, seed: int) -> Tensor:
    """Hutchinson's estimate from each random vector alone, `(sample,)`: one product is in memory at a time."""
    estimate = curvlinops("sharpness").hutchinson_trace
    with seeds.TorchStream(seed):  # the package takes no generator
        return torch.stack([estimate(hessian, 1).cpu().double() for _ in range(samples)])


def _hessian(network: Network, rows: Batches) -> Any:
    """The Hessian of the mean loss of one member, as a linear operator of the package."""
    losses = _Losses(network)
    return curvlinops("sharpness").HessianLinearOperator(
        losses,
        _Mean(),
        list(losses.parameters()),
        rows,
        check_deterministic=False,
        batch_size_fn=lambda batch: len(batch["targets"]),
    )


class _Losses(nn.Module):
    """One member, whose outputs are the losses -log p(y|x) of rows, so that the package need not know the likelihood.

    The parameters of the likelihood are parameters of this module like those of the network.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.member = network
        self.leaves = nn.ParameterList(nn.Parameter(leaf.detach()) for leaf in network.chosen.values())

    def forward(self, batch: dict[str, Any]) -> Tensor:
        task, chosen = self.member.task, dict(zip(self.member.names, self.leaves, strict=True))
        outputs = self.member.outputs(batch["inputs"], chosen)
        return -task.likelihood.log_prob(outputs, batch["targets"], task.likelihood_leaves(chosen))


class _Mean(nn.Module):
    """The loss function of the package: the losses are outputs already."""

    reduction = "mean"

    def forward(self, losses: Tensor, _: Tensor) -> Tensor:
        return losses.mean()


@contextmanager
def _explained(task: BoundTask) -> Iterator[None]:
    """Say in a sentence that a layer cannot be differentiated twice as the package does it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch itself, at its first use of forward mode
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)  # of vmap
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            raise ModelError(
                f"the Hessian of {type(task.module).__name__} cannot be worked out, as a layer lacks forward-mode "
                f"derivatives or a rule for vmap: {str(error).strip().splitlines()[0]}"
            ) from error
