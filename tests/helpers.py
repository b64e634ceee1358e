"""Networks and data that many tests share, and a quiet way to train."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.members import State
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.methods.laplace.gauss_newton import Network
from bayesemble.predictive import NormalPredictive, PoissonPredictive

TESTS = Path(__file__).parent


def with_tests_on_path() -> dict[str, str]:
    """The environment for a process of its own that imports from the tests, and the package under test."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse files beyond a size, as a full disk would."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def quick_fit(task: be.Task, data: Any, method: Any = None, **options: Any) -> be.Ensemble:
    """Train silently, for few epochs, in the loop, unless told otherwise."""
    defaults = {"epochs": 2, "batch_size": 16, "executor": "loop", "progress": False}
    return be.fit(task, method or be.DeepEnsemble(num_members=3), data, **(defaults | options))


@cache
def calibrated(kind: str) -> tuple[be.Ensemble, Tensor]:
    """An ensemble of "classes" or "numbers" that held-out rows have corrected in all ways that there are, and rows."""
    generator = torch.Generator().manual_seed(1)
    x, noise = torch.randn(460, 4, generator=generator), torch.randn(460, 3, generator=generator)
    likelihood: Any = be.Categorical() if kind == "classes" else be.HeteroscedasticGaussian()
    y = (x[:, :3] + 0.4 * noise).argmax(1) if kind == "classes" else x[:, 0].sin() + 0.3 * noise[:, 0]
    num = 3 if kind == "classes" else 2
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, num)), likelihood, None)
    method = be.DeepEnsemble(num_members=3, learning_rate=0.02)
    ensemble = quick_fit(task, (x[:60], y[:60]), method, epochs=40)
    options = {"risk": 0.3} if kind == "classes" else {}
    return ensemble.calibrate((x[60:], y[60:]), level=0.8, **options), x[60:]


def oracle(name: str) -> Any:
    """Another library to agree with; what it warns of while it is imported is not our concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def weighted_normals(generator: torch.Generator, members: int = 3, rows: int = 12) -> tuple[NormalPredictive, Tensor]:
    """Members of unequal weight that stand apart, and targets inside, between and far outside of them."""
    means, stds, targets = (torch.randn(members, rows, generator=generator, dtype=torch.float64) for _ in range(3))
    weights = torch.rand(members, generator=generator, dtype=torch.float64) + 0.1
    return be.Predictive.from_normal(3 * means, stds.exp(), weights), 4 * targets[0]


def poissons(rates: Any, weights: Any = None) -> PoissonPredictive:
    """A mixture of Poisson distributions with rates `(member, row)`."""
    rates = torch.as_tensor(rates, dtype=torch.float64)
    weights = torch.ones(len(rates)) if weights is None else torch.as_tensor(weights)
    return PoissonPredictive(weights.double() / weights.sum(), rates)


def table(num_rows: int = 48, num_features: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows with two classes that a line tells apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, num_features, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def images(num_rows: int = 40, num_classes: int = 4, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 3, size, size, generator=generator)
    return x, torch.randint(num_classes, (num_rows,), generator=generator)


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Tempered(nn.Module):
    """A layer whose only parameter has no axes."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x / nn.functional.softplus(self.temperature)


def tempered_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2), Tempered())


def norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(16, 2),
    )


def norm_convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def with_dropout(model: Any) -> nn.Sequential:
    """A network with a dropout layer before its last layer."""
    *body, head = model()
    return nn.Sequential(*body, nn.Dropout(0.3), head)


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor], members: int | None = None) -> float:
    """The largest absolute difference between leaves, over the first so many members."""
    assert one.keys() == other.keys()
    return max(float((one[name][:members] - other[name][:members]).abs().max()) for name in one)


def all_leaves(ensemble: be.Ensemble) -> dict[str, Tensor]:
    """Parameters and buffers, as real numbers."""
    members = ensemble.state.members
    return members.params | {name: leaf.double() for name, leaf in members.buffers.items()}


def smooth_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def one_network(model: Any = smooth_mlp, likelihood: Any = None, names: Any = None, x: Any = None) -> Network:
    """A fresh member of a task with rows `x`, as a function of the named leaves, or of all."""
    x = table()[0].double() if x is None else x
    task = be.Task(model, likelihood or be.Categorical()).bind(len(x), x)
    params, buffers = task.new_member(seed=0)
    return Network(task, params, buffers, tuple(names or task.shapes))


def random_members(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights of small networks, drawn from a standard normal."""
    generator = torch.Generator().manual_seed(seed)
    with scoped(0):
        shapes = {name: leaf.shape for name, leaf in small_mlp().named_parameters()}
    return {name: torch.randn(count, *shape, generator=generator).double() for name, shape in shapes.items()}


def directions(method: Any, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """What one step of a method adds to the weights of small networks, all from one snapshot."""
    x, y = table()
    task, count = be.Task(small_mlp, be.Categorical()).bind(len(x), x), len(params["0.weight"])
    state = State(be.Members(params, {}, torch.full((count,), 1 / count))).clone()
    state, _ = method.step(state, Batch(x.to(params["0.weight"]), y), Context(task, be.Loop(), Clock(0, 1, 0)))
    return {name: state.members.params[name] - leaf for name, leaf in params.items()}
