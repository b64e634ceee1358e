import pytest
import torch

import bayesemble as be
from bayesemble.methods.repulsion.density_scores import effective_dimension, principal_axes
from bayesemble.methods.repulsion.interacting import products
from bayesemble.methods.repulsion.kernels import RBF

GOLDEN = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)


def test_golden_values():
    """Particles -1, 0, 2 under a standard normal, whose score is -x."""
    forces = be.Stein(num_members=3, calibrate=False).forces(*products([GOLDEN]))
    phi = forces.driving @ -GOLDEN - forces.repelling @ GOLDEN
    expected = torch.tensor([0.10227115, 0.30455794, -0.65943454], dtype=torch.float64)
    torch.testing.assert_close(phi.squeeze(1), expected, atol=1e-6, rtol=0)


def test_it_is_the_double_sum_of_the_paper():
    generator = torch.Generator().manual_seed(0)
    x, score = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    forces = be.Stein(num_members=6, calibrate=False).forces(*products([x]))
    squared = torch.cdist(x, x).square()
    length = (squared.flatten().quantile(0.5) / (2 * torch.tensor(7.0).log())).sqrt()
    for i in range(6):
        naive = torch.zeros(4, dtype=torch.float64)
        for j in range(6):
            other = x[j].clone().requires_grad_()
            kernel = torch.exp(-(other - x[i]).square().sum() / (2 * length**2))
            naive += kernel.detach() * score[j] + torch.autograd.grad(kernel, other)[0]
        torch.testing.assert_close((forces.driving @ score - forces.repelling @ x)[i], naive / 6)


def test_calibrated_it_rests_where_the_score_keeps_steins_identity():
    """At rest K s = K A x; for scores s = A x with Stein's identity nothing moves."""
    x = torch.randn(8, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram, dim = products([x])
    forces = be.Stein(num_members=8).forces(gram, dim)
    between = RBF()(x)
    implied = torch.linalg.solve(between, 8 * forces.repelling)
    held = -float(((x - x.mean(0)) * (implied @ x)).sum(1).mean())
    assert held == pytest.approx(effective_dimension(principal_axes(gram, dim), dim), rel=1e-4)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("repulsion", [0.0, 0.3, 2.0])
def test_the_factor_acts_on_the_repulsion_alone(calibrate, repulsion):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = be.Stein(num_members=5, calibrate=calibrate).forces(*products([x]))
    found = be.Stein(num_members=5, calibrate=calibrate, repulsion=repulsion).forces(*products([x]))
    torch.testing.assert_close(found.repelling, repulsion * plain.repelling)
    assert torch.equal(found.driving, plain.driving)
