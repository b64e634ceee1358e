import math

import numpy as np
import pytest
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics.conformal import (
    ConformalIntervals,
    ConformalSets,
    PredictionSets,
    coverage_by_size,
    fit_intervals,
    fit_sets,
    set_coverage,
    set_size,
    size_stratified_coverage,
)
from bayesemble.predictive import ClassPredictive, PoissonPredictive, Predictive
from bayesemble.task.likelihoods import Bernoulli

KINDS = ["lac", "aps", "raps"]


def overconfident(generator, rows):
    """Labels drawn from a softmax, and two members that are far too sure of it."""
    logits = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    noise = torch.randn(2, rows, 5, generator=generator, dtype=torch.float64)
    return (3 * logits + noise).softmax(-1), labels


def too_narrow(generator, *shape):
    """Targets of spread 1 + |x|, and two members that know the shape of it but say a third."""
    x, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    means = x + 0.3 * torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return means, ((1 + x.abs()) / 3).expand(2, *shape), x + (1 + x.abs()) * noise


def share_inside(low, high, targets):
    """Of each output."""
    return ((low <= targets) & (targets <= high)).double().mean(0).numpy()


def naive_quantile(scores, level):
    """The smallest score that at least (n + 1) level of the scores and infinity do not exceed."""
    for score in sorted(scores):
        if sum(other <= score for other in scores) >= (len(scores) + 1) * level - 1e-9:
            return score
    return math.inf


def naive_score(kind, probs, label, uniform, penalty=0.0, regular_size=0):
    if kind == "lac":
        return 1 - probs[label]
    order = sorted(range(len(probs)), key=lambda c: -probs[c])
    rank = order.index(label)
    return (
        sum(probs[c] for c in order[:rank])
        + uniform * probs[label]
        + penalty * max(0, rank + 1 - regular_size)  # ranks from 1
    )


def within(mean, low, high, values):
    error = 4 * np.std(values) / math.sqrt(len(values))
    return low - error <= mean <= high + error


# --- the promise ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("level", "rows"), [(0.9, 24), (0.9, 99), (0.75, 10)])
def test_sets_hold_the_label_as_often_as_they_say(kind, level, rows, generator):
    """Over many splits, with a model that is wrong; the mean coverage is known exactly for scores without ties."""
    repetitions, fresh = 300, 100
    options = {"penalty": 0.05, "regular_size": 1} if kind == "raps" else {}
    probs, labels = overconfident(generator, repetitions * (rows + fresh))
    coverages = []
    for part, truth in zip(probs.chunk(repetitions, dim=1), labels.chunk(repetitions), strict=True):
        calibration, new = Predictive.from_probs(part[:, :rows]), Predictive.from_probs(part[:, rows:])
        rule = fit_sets(calibration, truth[:rows], generator, level, kind, **options)
        coverages.append(set_coverage(rule.apply(new, generator), truth[rows:]))
    mean = np.mean(coverages)
    assert within(mean, level, level + 1 / (rows + 1), coverages)
    exact = math.ceil((rows + 1) * level - 1e-9) / (rows + 1)
    assert within(mean, exact, exact, coverages)
    confidence, choice = probs.mean(0).max(-1)
    assert (choice == labels).double().mean() < confidence.mean() - 0.2, "the model must be wrong, or nothing is proved"


@pytest.mark.parametrize(("level", "rows"), [(0.9, 24), (0.9, 99), (0.5, 7)])
def test_intervals_hold_the_target_as_often_as_they_say(level, rows, generator):
    """Many splits at once: each is an output, which has a correction of its own."""
    means, stds, targets = too_narrow(generator, rows + 100, 400)
    rule = fit_intervals(Predictive.from_normal(means[:, :rows], stds[:, :rows]), targets[:rows], level)
    new = Predictive.from_normal(means[:, rows:], stds[:, rows:])
    intervals = rule.apply(new)
    coverages = share_inside(intervals.low, intervals.high, targets[rows:])
    assert coverages.shape == (400,)
    assert within(coverages.mean(), level, level + 1 / (rows + 1), coverages)
    exact = math.ceil((rows + 1) * level - 1e-9) / (rows + 1)
    assert within(coverages.mean(), exact, exact, coverages)
    own = share_inside(*new.interval(level), targets[rows:]).mean()
    assert own < level - 0.1, "the model's own intervals must fall short, or nothing is proved"


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_certain_predictions_cover_at_least_their_level(kind, generator):
    """Probabilities of exactly 0 and 1: ties can only raise the coverage."""
    coverages = []
    for _ in range(200):
        labels = torch.randint(0, 3, (70,), generator=generator)
        wrong = torch.rand(70, generator=generator) < 0.2
        probs = torch.eye(3, dtype=torch.float64)[torch.where(wrong, (labels + 1) % 3, labels)]
        rule = fit_sets(Predictive.from_probs(probs[:20]), labels[:20], generator, 0.85, kind)
        coverages.append(set_coverage(rule.apply(Predictive.from_probs(probs[20:]), generator), labels[20:]))
    assert within(np.mean(coverages), 0.85, 1.0, coverages)


# --- sets ---


@pytest.mark.parametrize(
    ("kind", "options"), [("lac", {}), ("aps", {}), ("raps", {}), ("raps", {"penalty": 0.2, "regular_size": 2})]
)
def test_threshold_and_sets_are_those_of_a_loop_over_rows_and_classes(kind, options, generator):
    probs, labels = overconfident(generator, 80)
    calibration, new = Predictive.from_probs(probs[:, :50]), Predictive.from_probs(probs[:, 50:])
    same = torch.Generator().manual_seed(3)
    uniform = torch.rand(50, 1, generator=same, dtype=torch.float64).tolist()
    uniform_new = torch.rand(30, 1, generator=same, dtype=torch.float64).tolist()
    drawn = torch.Generator().manual_seed(3)
    rule = fit_sets(calibration, labels[:50], drawn, 0.8, kind, **options)
    sets = rule.apply(new, drawn)
    options = {"penalty": 0.01, "regular_size": 5} | options if kind == "raps" else {}
    scores = [
        naive_score(kind, row, label, u[0], **options)
        for row, label, u in zip(calibration.probs.tolist(), labels[:50].tolist(), uniform, strict=True)
    ]
    assert rule.threshold == pytest.approx(naive_quantile(scores, 0.8))
    expected = [
        [naive_score(kind, row, c, u[0], **options) <= rule.threshold for c in range(5)]
        for row, u in zip(new.probs.tolist(), uniform_new, strict=True)
    ]
    assert sets.mask.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_sets_hold_the_most_probable_classes(kind, generator):
    probs, labels = overconfident(generator, 200)
    predictive = Predictive.from_probs(probs)
    sets = fit_sets(predictive, labels, generator, 0.9, kind).apply(predictive, generator)
    for row, mask in zip(predictive.probs, sets.mask, strict=True):
        inside, outside = row[mask], row[~mask]
        assert not len(inside) or not len(outside) or inside.min() >= outside.max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_higher_level_gives_larger_sets(kind, generator):
    probs, labels = overconfident(generator, 500)
    predictive = Predictive.from_probs(probs)
    masks = [
        fit_sets(predictive, labels, torch.Generator().manual_seed(0), level, kind)
        .apply(predictive, torch.Generator().manual_seed(1))
        .mask
        for level in (0.5, 0.8, 0.95)
    ]
    assert (masks[0] <= masks[1]).all()
    assert (masks[1] <= masks[2]).all()
    assert masks[0].sum() < masks[2].sum()


def test_raps_without_a_penalty_is_aps_and_a_penalty_makes_large_sets_rarer(generator):
    probs, labels = overconfident(generator, 500)
    predictive = Predictive.from_probs(probs)

    def sets_of(kind, **options):
        rule = fit_sets(predictive, labels, torch.Generator().manual_seed(0), 0.9, kind, **options)
        return rule.apply(predictive, torch.Generator().manual_seed(1))

    assert torch.equal(sets_of("raps", penalty=0.0).mask, sets_of("aps").mask)
    assert sets_of("raps", penalty=1.0, regular_size=2).size.max() < sets_of("aps").size.max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "enough"), [(1, False), (8, False), (9, True)])
def test_with_too_few_rows_sets_hold_every_class(kind, rows, enough, generator):
    """Level 0.9 needs 9 rows: ceil(0.9 * 10) = 9 and ceil(0.9 * 9) = 9 > 8."""
    probs, labels = overconfident(generator, rows)
    predictive = Predictive.from_probs(probs)
    rule = fit_sets(predictive, labels, generator, 0.9, kind)
    assert math.isfinite(rule.threshold) is enough
    if not enough:
        assert rule.apply(predictive, generator).mask.all()


def test_levels_that_are_whole_numbers_of_rows_are_not_rounded_up(generator):
    """0.55 * 100 is 55.00000000000001 in floating point, and must be 55."""
    predictive = Predictive.from_probs(torch.tensor([[0.5, 0.5]] * 99, dtype=torch.float64))
    rule = fit_sets(predictive, [0] * 99, torch.Generator().manual_seed(0), 0.55)
    uniform = torch.rand(99, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert rule.threshold == pytest.approx(uniform.flatten().sort().values[54].item() / 2)


def test_the_same_generator_gives_the_same_sets(generator):
    probs, labels = overconfident(generator, 100)
    predictive = Predictive.from_probs(probs)
    rules = [fit_sets(predictive, labels, torch.Generator().manual_seed(5), 0.8) for _ in range(2)]
    assert rules[0] == rules[1]
    masks = [rules[0].apply(predictive, torch.Generator().manual_seed(6)).mask for _ in range(2)]
    assert torch.equal(*masks)


def test_settings_that_cannot_be_honoured_are_refused(generator):
    predictive = Predictive.from_probs([[0.5, 0.5]])
    for message, options in [
        ('kind is "lac", "aps" or "raps", not \'top\'', {"kind": "top"}),
        ("penalty and regular_size are of \"raps\", not of 'aps'", {"penalty": 0.1}),
        ("penalty and regular_size are of \"raps\", not of 'lac'", {"kind": "lac", "regular_size": 1}),
        ("penalty is a number from 0 up, not -1", {"kind": "raps", "penalty": -1}),
        ("regular_size is a number of classes from 0 up, not -1", {"kind": "raps", "regular_size": -1}),
        ("level is a probability strictly between 0 and 1, got 1", {"level": 1}),
    ]:
        with pytest.raises(SettingError, match=message):
            fit_sets(predictive, [0], generator, **options)


def test_data_that_cannot_be_used_is_refused(generator):
    predictive = Predictive.from_probs([[0.5, 0.5]])
    with pytest.raises(DataError, match=r"targets must have shape \(1,\) to fit the predictions, got \(2,\)"):
        fit_sets(predictive, [0, 1], generator)
    several = Bernoulli().predictive(torch.zeros(1, 3, 2), {}, torch.ones(1))
    with pytest.raises(DataError, match=r"sets need one class per row, got probabilities \(3, 2, 2\)"):
        fit_sets(several, torch.zeros(3, 2), generator)
    broken = ClassPredictive(torch.ones(1), torch.full((1, 1, 2), math.nan))
    with pytest.raises(DataError, match="probabilities must be finite numbers; row 0"):
        fit_sets(broken, [0], generator)


# --- how good sets are ---

SETS = PredictionSets(
    torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=torch.bool)
)
LABELS = [0, 0, 1, 1, 0, 2]


def test_size_and_coverage_by_hand():
    assert SETS.size.tolist() == [1, 1, 0, 2, 2, 3]
    assert SETS.hit(LABELS).tolist() == [True, False, False, True, False, True]
    assert set_size(SETS) == pytest.approx(9 / 6)
    assert set_coverage(SETS, LABELS) == 0.5


def test_coverage_by_size_takes_empty_sets_with_those_of_one_class():
    strata = coverage_by_size(SETS, LABELS)
    assert strata.size.tolist() == [1, 2, 3]
    assert strata.count.tolist() == [3, 2, 1]
    assert strata.coverage.tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert size_stratified_coverage(SETS, LABELS) == pytest.approx(1 / 3)


def test_sizes_that_occur_rarely_are_left_out():
    assert coverage_by_size(SETS, LABELS, min_count=2).size.tolist() == [1, 2]
    assert size_stratified_coverage(SETS, LABELS, min_count=3) == pytest.approx(1 / 3)
    assert math.isnan(size_stratified_coverage(SETS, LABELS, min_count=4))


def test_with_true_probabilities_aps_covers_hard_rows_as_easy_ones_and_lac_gives_the_hard_ones_up(generator):
    """Romano et al. (2020): by the true probabilities, the coverage of aps is right given the inputs."""
    easy, even = torch.tensor([0.95, 0.01, 0.01, 0.01, 0.01, 0.01]).double(), torch.full((6,), 1 / 6).double()
    hard = torch.rand(20_000, generator=generator) < 0.15
    predictive = Predictive.from_probs(torch.where(hard[:, None], even, easy))
    labels = predictive.sample(1, generator)[0]
    hits = {
        kind: fit_sets(predictive, labels, generator, 0.8, kind).apply(predictive, generator).hit(labels).double()
        for kind in ("lac", "aps")
    }
    assert hits["aps"][hard].mean().item() == pytest.approx(0.8, abs=0.03)
    assert hits["aps"][~hard].mean().item() == pytest.approx(0.8, abs=0.03)
    assert hits["lac"][hard].mean().item() == 0
    assert hits["lac"].mean().item() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("metric", [set_coverage, size_stratified_coverage])
def test_labels_that_do_not_fit_the_sets_are_refused(metric):
    with pytest.raises(DataError, match=r"targets must have shape \(6,\) to fit the predictions, got \(5,\)"):
        metric(SETS, LABELS[1:])
    with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.2"):
        metric(SETS, [3, *LABELS[1:]])


# --- intervals ---


def test_the_correction_is_that_of_a_loop_and_moves_both_ends(generator):
    means, stds, targets = too_narrow(generator, 40)
    predictive = Predictive.from_normal(means, stds)
    rule = fit_intervals(predictive, targets, 0.8)
    low, high = predictive.interval(0.8)
    rows = zip(low.tolist(), high.tolist(), targets.tolist(), strict=True)
    scores = [max(a - y, y - b) for a, b, y in rows]
    assert rule.correction.item() == pytest.approx(naive_quantile(scores, 0.8))
    intervals = rule.apply(predictive)
    torch.testing.assert_close(intervals.low, low - rule.correction)
    torch.testing.assert_close(intervals.high, high + rule.correction)
    torch.testing.assert_close(intervals.width, high - low + 2 * rule.correction)


def test_intervals_that_are_too_wide_become_narrower_down_to_their_middle():
    wide = Predictive.from_normal(np.zeros(50), 10.0)
    rule = fit_intervals(wide, np.linspace(-1, 1, 50), 0.9)
    assert rule.correction < 0
    assert (rule.apply(wide).width < 3).all()
    narrow = rule.apply(Predictive.from_normal([4.0, 5.0], 0.1))
    torch.testing.assert_close(narrow.low, torch.tensor([4.0, 5.0], dtype=torch.float64))
    assert narrow.width.tolist() == pytest.approx([0, 0])


@pytest.mark.parametrize(("rows", "enough"), [(1, False), (8, False), (9, True)])
def test_with_too_few_rows_intervals_are_infinite(rows, enough):
    predictive = Predictive.from_normal(np.zeros(rows), 1.0)
    rule = fit_intervals(predictive, np.zeros(rows), 0.9)
    assert bool(rule.correction.isfinite()) is enough
    if not enough:
        intervals = rule.apply(predictive)
        assert intervals.low.tolist() == [-math.inf] * rows
        assert intervals.high.tolist() == [math.inf] * rows


def test_each_output_has_a_correction_of_its_own(generator):
    means = torch.randn(3, 50, 2, generator=generator, dtype=torch.float64)
    targets = torch.randn(50, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 10.0])
    rule = fit_intervals(Predictive.from_normal(means, 0.5), targets, 0.8)
    each = [fit_intervals(Predictive.from_normal(means[..., i], 0.5), targets[:, i], 0.8) for i in range(2)]
    torch.testing.assert_close(rule.correction, torch.stack([one.correction for one in each]))
    assert rule.apply(Predictive.from_normal(means, 0.5)).low.shape == (50, 2)


def test_counts_have_intervals_too_that_cover_at_least_their_level(generator):
    rates = torch.rand(70, 200, generator=generator, dtype=torch.float64) * 5 + 0.5
    counts = torch.poisson(3 * rates, generator=generator)
    calibration, new = (PoissonPredictive(torch.ones(1), part[None]) for part in (rates[:20], rates[20:]))
    intervals = fit_intervals(calibration, counts[:20], 0.85).apply(new)
    coverages = share_inside(intervals.low, intervals.high, counts[20:])
    assert within(coverages.mean(), 0.85, 1.0, coverages)


def test_a_rule_can_be_made_by_hand_and_a_column_of_targets_is_no_square():
    predictive = Predictive.from_normal([0.0, 1.0], 1.0)
    intervals = ConformalIntervals(torch.tensor(0.5, dtype=torch.float64), 0.5).apply(predictive)
    assert intervals.low[0].item() == pytest.approx(-0.674490 - 0.5, abs=1e-5)
    assert fit_intervals(predictive, [[0.0], [1.0]], 0.5).correction.shape == ()
    mask = ConformalSets(0.5, 0.9, "lac").apply(Predictive.from_probs([[0.7, 0.3]]), torch.Generator()).mask
    assert mask.tolist() == [[True, False]]


def test_intervals_refuse_what_they_cannot_use():
    predictive = Predictive.from_normal([0.0, 1.0], 1.0)
    with pytest.raises(SettingError, match="level is a probability strictly between 0 and 1, got 0"):
        fit_intervals(predictive, [0.0, 1.0], 0)
    with pytest.raises(DataError, match=r"targets must have shape \(2,\) to fit the predictions, got \(3,\)"):
        fit_intervals(predictive, [0.0, 1.0, 2.0])
