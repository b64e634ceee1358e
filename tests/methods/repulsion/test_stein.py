import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.methods.repulsion.density_scores import effective_dimension, principal_axes
from bayesemble.methods.repulsion.interacting import products
from bayesemble.methods.repulsion.kernels import RBF, Laplace


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


GOLDEN = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)


def test_golden_values():
    """Particles -1, 0, 2 under a standard normal, whose score is -x."""
    forces = be.Stein(num_members=3, calibrate=False).forces(*products([GOLDEN]))
    phi = forces.driving @ -GOLDEN - forces.repelling @ GOLDEN
    expected = torch.tensor([0.10227115, 0.30455794, -0.65943454], dtype=torch.float64)
    torch.testing.assert_close(phi.squeeze(1), expected, atol=1e-6, rtol=0)


def test_with_the_linear_kernel_members_rest_with_the_mean_and_covariance_of_a_gaussian():
    """Closed form: x . y + 1 matches first and second moments (Liu & Wang 2018), for more members than coordinates."""
    root, x = normal(3, 3, seed=1), normal(7, 3, seed=2)
    covariance, mean = root @ root.T + torch.eye(3), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    white = torch.linalg.solve(torch.linalg.cholesky(torch.cov(x.T, correction=0)), (x - x.mean(0)).T)
    x = (torch.linalg.cholesky(covariance) @ white).T + mean
    stein = be.Stein(num_members=7, calibrate=False, kernel=be.kernels.Linear(offset=1.0))
    for size, rests in ((1.0, True), (1.1, False)):
        spread = mean + size * (x - mean)
        forces = stein.forces(*products([spread], centred=False))
        phi = forces.driving @ torch.linalg.solve(covariance, (mean - spread).T).T - forces.repelling @ spread
        assert (phi.abs().max() < 1e-12) == rests


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


def white(x: Tensor) -> tuple[Tensor, Tensor]:
    """Centred members in units of their own covariance C, in the directions they span, and C^-1 (its inverse there)."""
    centred = x - x.mean(0)
    inverse = torch.linalg.pinv(centred.T @ centred / len(x), rtol=1e-9, hermitian=True)
    values, vectors = torch.linalg.eigh(inverse)
    return centred @ vectors @ values.clamp(min=0).sqrt().diag(), inverse


@pytest.mark.parametrize(("count", "dim"), [(12, 3), (8, 30)])
@pytest.mark.parametrize("kind", [RBF, Laplace])
def test_calibrated_it_is_svgd_with_a_kernel_in_units_of_the_members_covariance(count, dim, kind):
    """K and G of the docstring with C written out; one factor on G, which makes K^-1 G keep Stein's identity."""
    x = normal(count, dim) @ normal(dim, dim, seed=1)
    gram, _ = products([x])
    forces = be.Stein(num_members=count, kernel=kind.__name__.lower()).forces(gram, dim)
    z, inverse = white(x)
    squared, kernel = torch.cdist(z, z).square(), kind()
    between, coupling = kernel.couple(squared, kernel.length(squared))
    torch.testing.assert_close(forces.driving, between / count)
    naive = torch.stack([-(coupling[i].unsqueeze(1) * (x[i] - x)).sum(0) @ inverse for i in range(count)])
    found = count * forces.repelling @ x
    factor = (found * naive).sum() / naive.square().sum()
    torch.testing.assert_close(found, factor * naive, rtol=1e-4, atol=1e-5 * float(found.abs().max()))
    implied = torch.linalg.solve(between, found)
    held = -float(((x - x.mean(0)) * implied).sum(1).mean())
    assert held == pytest.approx(float(effective_dimension(principal_axes(gram, dim), dim)), rel=1e-4)


def test_calibrated_it_follows_every_change_of_units_and_axes():
    """If w is measured as A w, gradients are A^-T g, and the force on them is A^-T phi."""
    x, score = normal(9, 3), normal(9, 3, seed=1)
    change = normal(3, 3, seed=2)

    def phi(positions: Tensor, gradients: Tensor) -> Tensor:
        forces = be.Stein(num_members=9).forces(*products([positions]))
        return forces.driving @ gradients - forces.repelling @ positions

    back = torch.linalg.inv(change)
    torch.testing.assert_close(phi(x @ change.T, score @ back), phi(x, score) @ back)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("repulsion", [0.0, 0.3, 2.0])
def test_the_factor_acts_on_the_repulsion_alone(calibrate, repulsion):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = be.Stein(num_members=5, calibrate=calibrate).forces(*products([x]))
    bound = be.Task(lambda: nn.Linear(7, 1), be.Gaussian()).bind(3, torch.ones(3, 7))
    method = be.Stein(num_members=5, calibrate=calibrate, repulsion=repulsion)
    found = method.forces_in(bound, *products([x]))
    torch.testing.assert_close(found.repelling, repulsion * plain.repelling)
    assert torch.equal(found.driving, plain.driving)


@pytest.mark.parametrize(("count", "dim", "even"), [(8, 30, True), (5, 4, True), (6, 4, False), (1, 3, False)])
def test_whitened_members_in_enough_coordinates_are_driven_by_each_other_alike(count, dim, even):
    """They are the corners of a regular simplex: one number on the diagonal of K, one elsewhere."""
    x = normal(count, dim)
    forces = be.Stein(num_members=count).forces(*products([x]))
    assert forces.even == even
    z, kernel = white(x)[0], RBF()
    squared = torch.cdist(z, z).square()
    between, _ = kernel.couple(squared, kernel.length(squared))
    torch.testing.assert_close(forces.driving, between / count)
    assert not be.Stein(num_members=count, calibrate=False).forces(*products([x])).even
    off = forces.driving[~torch.eye(count, dtype=torch.bool)]
    assert (len(off.unique()) == 1) == even


def test_members_in_one_place_feel_the_same():
    x = normal(5, 30)
    x[1] = x[0]
    forces = be.Stein(num_members=5).forces(*products([x]))
    push = forces.repelling @ x
    assert push.isfinite().all()
    torch.testing.assert_close(push[0], push[1])
