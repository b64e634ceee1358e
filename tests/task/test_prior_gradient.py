import pytest
import torch

from bayesemble.task.prior_gradient import add_gradient
from bayesemble.task.priors import LaplacePrior, NormalPrior, VaguePrior

SHAPES = {"weight": (4, 3), "bias": (4,)}


def stacked(seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(5, *shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("prior", [NormalPrior(0.7), VaguePrior(), LaplacePrior(0.7)], ids=str)
@pytest.mark.parametrize("centred_elsewhere", [False, True])
@pytest.mark.parametrize("factor", [None, 0.3, torch.tensor(0.3), torch.linspace(0.1, 2, 5)], ids=str)
@pytest.mark.parametrize("block", [1, 24, 1 << 20])
def test_it_is_the_gradient_of_each_member_by_itself(prior, centred_elsewhere, factor, block):
    params, found, center = stacked(0), stacked(1), stacked(2)
    scales = prior.scales(SHAPES)
    expected = {name: leaf.clone() for name, leaf in found.items()}
    for member in range(5):
        times = 1.0 if factor is None else float(factor[member] if getattr(factor, "ndim", 0) else factor)
        for name, leaf in expected.items():
            own = params[name][member] - (center[name][member] if centred_elsewhere else 0)
            leaf[member] += times * prior.gradient({name: own}, scales)[name] / 0.6
    add_gradient(prior, scales, found, params, center if centred_elsewhere else None, factor, 0.6, block)
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name], leaf)
