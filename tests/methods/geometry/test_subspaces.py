import math

import torch

from bayesemble.core import seeds
from bayesemble.diagnostics.convergence import effective_sample_size
from bayesemble.methods.geometry import subspaces
from bayesemble.task.priors import NormalPrior


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def flat(leaves: dict) -> torch.Tensor:
    return torch.cat([leaf.flatten(2) for leaf in leaves.values()], 2)


def test_principal_directions_are_those_of_a_singular_value_decomposition(generator):
    deviations = {"a": normal(generator, 2, 8, 3, 4), "b": normal(generator, 2, 8, 5)}
    found = flat(subspaces.principal(deviations, rank=6, dim=3))
    for member in range(2):
        _, sizes, rows = torch.linalg.svd(flat(deviations)[member, :6] / 5**0.5, full_matrices=False)
        wanted = sizes[:3, None] * rows[:3]
        signs = (found[member] * wanted).sum(1).sign()
        torch.testing.assert_close(found[member] * signs[:, None], wanted)


def test_random_directions_stand_at_right_angles_and_have_their_length(generator):
    like = {"a": torch.zeros(2, 3, 4, dtype=torch.float64), "b": torch.zeros(2, 5, dtype=torch.float64)}
    generators = [seeds.generator(0, place) for place in range(2)]
    found = flat(subspaces.random(like, 4, torch.tensor([2.0, 0.5]), generators))
    for member, length in enumerate((2.0, 0.5)):
        products = found[member] @ found[member].T
        torch.testing.assert_close(products, length**2 * torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-10)


def test_gradients_are_pulled_back_as_autograd_does(generator):
    centre = {"a": normal(generator, 2, 3), "b": normal(generator, 2, 2, 2), "without axes": normal(generator, 2)}
    basis = {name: normal(generator, 2, 4, *leaf.shape[1:]) for name, leaf in centre.items()}
    z = normal(generator, 2, 4).requires_grad_()
    weights = subspaces.weights_at(centre, basis, z)
    value = sum((leaf**3).sum() for leaf in weights.values())
    slopes = {name: 3 * leaf.detach() ** 2 for name, leaf in weights.items()}
    torch.testing.assert_close(subspaces.pulled_back(slopes, basis), torch.autograd.grad(value, z)[0])


def test_elliptical_slice_sampling_has_the_moments_of_a_gaussian_posterior():
    """A prior Normal(0, 1.5^2) times a Gaussian likelihood: 8 chains, within 4 Monte Carlo standard errors."""
    precision = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    shift = torch.tensor([1.0, -0.5], dtype=torch.float64)

    def log_density(z: torch.Tensor) -> torch.Tensor:
        return -torch.einsum("ni,ij,nj->n", z - shift, precision, z - shift) / 2

    covariance = torch.linalg.inv(precision + torch.eye(2, dtype=torch.float64) / 1.5**2)
    mean = covariance @ precision @ shift
    generators = [seeds.generator(1, place) for place in range(8)]
    draws = subspaces.elliptical_slice(log_density, torch.zeros(8, 2, dtype=torch.float64), 1.5, 700, generators)
    for values, wanted in (
        (draws, mean),
        ((draws - mean) ** 2, covariance.diagonal()),
        (((draws - mean)[..., :1] * (draws - mean)[..., 1:]), covariance[0, 1:]),
    ):
        size = effective_sample_size(values)
        error = values.flatten(0, 1).std(0) / size.sqrt()
        assert ((values.mean((0, 1)) - wanted).abs() < 4 * error).all()
        assert (error < 0.12 * wanted.abs().max()).all(), "tight enough to see a factor of 1.4 in a variance"


def test_chains_do_not_depend_on_one_another():
    def log_density(z: torch.Tensor) -> torch.Tensor:
        return -(z**4).sum(1)

    def run(places: range) -> torch.Tensor:
        generators = [seeds.generator(2, place) for place in places]
        return subspaces.elliptical_slice(log_density, torch.zeros(len(places), 2), 1.0, 20, generators)

    together = run(range(3))
    assert together.shape == (3, 20, 2)
    first = run(range(1))
    assert torch.equal(first[0, :1], together[0, :1])


def test_the_plane_of_a_curve_by_hand():
    """Ends (0, 0) and (2, 0) and a control point (1, 4): the middle of the curve is (1, 2), the centre (1, 2/3)."""
    points = {"w": torch.tensor([[[0.0, 0.0], [1.0, 4.0], [2.0, 0.0]]])}
    centre, basis = subspaces.of_curve(points)
    assert torch.allclose(centre["w"], torch.tensor([[1.0, 2 / 3]]))
    assert torch.allclose(basis["w"], torch.tensor([[[2 / math.sqrt(3), 0.0], [0.0, 2 / 1.5]]]))


def test_the_plane_of_a_curve_holds_the_curve():
    generator = torch.Generator().manual_seed(0)
    points = {"a": torch.randn(2, 3, 4, 3, generator=generator), "b": torch.randn(2, 3, 5, generator=generator)}
    centre, basis = subspaces.of_curve(points)
    products = subspaces.basis_products(basis)
    assert torch.allclose(products[:, 0, 1], torch.zeros(2, dtype=torch.float64), atol=1e-5)
    for place in (0, 2):
        away = {name: (leaf[:, place] - centre[name]).unsqueeze(1) for name, leaf in points.items()}
        joint = subspaces.basis_products({name: torch.cat([basis[name], away[name]], 1) for name in points})
        assert torch.linalg.eigvalsh(joint)[:, 0].abs().max() < 1e-4  # three vectors of one plane


def test_a_normal_prior_is_standard_in_its_own_coordinates():
    """log p(w(z)) = -|z|^2 / 2 + constant, for any z; the old centre is among them."""
    generator = torch.Generator().manual_seed(0)
    shapes, stds = {"a": (2, 3), "b": (4,)}, {"a": 0.5, "b": 2.0}
    centre = {n: torch.randn(2, *shape, generator=generator).double() for n, shape in shapes.items()}
    basis = {n: torch.randn(2, 3, *shape, generator=generator).double() for n, shape in shapes.items()}
    prior = NormalPrior(std=stds)
    found = subspaces.under_prior(centre, basis, lambda params: prior.gradient(params, stds))
    turned_centre, turned, begin = found
    again = subspaces.weights_at(turned_centre, turned, begin)
    for name in shapes:
        torch.testing.assert_close(again[name], centre[name])
    values = []
    for _ in range(4):
        z = torch.randn(2, 3, generator=generator).double()
        values.append(prior.log_prob(subspaces.weights_at(turned_centre, turned, z), stds) + z.square().sum(1) / 2)
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])
    flat = {n: torch.zeros_like(leaf) for n, leaf in basis.items()}
    assert subspaces.under_prior(centre, flat, lambda params: prior.gradient(params, stds)) is None
