import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods.laplace.gaussian_blocks import (
    Block,
    Layout,
    best_scale,
    deviation,
    layouts,
    log_evidence,
    memory,
    pivots,
    spectrum,
    variance,
)
from helpers import norm_mlp, small_mlp


def test_layouts_and_their_splitting():
    module = be.Task(small_mlp, be.Categorical()).module
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert layouts("full", module, names) == [Layout(tuple(names), 1)]
    first, second = layouts("kron", module, names)
    assert (first.rows, second.rows) == (8, 2)
    shapes = {name: tuple(leaf.shape) for name, leaf in module.named_parameters()}
    matrix = torch.arange(18.0).reshape(2, 9)
    parts = second.split(matrix, shapes)
    assert torch.equal(parts["2.weight"], matrix[:, :8])
    assert torch.equal(parts["2.bias"], matrix[:, 8])


def test_pivots_are_the_spectrum_for_the_prior_as_it_is():
    """The same covariance and evidence; a curvature that swallows the prior is decomposed all the same."""
    shapes, precisions = {"weight": (1, 3), "bias": (1,)}, {"weight": 2.0, "bias": 0.5}
    right = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in (1.0, 1e20):
        block = Block(Layout(("weight", "bias"), 1), None, size * right @ right.T)
        one, other = pivots(block, shapes, precisions), spectrum(block, shapes, precisions)
        roots = [(found.factors(1.0, 0.5)["std"] * found.right) for found in (one, other)]
        torch.testing.assert_close(roots[0] @ roots[0].T, roots[1] @ roots[1].T)
        assert log_evidence(0, one.values, 1, 1) == pytest.approx(log_evidence(0, other.values, 1, 1))


@pytest.mark.parametrize("kind", ["full", "kron", "diag"])
def test_the_variance_of_a_sum_is_that_of_the_deviations(kind):
    generator = torch.Generator().manual_seed(0)
    rows, columns = (3, 2) if kind == "kron" else (1, 6)
    sizes = {"std": (rows, columns), "right": (columns, columns), "left": (rows, rows)}
    kept = {"full": ("std", "right"), "kron": ("std", "right", "left"), "diag": ("std",)}[kind]
    factors = {name: torch.randn(sizes[name], generator=generator).double() for name in kept}
    slopes = torch.randn(4, rows, columns, generator=generator).double()
    unit = torch.eye(6).double().reshape(6, rows, columns)
    root = torch.stack([(slopes * deviation(factors, one)).sum((1, 2)) for one in unit], dim=1)
    torch.testing.assert_close(variance(factors, slopes), root.square().sum(1))


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_spectrum_gives_covariance_and_determinant(scale):
    """Against precision = left (x) right + c I (x) diag(d), built out."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (2, 4))
    block = Block(Layout(("weight", "bias"), 2), left @ left.T, right @ right.T)
    shapes, precisions = {"weight": (2, 3), "bias": (2,)}, {"weight": 2.0, "bias": 0.5}
    columns = torch.tensor([2.0, 2.0, 2.0, 0.5], dtype=torch.float64)
    prior = torch.kron(torch.eye(2, dtype=torch.float64), torch.diag(columns))
    precision = torch.kron(block.left, block.right) + scale * prior
    found = spectrum(block, shapes, precisions)
    factors = found.factors(scale, temperature=0.5)
    root = torch.stack([deviation(factors, unit.reshape(2, 4)).flatten() for unit in torch.eye(8).double()], 1)
    torch.testing.assert_close(root @ root.T, 0.5 * precision.inverse())
    weights = torch.arange(8.0, dtype=torch.float64)
    size = float(weights @ prior @ weights)
    gaussian = torch.distributions.MultivariateNormal
    laplace = -3.0 + gaussian(torch.zeros(8).double(), precision_matrix=scale * prior).log_prob(weights)
    laplace = laplace + 4 * math.log(2 * math.pi) - torch.logdet(precision) / 2
    assert log_evidence(-3.0, found.values, size, scale) == pytest.approx(laplace.item())


def test_the_best_scale_has_the_largest_evidence_and_stays_finite():
    values = torch.tensor([0.0, 0.1, 5.0, 300.0], dtype=torch.float64)
    best = best_scale(values, 2.0)
    around = [log_evidence(0.0, values, 2.0, best * step) for step in (0.99, 1.0, 1.01)]
    assert max(around) == around[1]
    assert 0 < best_scale(torch.zeros(3).double(), 1.0) < 1e-11
    assert 1e11 < best_scale(values, 0.0) < math.inf


def test_memory_grows_as_it_should():
    task = be.Task(small_mlp, be.Categorical())
    names = list(task.shapes)

    def need(kind: str, members: int = 1) -> int:
        return memory(kind, layouts(kind, task.module, names), task.shapes, members, 4)

    assert need("diag") < need("kron") < need("full")
    assert need("full", 11) - need("full") == 10 * 4 * (58**2 + 58)
    own = (8 * 5 + 8**2 + 5**2, 2 * 9 + 2**2 + 9**2)  # of the two layers: the coordinates and both sides
    assert need("kron", 3) == 8 * (sum(own) + 3 * own[0]) + 3 * 4 * sum(own)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (norm_mlp, "'1' is BatchNorm1d"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))), "'0' is"),
    ],
)
def test_layers_without_a_product_are_named(model, sentence):
    with scoped(0):
        module = model()
    with pytest.raises(SettingError, match=sentence):
        layouts("kron", module, [name for name, _ in module.named_parameters()])


def test_a_tied_weight_has_no_product():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.words.weight

    with scoped(0), pytest.raises(SettingError, match="shares"):
        layouts("kron", Tied(), ["words.weight"])
