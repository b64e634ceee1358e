import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics import crps, crps_of_mixtures, energy_score, nll, pinball, weighted_crps
from bayesemble.predictive import (
    GaussianMixturePredictive,
    LogNormalPredictive,
    NormalPredictive,
    PoissonPredictive,
    Predictive,
    QuantilePredictive,
    StudentPredictive,
)
from bayesemble.task.likelihoods import GaussianMixture, HeteroscedasticStudent
from helpers import oracle, poissons, weighted_normals
from mixtures import ROW_WEIGHTS, random_normals, random_poissons, repeated

# --- CRPS of normals ---


def integrated_crps(predictive, targets, family=scipy.stats.norm):
    """The integral of (F(x) - [x >= y])^2, row by row, by quadrature."""
    total = 0.0
    for row, y in enumerate(targets.tolist()):
        weights, means, stds = predictive.weights.numpy(), predictive.means[:, row].numpy(), predictive.stds[:, row]
        members = family(means, stds.numpy())
        below = scipy.integrate.quad(lambda x, w=weights, n=members: (w @ n.cdf(x)) ** 2, -np.inf, y, limit=200)[0]
        above = scipy.integrate.quad(lambda x, w=weights, n=members: (w @ n.sf(x)) ** 2, y, np.inf, limit=200)[0]
        total += below + above
    return total / len(targets)


@pytest.mark.parametrize("members", [1, 2, 5])
def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions(members, generator):
    predictive, targets = weighted_normals(generator, members)
    assert crps(predictive, targets) == pytest.approx(integrated_crps(predictive, targets), abs=1e-6)


def test_crps_of_one_normal_is_its_closed_form(generator):
    predictive, targets = weighted_normals(generator, members=1, rows=50)
    score = ((targets - predictive.means[0]) / predictive.stds[0]).numpy()
    normal = scipy.stats.norm()
    expected = score * (2 * normal.cdf(score) - 1) + 2 * normal.pdf(score) - 1 / math.sqrt(math.pi)
    assert crps(predictive, targets) == pytest.approx((predictive.stds[0].numpy() * expected).mean(), abs=1e-12)


def test_crps_is_that_of_many_draws(generator):
    predictive, targets = weighted_normals(generator, rows=6)
    draws = predictive.sample(1000, generator).T
    theirs = oracle("torchmetrics.functional.regression").continuous_ranked_probability_score(draws, targets)
    assert crps(predictive, targets) == pytest.approx(theirs.item(), rel=0.05)


def test_crps_of_members_without_doubt_is_that_of_their_means_as_draws(generator):
    means = torch.randn(7, 30, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, generator=generator, dtype=torch.float64)
    theirs = oracle("torchmetrics.functional.regression").continuous_ranked_probability_score(means.T, targets)
    assert crps(Predictive.from_normal(means, 1e-12), targets) == pytest.approx(theirs.item(), abs=1e-6)
    no_noise = NormalPredictive(torch.full((7,), 1 / 7), means, torch.zeros_like(means))
    assert crps(no_noise, targets) == pytest.approx(theirs.item(), abs=1e-6)


def test_crps_of_one_certain_member_is_the_absolute_error_also_where_it_is_none():
    assert crps(Predictive.from_normal([1.0, 2.0], 1e-200), [1.0, 5.0]) == pytest.approx(1.5)


def test_crps_respects_the_weights(generator):
    predictive, targets = weighted_normals(generator)
    unweighted = predictive.reweight([1, 1, 1])
    twice = Predictive.from_normal(unweighted.means[[0, 1, 1, 2]], unweighted.stds[[0, 1, 1, 2]])
    assert crps(unweighted.reweight([1, 2, 1]), targets) == pytest.approx(crps(twice, targets))
    assert crps(unweighted.reweight([0, 1, 0]), targets) == pytest.approx(crps(unweighted.member(1), targets))
    same = Predictive.from_normal(unweighted.means[[0, 0, 0]], unweighted.stds[[0, 0, 0]])
    assert crps(same, targets) == pytest.approx(crps(unweighted.member(0), targets))


def test_crps_is_twice_the_mean_cost_of_all_quantiles(generator):
    predictive, targets = weighted_normals(generator)
    levels = (np.arange(100) + 0.5) / 100
    assert crps(predictive, targets) == pytest.approx(
        2 * np.mean([pinball(predictive, targets, q) for q in levels]), 1e-2
    )


def test_crps_in_small_pieces_is_the_same(generator, monkeypatch):
    predictive, targets = weighted_normals(generator, rows=50)
    counts = PoissonPredictive(predictive.weights, predictive.means.abs())
    whole = crps(predictive, targets), crps(counts, targets.abs().round())
    monkeypatch.setattr(crps_of_mixtures, "CELLS_AT_ONCE", 20)
    assert (crps(predictive, targets), crps(counts, targets.abs().round())) == pytest.approx(whole, rel=1e-12)


def test_crps_of_a_thousand_members_holds_no_square_of_them_per_row(generator, monkeypatch):
    sizes = []
    size = crps_of_mixtures._expected_size
    monkeypatch.setattr(
        crps_of_mixtures, "_expected_size", lambda mean, std: sizes.append(mean.numel()) or size(mean, std)
    )
    predictive, targets = weighted_normals(generator, members=1000, rows=40)
    assert crps(predictive, targets) > 0
    assert max(sizes) == 1000 * 40


def test_crps_of_several_outputs_is_the_mean_of_theirs(generator):
    means, targets = torch.randn(3, 20, 2, generator=generator), torch.randn(20, 2, generator=generator)
    each = [crps(Predictive.from_normal(means[..., i], 0.5), targets[:, i]) for i in range(2)]
    assert crps(Predictive.from_normal(means, 0.5), targets) == pytest.approx(np.mean(each))


def test_crps_grows_linearly_with_a_distance_that_the_nll_squares():
    predictive = Predictive.from_normal([0.0], 1.0)
    assert crps(predictive, [2e6]) / crps(predictive, [1e6]) == pytest.approx(2, rel=1e-5)
    assert nll(predictive, [2e6]) / nll(predictive, [1e6]) == pytest.approx(4, rel=1e-5)


def test_crps_of_single_precision_is_computed_in_double(generator):
    predictive, targets = weighted_normals(generator)
    single = NormalPredictive(predictive.weights.float(), predictive.means.float(), predictive.stds.float())
    assert crps(single, targets) == pytest.approx(crps(predictive, targets), rel=1e-6)


def test_crps_of_classes_is_refused():
    with pytest.raises(SettingError, match="the CRPS is for real numbers and counts, got ClassPredictive"):
        crps(Predictive.from_probs([[0.5, 0.5]]), [0])


def test_pieces_have_as_many_rows_and_counts_as_cells_allow(generator, monkeypatch):
    normals, targets = weighted_normals(generator, members=3, rows=7)
    counts, pieces = PoissonPredictive(normals.weights, normals.means.abs()), []
    normal, window = crps_of_mixtures._normal_crps, crps_of_mixtures._window_sum
    for name, recorded in {
        "_normal_crps": lambda one, values: pieces.append(len(values)) or normal(one, values),
        "_window_sum": lambda *given: pieces.append(len(given[2])) or window(*given),
    }.items():
        monkeypatch.setattr(crps_of_mixtures, name, recorded)
    monkeypatch.setattr(crps_of_mixtures, "CELLS_AT_ONCE", 4 * 3)
    crps(normals, targets)
    assert pieces == [4, 3]
    monkeypatch.setattr(crps_of_mixtures, "CELLS_AT_ONCE", 4 * 64 * 3)
    crps(counts, targets.abs().round())
    assert pieces[2:] == [4, 3]
    monkeypatch.setattr(crps_of_mixtures, "CELLS_AT_ONCE", 10 * 3)
    crps(counts, targets.abs().round())
    assert pieces[4:] == [1] * 7


# --- CRPS of heavy tails ---


def weighted_students(generator, degrees, members=3, rows=12):
    normals, targets = weighted_normals(generator, members, rows)
    return StudentPredictive(normals.weights, normals.means, normals.stds, degrees), targets


@pytest.mark.parametrize("degrees", [3, 4, 9])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_crps_of_heavy_tails_is_the_integral(members, degrees, generator):
    predictive, targets = weighted_students(generator, degrees, members)
    scale = math.sqrt((degrees - 2) / degrees)
    expected = integrated_crps(predictive, targets, lambda mean, std: scipy.stats.t(degrees, mean, scale * std))
    assert crps(predictive, targets) == pytest.approx(expected, rel=1e-5)


def test_crps_of_almost_normal_tails_is_nearly_the_closed_form_of_the_normal(generator):
    normals, targets = weighted_normals(generator)
    students = StudentPredictive(normals.weights, normals.means, normals.stds, 301)
    assert crps(students, targets) == pytest.approx(crps(normals, targets), rel=1e-2)


@pytest.mark.parametrize("spread", [1e-3, 1e3])
def test_crps_of_heavy_tails_with_members_and_targets_far_apart(spread):
    means, stds = torch.tensor([[0.0], [5.0]]).double(), torch.full((2, 1), spread).double()
    predictive, targets = StudentPredictive(torch.tensor([0.3, 0.7]).double(), means, stds, 4), torch.tensor([-90.0])
    scale = math.sqrt(0.5)
    expected = integrated_crps(predictive, targets, lambda mean, std: scipy.stats.t(4, mean, scale * std))
    assert crps(predictive, targets) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("degrees", [3, 9])
def test_tails_beyond_the_knots_are_integrated_too(degrees, generator, monkeypatch):
    """With knots close to the members, what lies beyond them counts."""
    monkeypatch.setattr(crps_of_mixtures, "_KNOTS_IN_STDS", (-1.5, -0.5, 0.0, 0.5, 1.5))
    predictive, targets = weighted_students(generator, degrees, members=1)
    scale = math.sqrt((degrees - 2) / degrees)
    near = predictive.means[0] + 0.1 * targets.sign()
    expected = integrated_crps(predictive, near, lambda mean, std: scipy.stats.t(degrees, mean, scale * std))
    assert crps(predictive, near) == pytest.approx(expected, rel=1e-4)


def test_crps_of_heavy_tails_in_small_pieces_is_the_same(generator, monkeypatch):
    predictive, targets = weighted_students(generator, 4)
    whole = crps(predictive, targets)
    integrated, rows = crps_of_mixtures._integrated_crps, []

    def counted(one, knots, values):
        rows.append(len(values))
        return integrated(one, knots, values)

    monkeypatch.setattr(crps_of_mixtures, "_integrated_crps", counted)
    knots = len(crps_of_mixtures._KNOTS_IN_STDS) * predictive.num_members + 2  # of each row: those of members, and ends
    monkeypatch.setattr(crps_of_mixtures, "CELLS_AT_ONCE", 2 * knots * crps_of_mixtures._NODES_BETWEEN_KNOTS)
    assert crps(predictive, targets) == pytest.approx(whole, rel=1e-12)
    assert max(rows) == 2


# --- CRPS of counts ---


def naive_count_crps(predictive, counts, terms):
    """The sum of (F(k) - [k >= y])^2 over the first counts, with the F of scipy."""
    grid = np.arange(terms)[:, None]
    members = [scipy.stats.poisson.cdf(grid, rates.numpy()) for rates in predictive.rates]
    cdf = np.tensordot(predictive.weights.numpy(), np.stack(members), axes=1)
    return ((cdf - (grid >= np.asarray(counts))) ** 2).sum(0).mean()


@pytest.mark.parametrize("scale", [0.01, 3.0, 200.0])
def test_crps_of_counts_is_the_sum_over_many_counts(scale, generator):
    rates = scale * torch.randn(4, 30, generator=generator, dtype=torch.float64).exp()
    counts = torch.poisson(rates[0] * torch.rand(30, generator=generator).double() * 3, generator=generator)
    predictive = poissons(rates, [1.0, 2.0, 3.0, 4.0])
    assert crps(predictive, counts) == pytest.approx(naive_count_crps(predictive, counts, 20_000), rel=1e-8)


@pytest.mark.parametrize(("rate", "count"), [(0.3, 0), (4.0, 9), (2500.0, 2400)])
def test_crps_of_one_poisson_is_the_expected_distance_less_half_that_of_two_draws(rate, count):
    grid = np.arange(int(rate + 20 * math.sqrt(rate) + 50))
    distance = np.abs(grid - count) @ scipy.stats.poisson.pmf(grid, rate)
    # E|X - X'| of two draws, the absolute value of a Skellam variable, in closed form.
    difference = 2 * rate * scipy.special.ive([0, 1], 2 * rate).sum()
    assert crps(poissons([[rate]]), [count]) == pytest.approx(distance - difference / 2, rel=1e-8)


def test_crps_of_counts_far_from_all_rates_is_their_distance():
    predictive = poissons([[1000.0], [1000.0]])
    spread = 1000 * scipy.special.ive([0, 1], 2000).sum()
    for count in (0, 100_000, 10**9):
        assert crps(predictive, [count]) == pytest.approx(abs(count - 1000) - spread, rel=1e-9)


def test_crps_of_counts_with_members_far_apart(generator):
    predictive = poissons([[0.5, 0.0], [5000.0, 3.0]], [3.0, 1.0])
    for counts in ([0, 0], [2500, 5], [9000, 40]):
        assert crps(predictive, counts) == pytest.approx(naive_count_crps(predictive, counts, 20_000), rel=1e-8)


def test_crps_of_a_large_rate_is_nearly_that_of_the_normal():
    rate = 1e6
    normal = Predictive.from_normal([rate], math.sqrt(rate))
    for count in (rate - 2000, rate, rate + 500):
        assert crps(poissons([[rate]]), [count]) == pytest.approx(crps(normal, [count]), rel=1e-3)


def test_crps_of_counts_respects_the_weights_and_a_rate_of_zero_is_certain(generator):
    rates, counts = torch.rand(3, 20, generator=generator) * 5, torch.randint(0, 9, (20,), generator=generator)
    assert crps(poissons(rates, [0.0, 1.0, 0.0]), counts) == pytest.approx(crps(poissons(rates[1:2]), counts))
    assert crps(poissons(rates, [1.0, 2.0, 1.0]), counts) == pytest.approx(crps(poissons(rates[[0, 1, 1, 2]]), counts))
    assert crps(poissons([[0.0]]), [7]) == 7
    assert crps(poissons([[0.0]]), [0]) == 0


@pytest.mark.parametrize("wrong", [1.5, -1])
def test_targets_that_are_no_counts_are_refused(wrong):
    with pytest.raises(DataError, match=rf"targets must be counts 0, 1, 2, \.\.\.; row 1 holds {wrong}"):
        crps(poissons([[1.0, 1.0]]), [0, wrong])


@pytest.mark.parametrize("rate", [1e30, math.inf])
def test_rates_that_are_no_longer_counts_are_refused(rate):
    with pytest.raises(DataError, match=r"summed over more than 16777216 counts in a row: .* leave out the rows"):
        crps(poissons([[1.0], [rate]]), [0])


# --- the CRPS of a part of the line ---


@pytest.mark.parametrize(
    ("target", "mean", "std", "low", "high", "expected"),
    [  # scoringrules 0.10.0: crps_gtcnormal at the thresholds, with the masses beyond them; crps_normal in the last row
        (0.3, -0.5, 1.2, -1.0, 0.8, 0.427463655406852),
        (3.0, 0.0, 1.0, 0.5, None, 2.1395597390872956),
        (-2.0, 1.0, 0.5, None, 1.1, 2.6807158065291787),
        (0.0, 2.0, 0.3, -1.0, 0.5, 0.4999999679241389),
        (0.1, 0.0, 1.0, None, None, 0.2376810788616731),
    ],
)
def test_the_weighted_crps_of_a_normal_is_that_of_scoringrules(target, mean, std, low, high, expected):
    predictive = Predictive.from_normal([mean], [std])
    assert weighted_crps(predictive, [target], low, high) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("low", [-30.0, -2.0, 0.3, 25.0])
def test_parts_of_the_line_add_up_to_the_whole_crps(low, generator):
    normals, targets = weighted_normals(generator)
    student = StudentPredictive(normals.weights, normals.means, normals.stds, 3)
    for predictive in (normals, student):
        parts = [(None, low), (low, low + 0.7), (low + 0.7, None)]
        total = sum(weighted_crps(predictive, targets, *ends) for ends in parts)
        assert total == pytest.approx(crps(predictive, targets), rel=2e-5)
        assert weighted_crps(predictive, targets) == pytest.approx(crps(predictive, targets), rel=2e-5)


def test_the_weighted_crps_of_a_mixture_is_the_integral_over_the_part(generator):
    predictive, targets = weighted_normals(generator)
    expected, weights = 0.0, predictive.weights.numpy()
    for row, y in enumerate(targets.tolist()):
        members = scipy.stats.norm(predictive.means[:, row].numpy(), predictive.stds[:, row].numpy())
        middle = min(max(y, -1.0), 2.0)
        expected += scipy.integrate.quad(lambda x, n=members: (weights @ n.cdf(x)) ** 2, -1.0, middle, limit=300)[0]
        expected += scipy.integrate.quad(lambda x, n=members: (weights @ n.sf(x)) ** 2, middle, 2.0, limit=300)[0]
    assert weighted_crps(predictive, targets, -1.0, 2.0) == pytest.approx(expected / len(targets), abs=1e-6)


def test_what_the_weighted_crps_cannot_honour_is_refused():
    with pytest.raises(SettingError, match="low has to lie below high, got 1 and 1"):
        weighted_crps(Predictive.from_normal([0.0], [1.0]), [0.0], 1, 1)
    with pytest.raises(SettingError, match="crps takes counts"):
        weighted_crps(poissons([[1.0]]), [1])


# --- the energy score ---


def test_the_energy_score_of_draws_is_that_of_scoringrules():
    """scoringrules 0.10.0, es_ensemble with estimator="fair"."""
    drawn = [
        [[0.13, -0.13], [0.64, 0.1], [-0.54, 0.36]],
        [[1.3, 0.95], [-0.7, -1.27], [-0.62, 0.04]],
        [[-2.33, -0.22], [-1.25, -0.73], [-0.54, -0.32]],
        [[0.41, 1.04], [-0.13, 1.37], [-0.67, 0.35]],
        [[0.9, 0.09], [-0.74, -0.92], [-0.46, 0.22]],
    ]
    values = [[-1.01, -0.21], [-0.16, 0.54], [0.21, 0.36]]
    expected = [0.8223780793792503, 0.5604092467544246, 0.6582668295249405]
    found = crps_of_mixtures._energy_of_draws(torch.tensor(drawn).double(), torch.tensor(values).double())
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_of_one_output_the_energy_score_is_the_crps(generator):
    predictive, targets = weighted_normals(generator)
    assert energy_score(predictive, targets, num_draws=1500) == pytest.approx(crps(predictive, targets), rel=0.03)


def test_the_energy_score_of_a_wide_normal_is_its_closed_form():
    """X ~ N(0, I) in d dimensions, y = 0: E||X|| (1 - 1 / sqrt 2), with E||X|| = sqrt 2 G((d + 1) / 2) / G(d / 2)."""
    dim, rows = 4, 300
    predictive = Predictive.from_normal(torch.zeros(1, rows, dim), 1.0)
    size = math.sqrt(2) * math.gamma((dim + 1) / 2) / math.gamma(dim / 2)
    found = energy_score(predictive, torch.zeros(rows, dim), num_draws=50)
    assert found == pytest.approx(size * (1 - math.sqrt(0.5)), rel=0.005)


def test_the_energy_score_sees_whether_outputs_go_together():
    """Two members that are both high or both low, against two whose outputs cross: the same in each output."""
    together = Predictive.from_normal(torch.tensor([[[-1.0, -1.0]], [[1.0, 1.0]]]), 0.1)
    crossed = Predictive.from_normal(torch.tensor([[[-1.0, 1.0]], [[1.0, -1.0]]]), 0.1)
    target = torch.tensor([[1.0, 1.0]])
    assert crps(together, target) == pytest.approx(crps(crossed, target))
    assert energy_score(together, target) < 0.7 * energy_score(crossed, target)
    assert energy_score(together, target, seed=1) == energy_score(together, target, seed=1)
    with pytest.raises(SettingError, match="num_draws is a whole number from 2, got 1"):
        energy_score(together, target, num_draws=1)


# --- CRPS of other distributions ---


def test_crps_of_a_log_normal_is_its_closed_form():
    """y (2 F(y) - 1) - 2 exp(m + s^2 / 2) (Phi((log y - m) / s - s) + Phi(s / sqrt(2)) - 1): Baran & Lerch (2015)."""
    m, s, y = np.array([0.3, -1.0, 2.0, 0.0]), np.array([0.2, 1.0, 0.5, 1.5]), np.array([1.0, 3.0, 0.1, 0.8])
    standard, phi = (np.log(y) - m) / s, scipy.stats.norm.cdf
    expected = y * (2 * phi(standard) - 1) - 2 * np.exp(m + s**2 / 2) * (phi(standard - s) + phi(s / 2**0.5) - 1)
    predictive = LogNormalPredictive(torch.ones(1).double(), *(torch.as_tensor(part)[None] for part in (m, s)))
    for row in range(4):
        assert crps(predictive.take_rows([row]), y[[row]]) == pytest.approx(expected[row], rel=1e-5)
    assert crps(predictive, y) == pytest.approx(expected.mean(), rel=1e-5)


def test_crps_of_a_mixture_of_mixtures_is_that_of_all_normals(generator):
    logs = torch.randn(1, 1, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    centers, stds = (torch.randn(1, 1, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    nested = GaussianMixturePredictive(torch.ones(1).double(), logs, 3 * centers, stds.exp())
    normals = Predictive.from_normal(3 * centers[0, 0, :, None], stds[0, 0, :, None].exp(), logs[0, 0].exp())
    for target in (-4.0, 0.3, 9.0):
        assert crps(nested, [target]) == pytest.approx(crps(normals, [target]), rel=1e-5)


def test_crps_of_several_outputs_is_their_mean(generator):
    gaps = torch.rand(2, 5, 2, 4, generator=generator, dtype=torch.float64) + 0.1
    lowest, levels = torch.randn(2, 5, 2, generator=generator, dtype=torch.float64), (0.1, 0.3, 0.5, 0.7, 0.9)
    weights, targets = torch.tensor([0.3, 0.7]).double(), torch.randn(5, 2, generator=generator)
    each = [
        crps(QuantilePredictive(weights, lowest[..., one], gaps[:, :, one], levels), targets[:, one])
        for one in range(2)
    ]
    assert crps(QuantilePredictive(weights, lowest, gaps, levels), targets) == pytest.approx(np.mean(each))


def test_crps_of_censored_times_is_refused():
    predictive = LogNormalPredictive(torch.ones(1), torch.zeros(1, 3), torch.ones(1, 3))
    with pytest.raises(DataError, match=r"targets must have shape \(3,\)"):
        crps(predictive, torch.ones(3, 2))


# --- weights of rows ---


def kinds_of_numbers(generator):
    """A prediction of each way in which the CRPS is found: closed form, quadrature, counts, several outputs."""
    three = torch.full((3,), 1 / 3, dtype=torch.float64)
    outputs = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    return {
        "normal": random_normals(generator),
        "outputs": random_normals(generator, (3, 6, 2)),
        "student": HeteroscedasticStudent().predictive(outputs[..., :2], {}, three),
        "mixture": GaussianMixture(2).predictive(outputs, {}, three),
        "counts": random_poissons(generator),
    }


@pytest.mark.parametrize("kind", ["normal", "outputs", "student", "mixture", "counts"])
def test_the_weighted_crps_of_rows_is_that_of_repeated_rows(kind, generator):
    predictive = kinds_of_numbers(generator)[kind]
    targets = torch.randint(4, predictive.mean.shape, generator=generator)
    found = crps(predictive, targets, weights=ROW_WEIGHTS)
    assert found == pytest.approx(crps(*repeated(predictive, targets)), rel=1e-12)
    assert found != pytest.approx(crps(predictive, targets), rel=1e-6)


def test_thresholds_and_vectors_have_weights_too(generator):
    predictive, targets = random_normals(generator), torch.randn(6, generator=generator)
    found = weighted_crps(predictive, targets, low=0.0, weights=ROW_WEIGHTS)
    assert found == pytest.approx(weighted_crps(*repeated(predictive, targets), low=0.0), rel=1e-12)
    each = [energy_score(predictive, targets, weights=row) for row in torch.eye(6)]  # the same draws
    weighted = energy_score(predictive, targets, weights=ROW_WEIGHTS)
    assert weighted == pytest.approx(np.average(each, weights=ROW_WEIGHTS), rel=1e-12)
