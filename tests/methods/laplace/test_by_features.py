import importlib.util
import time
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.methods.laplace import by_features, gauss_newton
from bayesemble.methods.laplace.gauss_newton import Network
from bayesemble.methods.laplace.gaussian_blocks import layouts, spectrum, variance
from bayesemble.methods.laplace.kronecker import kronecker
from bayesemble.methods.laplace.output_layer import features_of
from bayesemble.task.likelihoods import Likelihood

ROWS = 11
needs_curvlinops = pytest.mark.skipif(
    importlib.util.find_spec("curvlinops") is None, reason="curvlinops-for-pytorch, the extra 'laplace', is missing"
)


@dataclass(frozen=True)
class Coupled(Likelihood):
    """Squared errors of the outputs and of their sum: no closed form is told, and outputs depend on each other."""

    def check_targets(self, targets, output_shape):
        return targets

    def log_prob(self, outputs, targets, leaves):
        apart = (outputs - targets).flatten(1)
        return -apart.square().sum(1) - apart.sum(1).square()

    def predictive(self, outputs, leaves, weights):
        raise NotImplementedError


@dataclass(frozen=True)
class Sharper(be.Categorical):
    """Derived from one that has a closed form, which is not its own."""

    def log_prob(self, outputs, targets, leaves):
        return super().log_prob(2 * outputs, targets, leaves)


class Times(nn.Module):
    """(row, time, class)"""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class Last(Times):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[torch.arange(len(x)), (x[:, 0, 0] > 0).long()]


class Choices(nn.Module):
    """One score for each of several answers, which the softmax is over."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).squeeze(-1)


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).movedim(1, -1)


def flat() -> nn.Module:
    net = nn.Sequential()
    net.add_module("body", nn.Linear(3, 5))
    net.add_module("tanh", nn.Tanh())
    net.add_module("head", nn.Linear(5, 4))
    return net


def labels(*shape: int) -> Tensor:
    return torch.arange(ROWS * torch.Size(shape).numel()).reshape(ROWS, *shape) % 3


def numbers(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(2)).double()


CASES = {
    "classes": (flat, be.Categorical(), (3,), labels()),
    "numbers": (flat, be.Gaussian("learned"), (3,), numbers(4)),
    "yes or no": (flat, be.Bernoulli(), (3,), numbers(4).gt(0).double()),
    "counts": (flat, be.Poisson(), (3,), numbers(4).abs().round()),
    "a variance head": (flat, be.HeteroscedasticGaussian(), (3,), numbers(2)),
    "heavy tails": (flat, be.HeteroscedasticStudent(), (3,), numbers(2)),
    "coupled": (flat, Coupled(), (3,), numbers(4)),
    "sharper": (flat, Sharper(), (3,), labels()),
    "classes at times": (Times, be.Categorical(), (2, 3), labels(2)),
    "numbers at times": (Times, be.Gaussian(0.5), (2, 3), numbers(2, 3)),
    "coupled times": (Times, Coupled(), (2, 3), numbers(2, 3)),
    "an own time for each row": (Last, be.Categorical(), (2, 3), labels()),
    "choices": (Choices, be.Categorical(), (3, 3), labels()),
    "pixels": (Pixels, be.Categorical(), (1, 3, 2), labels(3, 2)),
}


def case(name: str, leaves=("weight", "bias")) -> tuple[Network, list[tuple[Tensor, Tensor]]]:
    """The network, and its data in two batches."""
    model, likelihood, shape, y = CASES[name]
    x = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1)).double()
    task = be.Task(lambda: model().double(), likelihood).bind(ROWS, x)
    params, buffers = task.new_member(seed=0)
    if "likelihood.log_noise" in params:
        params["likelihood.log_noise"].copy_(torch.linspace(-1, 1, 4))
    return Network(task, params, buffers, tuple(f"head.{leaf}" for leaf in leaves)), [(x[:7], y[:7]), (x[7:], y[7:])]


def found(network, data, structure):
    plan = layouts(structure, network.task.module, list(network.names))
    return by_features.blocks(network, iter(data), structure, plan)[0]


@pytest.mark.parametrize("leaves", [("weight", "bias"), ("weight",), ("bias",)], ids="+".join)
@pytest.mark.parametrize("name", CASES)
def test_curvature_is_that_of_the_whole_network(name, leaves, monkeypatch):
    network, data = case(name, leaves)
    layout = layouts("full", network.task.module, list(network.names))[0]
    whole = gauss_newton.whole(network, data, layout).right
    for budget in (gauss_newton.BUDGET, 1 << 9):  # all at once, and a row or two at a time
        monkeypatch.setattr(gauss_newton, "BUDGET", budget)
        torch.testing.assert_close(found(network, data, "full").right, whole, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found(network, data, "diag").right, whole.diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rows", "parts"), [(3, [3, 3, 1]), (0.5, [1] * 7)])
def test_features_come_in_double_precision_as_many_rows_at_a_time_as_memory_takes(rows, parts, monkeypatch):
    """Of each of two times: four features with their constant, three copies, and three classes, four copies."""
    network, data = case("classes at times")
    monkeypatch.setattr(gauss_newton, "BUDGET", int(rows * 8 * 2 * (3 * 5 + 4 * 3)))
    assert [len(part) for part in by_features._rows_at_once(features_of(network, data[0][0]))] == parts


@pytest.mark.parametrize(("rows", "parts"), [(3, [3, 3, 1]), (0.5, [1] * 7)])
def test_roots_and_slopes_come_as_many_rows_at_a_time_as_memory_takes(rows, parts, monkeypatch):
    """Of six outputs: a root of six by six; of six columns: five features of three channels."""
    network, data = case("coupled times")
    seen, targets = by_features._rows_of(features_of(network, data[0][0]), torch.arange(7)), data[0][1]
    monkeypatch.setattr(gauss_newton, "BUDGET", int(rows * 8 * 6 * (6 + 2 * 3)))
    assert [len(some.entering) for some in by_features._samples(network, seen, targets)] == parts
    monkeypatch.setattr(gauss_newton, "BUDGET", 1 << 20)
    (samples,) = by_features._samples(network, seen, targets)
    monkeypatch.setattr(gauss_newton, "BUDGET", int(rows * 8 * 6 * 3 * 5))
    assert [len(slopes) for slopes in samples.slopes()] == [6 * part for part in parts]


@needs_curvlinops
@pytest.mark.parametrize("name", [name for name in CASES if name != "an own time for each row"])
def test_products_are_those_of_the_whole_network(name):
    network, data = case(name)
    plan = layouts("kron", network.task.module, list(network.names))
    expected, own = kronecker(network, lambda: iter(data), plan, ROWS)[0], found(network, data, "kron")
    torch.testing.assert_close(
        torch.kron(own.left, own.right), torch.kron(expected.left, expected.right), atol=1e-10, rtol=1e-8
    )


def test_a_batch_that_features_do_not_tell_leaves_all_to_the_network():
    network, data = case("classes")
    data[1] = (data[1][0] * float("nan"), data[1][1])
    assert (
        by_features.blocks(network, iter(data), "full", layouts("full", network.task.module, list(network.names)))
        is None
    )


@pytest.mark.parametrize("leaves", [("weight", "bias"), ("weight",), ("bias",)], ids="+".join)
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("name", ["numbers", "numbers at times", "an own time for each row", "pixels"])
def test_variances_are_those_of_the_jacobian(name, structure, leaves):
    """J S J', with J of the whole network."""
    network, data = case(name, leaves)
    layout = layouts(structure, network.task.module, list(network.names))[0]
    shapes = network.task.shapes
    factors = spectrum(found(network, data, structure), shapes, dict.fromkeys(shapes, 2.0)).factors(1.0, 0.5)
    x = data[0][0]
    outputs, slopes = next(gauss_newton.jacobians(network, x))
    expected = variance(factors, layout.join(slopes)).reshape(outputs.shape)
    own = by_features.variances(features_of(network, x), layout, factors)
    torch.testing.assert_close(own, expected.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_outputs_of_draws_are_those_of_networks_that_are_run(name):
    network, data = case(name)
    generator = torch.Generator().manual_seed(3)
    away = {n: torch.randn(4, *leaf.shape, generator=generator).double() for n, leaf in network.chosen.items()}
    x = data[0][0]
    own = by_features.drawn_outputs(features_of(network, x), away)
    for number in range(4):
        moved = {name: leaf + away[name][number] for name, leaf in network.chosen.items()}
        torch.testing.assert_close(own[number], network.outputs(x, moved), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_a_thousand_classes_take_about_one_pass_of_training(structure):
    """Processor time of the curvature against that of an epoch; by rows it would take hundreds of epochs."""
    with scoped(0):
        x, y = torch.randn(1000, 20), torch.randint(0, 1000, (1000,))
    body = [(20, 400), (400, 400), (400, 16)]
    task = be.Task(
        lambda: nn.Sequential(*(nn.Sequential(nn.Linear(*sizes), nn.ReLU()) for sizes in body), nn.Linear(16, 1000)),
        be.Categorical(),
    )
    bound = task.bind(len(x), x[:4])
    network = Network(bound, *bound.new_member(0), ("3.weight", "3.bias"))
    plan = layouts(structure, bound.module, list(network.names))
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in network.params.items()}

    def epoch() -> None:
        for part in torch.arange(1000).split(500):
            loss = bound.mean_log_likelihood(leaves, {}, x[part], y[part])
            torch.autograd.grad(loss, list(leaves.values()))

    def curvature() -> None:
        data = ((x[part], y[part]) for part in torch.arange(1000).split(500))
        by_features.blocks(network, data, structure, plan)

    best = {}
    for run in (epoch, curvature, epoch, curvature):
        start = time.process_time()
        run()
        best[run] = min(best.get(run, 1e9), time.process_time() - start)
    assert best[curvature] < 15 * best[epoch]
