"""Curves against naive loops: every subset scored by hand, every interval asked for, bands from closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble import metrics
from bayesemble.metrics.curves import interval_coverage, prediction_bands, size_curve, subsets_of


def classes(num_members=5, num_rows=40, seed=0, weights=None):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_members, num_rows, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (num_rows,), generator=generator)
    return be.Predictive.from_probs(logits.softmax(-1), weights), targets


def numbers(num_members=4, num_rows=60, outputs=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(num_members, num_rows, *outputs, generator=generator, dtype=torch.float64)
    stds = 0.5 + torch.rand(means.shape, generator=generator, dtype=torch.float64)
    return be.Predictive.from_normal(means, stds), torch.randn(num_rows, *outputs, generator=generator).double()


def test_every_subset_is_scored_where_there_are_few():
    predictive, targets = classes(weights=[1, 2, 3, 4, 5])
    curve = size_curve(predictive, targets, metrics.nll, subsets=10)
    probs, weights = predictive.member_probs.numpy(), np.arange(1, 6)
    for place, size in enumerate(range(1, 6)):
        scores = []
        for chosen in itertools.combinations(range(5), size):
            own = weights[list(chosen)] / weights[list(chosen)].sum()
            average = sum(w * probs[m] for w, m in zip(own, chosen, strict=True))
            scores.append(-np.log(average[np.arange(40), targets.numpy()]).mean())
        assert curve.size[place] == size
        assert curve.subsets[place] == len(scores) == math.comb(5, size)
        assert curve.mean[place].item() == pytest.approx(np.mean(scores), abs=1e-12)
        assert curve.std[place].item() == pytest.approx(np.std(scores), abs=1e-12)


@pytest.mark.parametrize("score", [metrics.rmse, metrics.crps, metrics.nll])
def test_ends_of_the_curve_are_single_members_and_the_whole(score):
    predictive, targets = numbers()
    curve = size_curve(predictive, targets, score, sizes=[1, 4])
    alone = torch.tensor([score(predictive.member(i), targets) for i in range(4)], dtype=torch.float64)
    assert curve.mean[0].item() == pytest.approx(alone.mean().item(), rel=1e-12)
    assert curve.std[0].item() == pytest.approx(alone.std(correction=0).item(), rel=1e-10)
    assert curve.mean[1].item() == pytest.approx(score(predictive, targets), rel=1e-12)
    assert curve.std[1] == 0


def test_random_subsets_are_different_ones_and_come_again_with_the_seed():
    predictive, targets = classes(num_members=9)
    seen = []

    def score(part, _):
        seen.append(part.log_probs)
        return metrics.nll(part, targets)

    curve = size_curve(predictive, targets, score, sizes=[4], subsets=30)
    assert curve.subsets.tolist() == [30]
    assert len({tuple(part.flatten().tolist()) for part in seen}) == 30
    again = size_curve(predictive, targets, metrics.nll, sizes=[2, 4], subsets=30)
    assert again.mean[1] == curve.mean[0], "the subsets of a size do not depend on the other sizes"
    other = size_curve(predictive, targets, metrics.nll, sizes=[4], subsets=30, seed=1)
    assert other.mean[0] != curve.mean[0]


def test_many_random_subsets_come_near_the_mean_over_all():
    predictive, targets = classes(num_members=8)
    all_of_them = size_curve(predictive, targets, metrics.brier, sizes=[4], subsets=70)
    some = size_curve(predictive, targets, metrics.brier, sizes=[4], subsets=60)
    assert all_of_them.subsets[0] == 70
    error = float(all_of_them.std[0]) / math.sqrt(60) * math.sqrt((70 - 60) / (70 - 1))
    assert abs(float(some.mean[0] - all_of_them.mean[0])) < 4 * error


def test_members_of_weight_zero_are_left_out():
    predictive, targets = classes(num_members=4, weights=[1, 0, 1, 1])
    curve = size_curve(predictive, targets, metrics.nll)
    assert curve.size.tolist() == [1, 2, 3]
    assert curve.mean[-1].item() == pytest.approx(metrics.nll(predictive, targets), rel=1e-12)


def test_sizes_that_cannot_be_and_reduced_predictions_are_refused():
    predictive, targets = classes()
    for sizes in ([0], [6], []):
        with pytest.raises(be.SettingError, match="between 1 and 5"):
            size_curve(predictive, targets, metrics.nll, sizes=sizes)
    with pytest.raises(be.SettingError, match="at least one subset"):
        size_curve(predictive, targets, metrics.nll, subsets=0)
    with pytest.raises(be.SettingError, match="keep_members=True"):
        size_curve(predictive.reduce(), targets, metrics.nll)


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_interval_coverage_is_the_coverage_at_each_level(outputs):
    predictive, targets = numbers(outputs=outputs)
    levels = (0.1, 0.5, 0.9, 0.99)
    curve = interval_coverage(predictive, targets, levels)
    assert curve.level.tolist() == list(levels)
    assert curve.observed.tolist() == [metrics.coverage(predictive, targets, level) for level in levels]


def test_interval_coverage_of_counts_is_the_coverage_at_each_level(generator):
    rates = 0.3 + 6 * torch.rand(3, 200, generator=generator, dtype=torch.float64)
    predictive = be.predictive.PoissonPredictive(torch.full((3,), 1 / 3, dtype=torch.float64), rates)
    counts = torch.poisson(rates[0], generator=generator)
    curve = interval_coverage(predictive, counts)
    expected = [metrics.coverage(predictive, counts, float(level)) for level in curve.level]
    assert curve.observed.tolist() == expected


def test_the_lower_end_of_an_interval_belongs_to_it_and_the_upper_does_not():
    """Between two members far apart, F is the weight of the lower one exactly."""
    for weight, inside in ((0.25, 1), (0.75, 0)):
        predictive = be.Predictive.from_normal([[0.0], [100.0]], 1.0, [weight, 1 - weight])
        assert interval_coverage(predictive, [50.0], [0.5]).observed.tolist() == [inside]


def test_interval_coverage_of_the_true_distribution_is_the_level(generator):
    targets = torch.randn(20_000, generator=generator, dtype=torch.float64)
    predictive = be.Predictive.from_normal(torch.zeros(20_000, dtype=torch.float64), 1.0)
    curve = interval_coverage(predictive, targets)
    assert float((curve.observed - curve.level).abs().max()) < 4 * 0.5 / math.sqrt(20_000)


def test_levels_that_are_no_probabilities_are_refused():
    predictive, targets = numbers()
    with pytest.raises(be.SettingError, match="between 0 and 1"):
        interval_coverage(predictive, targets, [0.5, 1.0])
    with pytest.raises(be.SettingError, match="at least one level"):
        interval_coverage(predictive, targets, [])


def test_bands_by_level_are_the_intervals_in_order_of_place():
    predictive, places = numbers()
    bands = prediction_bands(predictive, places[:, None], levels=(0.9, 0.5))
    assert bands.names == ("50 %", "90 %")
    order = places.argsort()
    for place, level in enumerate((0.5, 0.9)):
        low, high = predictive.interval(level)
        assert torch.equal(bands.low[place], low[order])
        assert torch.equal(bands.high[place], high[order])
    assert torch.equal(bands.mean, predictive.mean[order])
    assert torch.equal(bands.position, places.sort().values)


def test_bands_by_deviation_and_their_epistemic_part_have_closed_forms():
    predictive, places = numbers()
    bands = prediction_bands(predictive, places, stds=(1, 2))
    assert bands.names == ("1 std", "2 std")
    for row, at in enumerate(places.argsort().tolist()):
        means, variances = predictive.means[:, at].numpy(), predictive.stds[:, at].numpy() ** 2
        total, between = np.sqrt(variances.mean() + means.var()), means.std()
        for place, factor in enumerate((1, 2)):
            assert bands.low[place, row].item() == pytest.approx(means.mean() - factor * total)
            assert bands.high[place, row].item() == pytest.approx(means.mean() + factor * total)
        assert bands.epistemic_low[row].item() == pytest.approx(means.mean() - 2 * between)
        assert bands.epistemic_high[row].item() == pytest.approx(means.mean() + 2 * between)


def test_one_member_has_no_epistemic_part_and_the_widest_band_holds_it_otherwise():
    predictive, places = numbers()
    alone = prediction_bands(predictive.member(0), places)
    assert torch.equal(alone.epistemic_low, alone.mean)
    assert torch.equal(alone.epistemic_high, alone.mean)
    bands = prediction_bands(predictive, places)
    assert (bands.epistemic_low >= bands.low[-1]).all()
    assert (bands.epistemic_high <= bands.high[-1]).all()


def test_bands_of_counts_that_cannot_vary_are_finite():
    predictive = be.predictive.PoissonPredictive(torch.ones(1), torch.zeros(1, 3))
    bands = prediction_bands(predictive, [0.0, 1.0, 2.0], stds=(1,))
    assert torch.equal(bands.epistemic_high, torch.zeros(3).double())


def test_one_of_several_outputs_is_chosen():
    predictive, targets = numbers(outputs=(2,))
    bands = prediction_bands(predictive, targets, output=1)
    column = be.Predictive.from_normal(predictive.means[..., 1], predictive.stds[..., 1])
    expected = prediction_bands(column, targets[:, 1])
    assert torch.equal(bands.position, expected.position)
    assert torch.allclose(bands.low, expected.low, rtol=0, atol=1e-12)
    along = prediction_bands(predictive, targets[:, 0], output=1)
    assert torch.equal(along.mean, column.mean[targets[:, 0].argsort()])


def test_bands_that_cannot_be_are_refused():
    predictive, places = numbers()
    several, targets = numbers(outputs=(2,))
    with pytest.raises(be.SettingError, match="2 columns"):
        prediction_bands(several, targets[:, 0])
    with pytest.raises(be.SettingError, match="output=2"):
        prediction_bands(several, targets, output=2)
    with pytest.raises(be.DataError, match="one position per row"):
        prediction_bands(predictive, places[:-1])
    with pytest.raises(be.DataError, match="finite"):
        prediction_bands(predictive, places.log())
    with pytest.raises(be.SettingError, match="at least one band"):
        prediction_bands(predictive, places, levels=())
    with pytest.raises(be.SettingError, match="positive"):
        prediction_bands(predictive, places, stds=(0,))


def test_subsets_are_all_or_so_many_different_ones():
    assert subsets_of(5, 2, 20, 0) == [list(one) for one in itertools.combinations(range(5), 2)]
    assert subsets_of(5, 2, 10, 0) == subsets_of(5, 2, 20, 0)
    some = subsets_of(12, 4, 200, 0)
    assert len({tuple(one) for one in some}) == len(some) == 200
    assert all(len(set(one)) == 4 and set(one) <= set(range(12)) for one in some)
    assert some == subsets_of(12, 4, 200, 0) != subsets_of(12, 4, 200, 1)
