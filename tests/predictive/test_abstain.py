import dataclasses
import logging
import math

import numpy as np
import pytest
import scipy.stats
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.predictive.abstain import Abstention, Decision, _shares, binomial_bound, fit_threshold

SETTINGS = {"max_risk": 0.1, "measure": "max_probability"}


@pytest.fixture
def quiet(caplog):
    """Hundreds of rules that abstain always need not all say so."""
    caplog.set_level(logging.CRITICAL, logger="bayesemble")


def binary(confidences):
    """Class 0 with these probabilities, all of at least a half: label 0 is right, label 1 is wrong."""
    confidences = np.asarray(confidences, dtype=float)
    return Predictive.from_probs(np.stack([confidences, 1 - confidences], axis=-1))


def calibrated(rng, rows):
    """Mostly sure, and right as often as it says: doubt is u^2 / 2 for a uniform u; the error rate below t is t / 3."""
    confidences = 1 - rng.random(rows) ** 2 / 2
    return binary(confidences), (rng.random(rows) > confidences).astype(int)


def useless_uncertainty(rng, rows, error_rate):
    """Doubt that has nothing to do with errors: the error rate is the same below every threshold."""
    return binary(rng.uniform(0.5, 1, rows)), (rng.random(rows) < error_rate).astype(int)


def by_bounds(predictive, targets, max_risk, level, rows_of):
    """The largest threshold whose bound, each at `level`, is low enough; None without one."""
    uncertainties, found = predictive.uncertainty("max_probability").numpy(), None
    for rows in rows_of:
        threshold = np.append(np.sort(uncertainties), np.inf)[rows]
        below = uncertainties < threshold
        if scipy.stats.beta.ppf(1 - level, targets[below].sum() + 1, (1 - targets[below]).sum()) <= max_risk:
            found = threshold
    return found


# --- the bound ---


@pytest.mark.parametrize("level", [0.2, 0.05, 1e-4])
@pytest.mark.parametrize(("errors", "rows"), [(0, 1), (0, 50), (3, 50), (49, 50), (500, 20_000)])
def test_the_bound_is_the_exact_binomial_one_of_scipy(errors, rows, level):
    bound = binomial_bound(errors, rows, level)
    expected = scipy.stats.binomtest(errors, rows, alternative="less").proportion_ci(1 - level, method="exact").high
    assert bound == pytest.approx(expected)
    assert scipy.stats.binom.cdf(errors, rows, bound) == pytest.approx(level)


def test_without_rows_or_with_errors_alone_nothing_is_known():
    assert binomial_bound(0, 0, 0.05) == 1
    assert binomial_bound(7, 7, 0.05) == 1


# --- fitting ---


def test_a_small_case_by_hand():
    """60 sure rows without error, 40 unsure ones that are all wrong: 60 rows are answered.

    Ten shares are tried, 55, 60, ..., 100 rows: 50 rows would be too few even without an error, as 0.9^50 > 0.05 / 11.
    Without an error in 60 rows the bound is the p with (1 - p)^60 = 0.05 / 10.
    """
    predictive, targets = binary(np.linspace(1, 0.51, 100)), [0] * 60 + [1] * 40
    rule = fit_threshold(predictive, targets, **SETTINGS)
    assert (rule.coverage, rule.expected_risk) == (0.6, 0)
    assert rule.threshold == predictive.uncertainty("max_probability")[60].item()
    assert rule.risk_bound == pytest.approx(1 - (0.05 / 10) ** (1 / 60))
    assert rule.decide(predictive).answered.tolist() == [True] * 60 + [False] * 40


def test_numbers_of_rows_that_just_suffice_without_an_error_are_tried():
    assert _shares(1, 0.5, 0.5) == [1]
    assert _shares(1, 0.5, 0.4999) == []
    assert _shares(2, 0.5, 0.5) == [2]
    assert _shares(3, 0.5, 0.5) == [2, 3]


def test_a_bound_that_is_the_risk_itself_is_small_enough(monkeypatch):
    monkeypatch.setattr("bayesemble.predictive.abstain.binomial_bound", lambda errors, rows, level: 0.1)
    assert fit_threshold(binary(np.linspace(1, 0.51, 100)), [0] * 100, **SETTINGS).coverage == 1


@pytest.mark.parametrize("rows", [40, 150, 999])
def test_the_threshold_is_that_of_a_loop_over_shares(rows):
    rng = np.random.default_rng(rows)
    for max_risk in (0.05, 0.1, 0.2):
        predictive, targets = calibrated(rng, rows)
        shares = sorted({math.ceil(rows * step / 20) for step in range(1, 21)})
        while shares and (1 - max_risk) ** shares[0] > 0.05 / len(shares):
            shares = shares[1:]
        expected = by_bounds(predictive, targets, max_risk, 0.05 / max(len(shares), 1), shares)
        rule = fit_threshold(predictive, targets, max_risk, "max_probability")
        assert rule.threshold == (-math.inf if expected is None else expected)


def test_what_is_reported_is_what_the_rule_does_on_the_validation_rows():
    predictive, targets = calibrated(np.random.default_rng(0), 2000)
    rule = fit_threshold(predictive, targets, **SETTINGS)
    decision = rule.decide(predictive)
    assert rule.coverage == decision.coverage == decision.answered.double().mean().item()
    wrong = decision.choice.numpy() != targets
    assert rule.expected_risk == pytest.approx(wrong[decision.answered.numpy()].mean())
    assert 0 < rule.expected_risk < rule.risk_bound <= rule.max_risk == 0.1
    assert rule.confidence == 0.95


def test_everything_is_answered_where_all_is_right():
    rule = fit_threshold(binary(np.linspace(0.6, 1, 200)), [0] * 200, **SETTINGS)
    assert (rule.threshold, rule.coverage, rule.expected_risk) == (math.inf, 1, 0)
    assert not rule.abstains_always
    assert rule.decide(binary([0.5, 1.0])).abstain.tolist() == [False, False]
    assert str(rule).startswith("answers every row; 0.00% of the validation rows are wrong")


def test_it_abstains_always_where_no_threshold_will_do_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="bayesemble"):
        rule = fit_threshold(binary(np.linspace(0.6, 1, 200)), [1] * 200, **SETTINGS)
    assert rule.abstains_always
    assert (rule.threshold, rule.coverage, rule.expected_risk, rule.risk_bound) == (-math.inf, 0, 0, 0)
    assert rule.decide(binary([0.5, 1.0])).abstain.tolist() == [True, True]
    assert (
        "abstains always: no threshold on max_probability uncertainty keeps an error rate of at most 0.1" in caplog.text
    )
    assert "by 200 validation rows" in caplog.text
    assert str(rule) in caplog.text


def test_the_rule_says_what_it_does():
    predictive, targets = calibrated(np.random.default_rng(0), 2000)
    rule = fit_threshold(predictive, targets, **SETTINGS)
    assert str(rule).startswith("answers where max_probability uncertainty is below 0.")
    assert "an error rate of at most 0.1 with confidence 0.95" in str(rule)


@pytest.mark.parametrize(("rows", "coverage"), [(28, 0), (29, 1)])
def test_rows_without_error_suffice_from_their_smallest_number_on(rows, coverage):
    """0.9^29 is the first power of 0.9 below 0.05: with 29 rows, to answer all of them is the one thing to try."""
    rule = fit_threshold(binary([0.9] * rows), [0] * rows, **SETTINGS)
    assert rule.coverage == coverage


@pytest.mark.parametrize("rows", [1, 2, 5, 19, 21])
def test_few_rows_are_no_error(rows):
    assert fit_threshold(binary([0.9] * rows), [0] * rows, **SETTINGS).abstains_always


def test_rows_in_equal_doubt_are_answered_together_or_not_at_all():
    sure, unsure = [1.0] * 90, [0.6] * 110
    predictive, right = binary(sure + unsure), [0] * 200
    assert fit_threshold(predictive, right, **SETTINGS).coverage == 1
    wrong = fit_threshold(predictive, [0] * 90 + [1] * 110, **SETTINGS)
    assert (wrong.coverage, wrong.threshold) == (0.45, pytest.approx(0.4))
    assert wrong.decide(binary([1.0, 0.6, 0.7])).abstain.tolist() == [False, True, False]
    equal = fit_threshold(binary([0.8] * 200), [0, 1] * 100, **SETTINGS)
    assert equal.abstains_always


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(0)
    predictive, targets = calibrated(rng, 500)
    order = rng.permutation(500)
    shuffled = Predictive.from_probs(predictive.probs[order])
    assert fit_threshold(predictive, targets, **SETTINGS) == fit_threshold(shuffled, targets[order], **SETTINGS)


def test_more_risk_or_less_confidence_answers_more():
    predictive, targets = calibrated(np.random.default_rng(0), 2000)
    shares = [fit_threshold(predictive, targets, risk, "max_probability").coverage for risk in (0.02, 0.05, 0.1, 0.2)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]
    shares = [fit_threshold(predictive, targets, 0.1, confidence=level).coverage for level in (0.999999, 0.95, 0.5)]
    assert shares == sorted(shares)


@pytest.mark.parametrize("measure", ["total", "entropy", "epistemic", "disagreement", "member_std"])
def test_any_measure_of_doubt_will_do(measure, generator):
    logits = 4 * torch.randn(3, 400, 4, generator=generator) + 4 * torch.randn(400, 4, generator=generator)
    predictive = Predictive.from_probs(logits.softmax(-1))
    targets = predictive.sample(1, generator)[0]
    rule = fit_threshold(predictive, targets, 0.3, measure)
    decision = rule.decide(predictive)
    assert torch.equal(decision.answered, predictive.uncertainty(measure).double() < rule.threshold)
    assert torch.equal(decision.choice, predictive.probs.argmax(-1))
    assert rule.coverage == decision.coverage > 0


def test_a_row_of_several_outputs_is_wrong_if_one_is():
    log_probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]], dtype=torch.float64).log().expand(1, 40, 2, 2)
    predictive = ClassPredictive(torch.ones(1), log_probs)
    targets = torch.zeros(40, 2, dtype=torch.long)
    assert fit_threshold(predictive, targets, 0.1).coverage == 1
    targets[:, 1] = 1
    assert fit_threshold(predictive, targets, 0.9).abstains_always


# --- deciding ---


def test_doubt_at_the_threshold_or_not_a_number_is_not_answered():
    rule = Abstention(0.25, "max_probability", 0.0, 0.05, 1.0, 0.1, 0.95)
    assert rule.decide(binary([0.75, 0.76, 0.6])).abstain.tolist() == [True, False, True]
    broken = ClassPredictive(torch.ones(1), torch.full((1, 2, 2), math.nan))
    assert dataclasses.replace(rule, threshold=math.inf).decide(broken).abstain.tolist() == [True, True]


def test_numbers_can_be_decided_on_by_a_threshold_of_ones_own():
    rule = Abstention(2.0, "total", 0.0, 0.0, 1.0, 0.1, 0.95)
    decision = rule.decide(Predictive.from_normal([3.0, 4.0], [1.0, 2.0]))
    assert decision.abstain.tolist() == [False, True]
    assert decision.choice.tolist() == [3, 4]


def test_a_prediction_decides_by_its_validation_rows():
    rng = np.random.default_rng(0)
    validation, (fresh, _) = calibrated(rng, 1000), calibrated(rng, 50)
    decision = fresh.decide(max_risk=0.1, validation=validation)
    expected = fit_threshold(*validation, max_risk=0.1).decide(fresh)
    assert isinstance(decision, Decision)
    assert torch.equal(decision.abstain, expected.abstain)
    assert torch.equal(decision.choice, expected.choice)
    loose = fresh.decide(max_risk=0.1, validation=validation, measure="max_probability", confidence=0.5)
    assert loose.coverage >= decision.coverage > 0


# --- what is refused ---


def test_numbers_are_refused():
    with pytest.raises(SettingError, match=r"for predictions of classes, got NormalPredictive; .*fit_intervals"):
        fit_threshold(Predictive.from_normal([0.0], 1.0), [0.0], 0.1)
    with pytest.raises(SettingError, match="promised for predictions of classes, got NormalPredictive"):
        binary([0.9]).decide(0.1, (Predictive.from_normal([0.0], 1.0), [0.0]))


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("name", ["max_risk", "confidence"])
def test_levels_out_of_range_are_refused(name, value):
    with pytest.raises(SettingError, match=f"{name} is .* strictly between 0 and 1, got {value}"):
        fit_threshold(binary([0.9]), [0], **({"max_risk": 0.1} | {name: value}))


def test_targets_and_doubts_that_cannot_be_used_are_refused():
    with pytest.raises(DataError, match=r"targets must have shape \(1,\) to fit the predictions, got \(2,\)"):
        fit_threshold(binary([0.9]), [0, 1], 0.1)
    with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.1"):
        fit_threshold(binary([0.9]), [2], 0.1)
    with pytest.raises(SettingError, match=r"ClassPredictive has uncertainty by total, .* not by 'fear'"):
        fit_threshold(binary([0.9]), [0], 0.1, "fear")
    with pytest.raises(DataError, match="uncertainty must be finite numbers; row 0 holds nan"):
        fit_threshold(ClassPredictive(torch.ones(1), torch.full((1, 1, 2), math.nan)), [0], 0.1)


# --- the promise ---


def share_of_broken_promises(make, risk_below, max_risk, confidence, repetitions=400, rows=1000):
    """How often the true error rate below the threshold is too large: by the rule, and by the plain error rate."""
    rng, rule_breaks, plain_breaks, answered = np.random.default_rng(0), 0, 0, 0
    for _ in range(repetitions):
        predictive, targets = make(rng, rows)
        rule = fit_threshold(predictive, targets, max_risk, "max_probability", confidence)
        answered += not rule.abstains_always
        rule_breaks += not rule.abstains_always and risk_below(rule.threshold) > max_risk
        uncertainties = np.sort(predictive.uncertainty("max_probability").numpy())
        risks = np.cumsum(targets[np.argsort(1 - predictive.probs[:, 0].numpy())]) / np.arange(1, rows + 1)
        low_enough = np.flatnonzero(risks <= max_risk)
        plain_breaks += len(low_enough) > 0 and risk_below(uncertainties[low_enough[-1]]) > max_risk
    return rule_breaks / repetitions, plain_breaks / repetitions, answered / repetitions


def allowed(level, repetitions):
    return level + 4 * math.sqrt(level * (1 - level) / repetitions)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("max_risk", "confidence"), [(0.1, 0.9), (0.05, 0.95), (0.15, 0.8)])
def test_the_promise_is_kept_on_new_data_where_doubt_is_good(max_risk, confidence):
    broken, plainly_broken, answered = share_of_broken_promises(
        calibrated, lambda t: min(t, 0.5) / 3, max_risk, confidence
    )
    assert broken <= allowed(1 - confidence, 400)
    assert plainly_broken > allowed(1 - confidence, 400), "the test could not tell a rule that breaks its promise"
    assert answered > 0.5, "a rule that never answers proves nothing"


@pytest.mark.usefixtures("quiet")
def test_the_promise_is_kept_where_every_threshold_is_just_too_bad():
    """The hardest case: any answer at all breaks the promise, and there are twenty chances to be deceived."""
    broken, plainly_broken, _ = share_of_broken_promises(
        lambda rng, rows: useless_uncertainty(rng, rows, 0.1001), lambda t: 0.1001, 0.1, 0.8
    )
    assert broken <= allowed(0.2, 400)
    assert plainly_broken > 0.9


@pytest.mark.usefixtures("quiet")
def test_the_promise_is_kept_where_doubt_misleads_and_has_ties():
    """Five values of doubt, the smallest of which has many errors: below them the error rate falls and rises again."""
    uncertainties, rates = np.array([0.01, 0.1, 0.2, 0.3, 0.4]), np.array([0.15, 0.05, 0.05, 0.09, 0.3])

    def make(rng, rows):
        value = rng.integers(0, 5, rows)
        return binary(1 - uncertainties[value]), (rng.random(rows) < rates[value]).astype(int)

    broken, plainly_broken, answered = share_of_broken_promises(
        make, lambda t: rates[uncertainties < t].mean(), 0.084, 0.8
    )
    assert broken <= allowed(0.2, 400)
    assert plainly_broken > allowed(0.2, 400)
    assert answered > 0


def test_bounds_without_the_correction_for_several_tries_would_break_it():
    """Why the level is divided: the same search with each bound at the full level is deceived too often."""
    rng, rows = np.random.default_rng(0), 300
    found = [
        by_bounds(*useless_uncertainty(rng, rows, 0.1001), 0.1, 0.2, range(15, rows + 1, 15)) is not None
        for _ in range(400)
    ]
    assert np.mean(found) > allowed(0.2, 400)
