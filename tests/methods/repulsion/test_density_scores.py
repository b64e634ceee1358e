import math
from functools import partial

import pytest
import torch

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.methods.repulsion.density_scores import (
    ESTIMATORS,
    _spectral,
    calibrate,
    effective_dimension,
    kde,
    laplacian,
    principal_axes,
    score_matrix,
    sge,
    ssge,
    whitened,
)
from bayesemble.methods.repulsion.kernels import RBF, Laplace, distances_of_gram, squared_distances

PUBLIC = {"kde": kde, "sge": sge, "ssge": ssge}
over_estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
over_functions = pytest.mark.parametrize("estimate", PUBLIC.values())
over_kernels = pytest.mark.parametrize("kernel", [RBF(), Laplace(), RBF(1.3), Laplace(0.8)], ids=str)


def normal(*shape, name="samples", seed=0):
    return torch.randn(*shape, generator=seeds.generator(seed, name), dtype=torch.float64)


def products_of(x):
    centred = x - x.mean(0)
    return centred @ centred.T


def close(one, other, tolerance=1e-8):
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def ridge(count, eta):
    return eta * torch.eye(count, dtype=torch.float64)


# Naive twins


def density_sum(kernel, x):
    """z -> sum over m of weight_m k(z, x_m), written out; the bandwidth is that of the samples."""
    length = float(kernel.length(squared_distances(x, x)))

    def value(z, weights=None):
        distances = torch.stack([(z - sample).norm() for sample in x])
        laplace = isinstance(kernel, Laplace)
        each = torch.exp(-distances / length if laplace else -(distances**2) / (2 * length**2))
        return each.sum() if weights is None else weights @ each

    return value


def slope(function, z):
    z = z.detach().requires_grad_()
    return torch.autograd.grad(function(z), z)[0]


def naive_sums(kernel, x):
    """G_i = sum_j grad_1 k(x_i, x_j)."""
    return torch.stack([slope(density_sum(kernel, x), sample) for sample in x])


def naive_matrix(kernel, x):
    value = density_sum(kernel, x)
    return torch.stack([torch.stack([value(a, weights) for weights in ridge(len(x), 1.0)]) for a in x])


def naive_ssge(x, kernel, eta, at, threshold):
    """Eigenpairs from the largest on, until they make up the threshold; then the sums of the docstring."""
    value, result, share = density_sum(kernel, x), torch.zeros_like(at), 0.0
    values, vectors = torch.linalg.eigh(naive_matrix(kernel, x) + ridge(len(x), eta))
    for eigenvalue, vector in zip(values.flip(0), vectors.T.flip(0), strict=True):
        psi = partial(value, weights=math.sqrt(len(x)) / eigenvalue * vector)
        beta = -torch.stack([slope(psi, sample) for sample in x]).mean(0)
        result += torch.stack([beta * psi(z) for z in at])
        share += float(eigenvalue / values.sum())
        if threshold is not None and share >= threshold:
            break
    return result


# Values


def test_golden_values_of_three_particles():
    x = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    squared = squared_distances(x, x)
    coupling = RBF().couple(squared, RBF().length(squared))[1]
    expected = {
        "sums": (laplacian(coupling) @ x, [0.69317891, -0.67148633, -0.02169258]),
        "kde": (kde(x), [0.55454144, -0.53551558, -0.02160809]),
        "sge": (sge(x, eta=0.01), [0.90639592, -0.88912360, -0.01804247]),
        "ssge": (ssge(x, eta=0.01), [0.89451489, -0.87738006, -0.01790921]),
    }
    for name, (found, numbers) in expected.items():
        assert found.flatten().tolist() == pytest.approx(numbers, abs=1e-6), name


@over_kernels
def test_the_sums_of_kernel_gradients_are_those_of_a_loop_and_add_up_to_zero(kernel):
    x = normal(6, 3)
    squared = squared_distances(x, x)
    sums = laplacian(kernel.couple(squared, kernel.length(squared))[1]) @ x
    close(sums, naive_sums(kernel, x), 1e-10)
    close(sums.sum(0), torch.zeros(3, dtype=torch.float64), 1e-10)


@over_kernels
def test_kde_is_the_gradient_of_the_log_of_the_kernel_density(kernel):
    x = normal(6, 3)
    value = density_sum(kernel, x)
    close(kde(x, kernel), torch.stack([slope(lambda z: value(z).log(), sample) for sample in x]), 1e-10)


@over_kernels
@pytest.mark.parametrize("eta", [0.01, 0.5])
def test_sge_solves_the_ridged_system(kernel, eta):
    x = normal(6, 3)
    inverse = torch.linalg.inv(naive_matrix(kernel, x) + ridge(6, eta))
    close(sge(x, kernel, eta), inverse @ naive_sums(kernel, x), 1e-10)


@over_kernels
@pytest.mark.parametrize("threshold", [None, 0.99, 0.6, 1e-6])
def test_ssge_is_the_sum_over_eigenpairs_at_the_samples_and_elsewhere(kernel, threshold):
    x, elsewhere = normal(6, 3), 2 * normal(4, 3, name="elsewhere")
    found = ssge(x, kernel, 0.05, threshold)
    close(found, naive_ssge(x, kernel, 0.05, x, threshold))
    close(found, ssge(x, kernel, 0.05, threshold, at=x), 1e-12)
    found = ssge(x, kernel, 0.05, threshold, at=elsewhere)
    close(found, naive_ssge(x, kernel, 0.05, elsewhere, threshold))


@pytest.mark.parametrize(("threshold", "kept"), [(0.49, 1), (0.5, 1), (0.51, 2), (0.75, 2), (1.0, 3), (None, 3)])
def test_eigenpairs_are_kept_up_to_the_one_that_reaches_the_threshold(threshold, kept):
    between = torch.diag(torch.tensor([0.5, 1.5, 0.5], dtype=torch.float64))  # with the ridge 1, 2, 1: half of 4 is 2
    assert torch.linalg.matrix_rank(_spectral(between, 0.5, threshold)) == kept


def test_the_threshold_keeps_the_eigenvalue_that_crosses_it_and_never_none():
    x = normal(5, 2)
    values = torch.linalg.eigvalsh(RBF()(x) + ridge(5, 0.01)).flip(0)
    shares = (values.cumsum(0) / values.sum()).tolist()

    def kept(threshold):
        """As many as the matrix has rank, which is at most 4, since its rows sum to zero."""
        return int(torch.linalg.matrix_rank(score_matrix(squared_distances(x, x), "ssge", RBF(), 0.01, threshold)))

    assert kept(1e-12) == 1
    assert [kept(share - 1e-6) for share in shares] == [1, 2, 3, 4, 4]
    assert [kept(share + 1e-6) for share in shares[:4]] == [2, 3, 4, 4]
    close(ssge(x, threshold=1.0), ssge(x), 1e-10)


@over_kernels
def test_ssge_with_all_pairs_is_a_closed_form_and_tends_to_sge(kernel):
    x = normal(6, 3)
    matrix, sums = naive_matrix(kernel, x), naive_sums(kernel, x)
    inverse = torch.linalg.inv(matrix + ridge(6, 0.1))
    close(ssge(x, kernel, 0.1), matrix @ inverse @ inverse @ sums, 1e-10)
    distances = [float((ssge(x, kernel, eta) - sge(x, kernel, eta)).norm()) for eta in (0.1, 1e-3, 1e-5, 1e-7)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-5 * float(sge(x, kernel).norm())


@over_estimators
def test_the_matrix_of_an_estimator_gives_what_its_function_gives(estimator):
    x = normal(6, 3)
    matrix = score_matrix(squared_distances(x, x), estimator, Laplace(), 0.05)
    settings = {} if estimator == "kde" else {"eta": 0.05}
    close(matrix @ x, PUBLIC[estimator](x, Laplace(), **settings), 1e-12)
    close(matrix.sum(1), torch.zeros(6, dtype=torch.float64), 1e-12)


# Identities


@over_functions
@over_kernels
def test_permutation_translation_and_rotation_go_through(estimate, kernel):
    x = normal(7, 3)
    found = estimate(x, kernel)
    order = torch.randperm(7, generator=seeds.generator(0, "order"))
    rotation = torch.linalg.qr(normal(3, 3, name="rotation")).Q
    close(estimate(x[order], kernel), found[order])
    close(estimate(x + 100 * normal(3, name="shift"), kernel), found)
    close(estimate(x @ rotation.T, kernel), found @ rotation.T)


@over_functions
@pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=str)
def test_by_the_median_rule_the_score_has_one_over_the_units_of_the_samples(estimate, kernel):
    x = normal(7, 3)
    close(estimate(50 * x, kernel), estimate(x, kernel) / 50)


@over_functions
@over_kernels
def test_one_sample_has_no_score(estimate, kernel):
    assert estimate(normal(1, 3), kernel).tolist() == [[0, 0, 0]]


@over_functions
@over_kernels
def test_equal_samples_have_no_score_and_nothing_is_nan(estimate, kernel):
    assert (estimate(torch.zeros(5, 3, dtype=torch.float64), kernel) == 0).all()
    assert estimate(normal(1, 3).expand(5, 3), kernel).isfinite().all()


@over_functions
def test_equal_samples_have_no_score_wherever_they_are(estimate):
    found = estimate(1000 * normal(1, 3).expand(5, 3))
    close(found, torch.zeros(5, 3, dtype=torch.float64), 1e-6)


@over_functions
@over_kernels
def test_more_than_half_equal_is_finite(estimate, kernel):
    x = torch.cat([normal(1, 3).expand(5, 3), normal(3, 3, name="others")])
    assert estimate(x, kernel).isfinite().all()


# Calibration


@pytest.mark.parametrize("dim", [3, 500])
@pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=str)
@over_estimators
def test_calibrated_estimates_keep_steins_identity(estimator, kernel, dim):
    x = 3 + 2 * normal(10, dim)
    gram = products_of(x)
    raw = score_matrix(squared_distances(x, x), estimator, kernel)
    matrix = calibrate(raw, gram, dim)
    stein = -((x - x.mean(0)) * (matrix @ x)).sum(1).mean()
    assert float(stein) == pytest.approx(dim, rel=1e-9)
    ratio = (matrix / raw).flatten()
    close(ratio, ratio[:1].expand(100), 1e-10)


def test_uncalibrated_kde_falls_short_in_many_dimensions_as_documented():
    count, dim = 100, 1000
    for seed in range(3):
        x = normal(count, dim, seed=seed)
        stein = -((x - x.mean(0)) * kde(x)).sum(1).mean()
        assert float(stein) / dim == pytest.approx(math.log(count + 1) / (2 * dim), rel=0.04)


@over_estimators
def test_nothing_to_calibrate_gives_zero(estimator):
    for x in (normal(1, 3), normal(1, 3).expand(4, 3)):
        matrix = score_matrix(squared_distances(x, x), estimator, RBF())
        assert (calibrate(matrix, products_of(x), 3) == 0).all()


# Whitening


def whitened_estimate(x, estimator="kde", kernel=None):
    """The whitened and calibrated estimate, as methods put it together."""
    gram, dim = products_of(x), x.shape[1]
    inner, back = whitened(principal_axes(gram, dim))
    matrix = score_matrix(distances_of_gram(inner), estimator, kernel or RBF())
    return calibrate(matrix @ back, gram, dim) @ x


def test_whitened_products_are_those_of_samples_divided_by_the_root_of_their_covariance():
    x = normal(9, 3) @ normal(3, 3, name="mix")
    centred = x - x.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / 9)
    root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    white = centred @ root
    inner, back = whitened(principal_axes(products_of(x), 3))
    close(inner, white @ white.T)
    close(back @ x, white @ root)  # the score of the samples is that of the white ones times the root


@over_estimators
@pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=str)
@pytest.mark.parametrize(("count", "dim"), [(5, 3), (12, 3), (8, 1)])
def test_whitened_and_calibrated_estimates_follow_every_change_of_units_and_axes(estimator, kernel, count, dim):
    x = normal(count, dim)
    change, shift = normal(dim, dim, name="change"), 10 * normal(dim, name="shift")
    found = whitened_estimate(x, estimator, kernel)
    moved = whitened_estimate(x @ change.T + shift, estimator, kernel)
    close(moved, found @ torch.linalg.inv(change))


@over_estimators
@pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=str)
@pytest.mark.parametrize(("count", "dim"), [(2, 1), (2, 50), (4, 3), (6, 40)])
def test_few_whitened_samples_are_a_simplex_whatever_the_estimator(estimator, kernel, count, dim):
    """Samples that span as many directions as they can are all equally far apart once whitened."""
    x = normal(count, dim) * torch.linspace(0.5, 3, dim, dtype=torch.float64)
    centred = x - x.mean(0)
    expected = -(dim / (count - 1)) * count * torch.linalg.pinv(centred @ centred.T, rtol=1e-10) @ centred
    close(whitened_estimate(x, estimator, kernel), expected)


def test_the_whitened_estimate_points_along_the_true_score_of_a_normal_density():
    scales = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    x = normal(200, 3) * scales
    true = -x / scales**2
    found = whitened_estimate(x)
    for axis in range(3):
        assert float(torch.corrcoef(torch.stack([found[:, axis], true[:, axis]]))[0, 1]) > 0.85


def test_directions_in_which_samples_hardly_differ_are_not_pushed_along_without_bound():
    x = normal(9, 2) * torch.tensor([1.0, 1e-9], dtype=torch.float64)
    gram = products_of(x)
    bound = 9 / (1e-6 * torch.linalg.eigvalsh(gram).max())
    assert torch.linalg.eigvalsh(whitened(principal_axes(gram, 2))[1]).max() <= bound * (1 + 1e-9)


def test_one_whitened_sample_has_no_score():
    assert whitened_estimate(normal(1, 3)).tolist() == [[0, 0, 0]]


@over_estimators
def test_equal_whitened_samples_have_no_score(estimator):
    assert (whitened_estimate(normal(1, 3).expand(4, 3), estimator) == 0).all()


@over_estimators
@pytest.mark.parametrize("case", ["two of three are equal", "all on a line"])
def test_whitened_samples_that_span_fewer_directions_keep_their_translation(estimator, case):
    x = normal(3, 5)[[0, 0, 1]] if case == "two of three are equal" else normal(6, 1) * normal(3, name="line")
    close(whitened_estimate(x + 10, estimator), whitened_estimate(x, estimator), 1e-6)


# How many coordinates samples stand for


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_effective_dimension_is_between_rank_and_dimension_and_that_of_a_loop(share):
    for count, dim in ((6, 3), (6, 5), (6, 40), (2, 40)):
        x = normal(count, dim) * torch.logspace(0, 1, dim, dtype=torch.float64)
        found, rank = effective_dimension(principal_axes(products_of(x), dim), dim, share), min(count - 1, dim)
        values = torch.linalg.svdvals(x - x.mean(0))[:rank] ** 2
        assert found == pytest.approx(rank + rank * share * (dim - rank) * float(values[-1] / values.sum()), rel=1e-9)
        assert rank - 1e-9 <= found <= dim + 1e-9
        assert dim > rank or found == pytest.approx(dim)


def test_samples_that_spread_alike_in_all_directions_stand_for_all_coordinates():
    simplex = torch.eye(5, dtype=torch.float64)
    assert effective_dimension(principal_axes(products_of(simplex), 100), 100, share=1.0) == pytest.approx(100)


def test_a_single_sample_stands_for_nothing():
    assert effective_dimension(principal_axes(torch.zeros(1, 1, dtype=torch.float64), 7), 7) == 0


# Statistics


def test_slopes_of_the_estimates_for_normal_draws():
    """The true score is -x; kde smooths the density, so its slope is flatter."""
    found = []
    for seed in range(8):
        x = normal(100, 1, seed=seed)
        estimates = torch.cat([kde(x), ssge(x, threshold=0.99)], dim=1)
        found.append((x - x.mean()).T @ estimates / ((x - x.mean()) ** 2).sum())
    smooth, sharp = torch.cat(found).unbind(1)
    assert (smooth > sharp).all()
    assert -0.95 < smooth.mean() < -0.65
    assert -1.15 < sharp.mean() < -0.85


# Refusals


@over_functions
@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4)], ids=str)
def test_samples_are_a_matrix(estimate, shape):
    with pytest.raises(SettingError, match=r"samples are a matrix \(member, dim\), got shape \("):
        estimate(torch.zeros(shape))


@pytest.mark.parametrize("estimate", [sge, ssge])
@pytest.mark.parametrize("eta", [-0.1, math.nan])
def test_a_negative_ridge_is_refused(estimate, eta):
    with pytest.raises(SettingError, match=f"eta is a positive ridge, got {eta}"):
        estimate(torch.zeros(3, 2), eta=eta)


@pytest.mark.parametrize("threshold", [0, -0.5, 1.5, math.nan])
def test_a_threshold_is_a_share(threshold):
    with pytest.raises(SettingError, match=rf"threshold is a share in \(0, 1\] or None, got {threshold}"):
        ssge(torch.zeros(3, 2), threshold=threshold)


def test_samples_that_coincide_span_nothing():
    found = principal_axes(torch.zeros(4, 4, dtype=torch.float64), 7)
    assert not found.values.any()
    assert not found.vectors.any()
    assert effective_dimension(found, 7) == 0
