import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import norm
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core import settings
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.training.afterwards.calibration import Calibration, fit_calibration
from helpers import quick_fit


def labelled(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    noise = torch.randn(rows, 3, generator=generator)
    return x, (x + 0.8 * noise).argmax(1)


def numbered(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return x, x[:, 0].sin() + 0.3 * torch.randn(rows, generator=generator)


def network(outputs: int) -> Any:
    return lambda: nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, outputs))


@pytest.fixture(scope="module")
def classes() -> be.Ensemble:
    """Members that learned few rows by heart, and are too sure."""
    task, method = be.Task(network(3), be.Categorical(), None), be.DeepEnsemble(num_members=3, learning_rate=0.02)
    return quick_fit(task, labelled(60, 0), method, epochs=60)


@pytest.fixture(scope="module")
def numbers() -> be.Ensemble:
    task = be.Task(network(2), be.HeteroscedasticGaussian(), None)
    return quick_fit(task, numbered(40, 0), be.DeepEnsemble(num_members=3, learning_rate=0.02), epochs=60)


HELD_OUT = {"classes": labelled(400, 1), "numbers": numbered(400, 1)}
TEST = {"classes": labelled(2000, 2), "numbers": numbered(2000, 2)}


@pytest.fixture(params=["classes", "numbers"])
def fitted(request: pytest.FixtureRequest) -> tuple[be.Ensemble, be.Ensemble, Any]:
    """An ensemble, the same calibrated, and rows that neither has seen."""
    ensemble = request.getfixturevalue(request.param)
    return ensemble, ensemble.calibrate(HELD_OUT[request.param]), TEST[request.param]


def same(one: Predictive, other: Predictive) -> bool:
    pairs = zip(one._member_fields().values(), other._member_fields().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_held_out_rows_are_predicted_better(fitted):
    ensemble, calibrated, test = fitted
    before, after = ensemble.evaluate(test), calibrated.evaluate(test)
    assert after["nll"] < before["nll"] - 0.02


def test_both_kinds_of_doubt_still_add_up(fitted):
    _, calibrated, (x, _) = fitted
    predictive = calibrated.predict(x)
    total = predictive.uncertainty("total")
    torch.testing.assert_close(predictive.aleatoric + predictive.epistemic, total)
    assert predictive.num_members == 3
    assert float(predictive.epistemic.mean()) > 0.001


def test_temperature_is_that_of_an_independent_search(classes):
    x, y = HELD_OUT["classes"]
    logs = classes.predict(x).log_probs.double().numpy()

    def nll(inverse: float) -> float:
        scaled = logs * inverse
        own = (scaled - logsumexp(scaled, axis=-1, keepdims=True))[:, np.arange(len(y)), y.numpy()]
        return -(logsumexp(own, axis=0) - math.log(len(logs))).mean()

    found = minimize_scalar(nll, bounds=(0.05, 5), method="bounded", options={"xatol": 1e-10})
    assert classes.calibrate((x, y)).calibration.temperature == pytest.approx(1 / found.x, rel=1e-5)
    assert 1 / found.x > 1.2  # the members were too sure


def test_spread_is_that_of_an_independent_search(numbers):
    x, y = HELD_OUT["numbers"]
    predictive = numbers.predict(x)
    means, stds = predictive.means.double().numpy(), predictive.stds.double().numpy()

    def nll(factor: float) -> float:
        own = norm.logpdf(y.numpy(), means, factor * stds)
        return -(logsumexp(own, axis=0) - math.log(len(means))).mean()

    found = minimize_scalar(nll, bounds=(0.2, 10), method="bounded", options={"xatol": 1e-10})
    assert numbers.calibrate((x, y)).calibration.spread == pytest.approx(found.x, rel=1e-5)


def test_every_way_to_predict_is_calibrated(fitted):
    ensemble, calibrated, (x, y) = fitted
    expected = calibrated.calibration.apply(ensemble.predict(x))
    found = calibrated.predict(x)
    assert same(found, expected)
    assert not same(found, ensemble.predict(x))
    parts = list(calibrated.predict_iter(x, batch_size=300))
    assert len(parts) == 7
    torch.testing.assert_close(type(found).concat(parts).answers, found.answers)
    reduced = calibrated.predict(x, keep_members=False)
    torch.testing.assert_close(reduced.epistemic, found.epistemic, atol=1e-6, rtol=1e-5)
    assert calibrated.evaluate((x, y))["nll"] == pytest.approx(be.metrics.nll(expected, y), rel=1e-5)


def test_a_row_asked_for_again_and_again_stays_calibrated(fitted):
    """From the fourth time on it comes from a record."""
    _, calibrated, (x, _) = fitted
    first = calibrated.predict(x[:1])
    assert all(same(calibrated.predict(x[:1]), first) for _ in range(6))


def test_members_that_are_kept_or_weighed_stay_calibrated(fitted):
    ensemble, calibrated, (x, _) = fitted
    for change in (lambda one: one.keep([0, 2]), lambda one: one.reweight([0.5, 0.2, 0.3])):
        assert same(change(calibrated).predict(x), calibrated.calibration.apply(change(ensemble).predict(x)))


def test_saved_and_loaded_it_predicts_the_same_bits(fitted, tmp_path):
    ensemble, _, (x, y) = fitted
    calibrated = ensemble.calibrate((x[:300], y[:300]), level=0.8)
    calibrated.save(tmp_path / "run")
    loaded = be.load(tmp_path / "run", calibrated.task.model)
    assert loaded.calibration == calibrated.calibration
    assert same(loaded.predict(x), calibrated.predict(x))
    assert loaded.describe()["calibration"]["class"] == "Calibration"


def test_a_run_that_says_nothing_of_calibration_is_loaded(classes, tmp_path, monkeypatch):
    told = classes.describe()
    monkeypatch.setattr(be.Ensemble, "describe", lambda own: {k: v for k, v in told.items() if k != "calibration"})
    classes.save(tmp_path / "old")
    assert be.load(tmp_path / "old", classes.task.model).calibration is None


def test_calibrated_again_it_begins_anew(classes):
    once = classes.calibrate(HELD_OUT["classes"])
    assert once.calibrate(HELD_OUT["classes"]).calibration == once.calibration


def test_training_on_drops_it_with_a_sentence(classes):
    calibrated = classes.calibrate(HELD_OUT["classes"])
    task = be.Task(network(3), be.Categorical(), None)
    with pytest.warns(UserWarning, match="calibrate it again"):
        further = quick_fit(task, labelled(60, 0), epochs=1, start=calibrated)
    assert further.calibration is None


def test_settings_come_back_from_json():
    found = Calibration(spread=1.5, level=0.9, interval_corrections=(0.1, -0.2), num_rows=7)
    assert settings.parse(settings.dump(found), Calibration) == found


# --- promises ---


def simulated(rows: int, generator: torch.Generator, size: float = 1.5) -> tuple[ClassPredictive, Tensor]:
    """Two members that say the truth, but too loudly, and labels that follow the truth."""
    logits = size * torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    said = 3 * logits + torch.randn(2, rows, 4, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(said.softmax(-1)), labels


def test_sets_hold_the_label_as_often_as_they_say():
    """level <= P(hit) <= level + 1 / (n + 1), over held-out and new rows: 150 repeats of 99 rows for the threshold."""
    generator = torch.Generator().manual_seed(0)
    hits = []
    for _ in range(150):
        predictive, labels = simulated(198, generator)
        new, truth = simulated(50, generator)
        found = fit_calibration([(predictive, labels)], level=0.8)
        hits.append(float(found.sets(found.apply(new)).hit(truth).double().mean()))
    assert 0.8 - 3 * np.std(hits) / math.sqrt(150) < np.mean(hits) < 0.81 + 3 * np.std(hits) / math.sqrt(150)
    assert np.std(hits) / math.sqrt(150) < 0.007


def test_intervals_hold_the_target_as_often_as_they_say():
    generator = torch.Generator().manual_seed(1)

    def rows(num: int) -> tuple[Predictive, Tensor]:
        means = torch.randn(2, num, generator=generator)
        truth = means.mean(0) + torch.empty(num).exponential_(generator=generator)
        return Predictive.from_normal(means, 0.2), truth

    hits = []
    for _ in range(60):
        found = fit_calibration([rows(98)], level=0.9)
        new, truth = rows(50)
        intervals = found.intervals(found.apply(new))
        hits.append(float(((intervals.low <= truth) & (truth <= intervals.high)).double().mean()))
    assert 0.9 - 3 * np.std(hits) / math.sqrt(60) < np.mean(hits) < 0.92 + 3 * np.std(hits) / math.sqrt(60)
    assert np.std(hits) / math.sqrt(60) < 0.01


def test_the_risk_of_answered_rows_is_kept():
    """Broken in at most 5 of 100 sets of held-out rows, by the true error rate of 20,000 new rows."""
    generator = torch.Generator().manual_seed(2)
    new, truth = simulated(20_000, generator, 3.0)
    risks, answered = [], []
    for _ in range(30):
        found = fit_calibration([simulated(1000, generator, 3.0)], risk=0.15)
        decision = found.decide(found.apply(new))
        risks.append(float((decision.choice != truth)[decision.answered].double().mean()))
        answered.append(decision.coverage)
    assert sum(risk > 0.15 for risk in risks) <= 4
    assert 0.2 < np.mean(answered) < 0.95


def test_all_rows_are_answered_where_that_is_safe(tmp_path):
    generator = torch.Generator().manual_seed(3)
    found = fit_calibration([simulated(400, generator)], risk=0.9)
    assert found.answer_below is None
    assert settings.parse(settings.dump(found), Calibration).decide(simulated(50, generator)[0]).coverage == 1


def test_thresholds_come_from_rows_that_the_temperature_has_not_seen():
    predictive, labels = simulated(200, torch.Generator().manual_seed(4))
    found = [fit_calibration([(predictive, labels)], level=0.8, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0] != found[2]
    whole = fit_calibration([(predictive, labels)])
    assert whole.temperature != found[0].temperature
    few = fit_calibration([(predictive, labels)], level=0.8, share=0.1)
    assert abs(few.temperature - whole.temperature) < 0.2 * whole.temperature


# --- what can be calibrated, and what cannot ---


def rows_of(kind: str, rows: int = 120) -> tuple[Tensor, Tensor]:
    """Inputs, and targets of a kind that depend on them."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 3, generator=generator)
    values = x[:, :2] + 0.5 * torch.randn(rows, 2, generator=generator)
    return x, {
        "labels": (values[:, 0] > 0).long(),
        "ordered": values[:, 0].clamp(-1, 1).round().long() + 1,
        "real": values[:, 0],
        "pairs": values,
        "counts": values[:, 0].abs().round(),
    }[kind]


LIKELIHOODS: list[tuple[Any, int, str, dict[str, float], str | None]] = [
    (be.Categorical(), 3, "ordered", {"level": 0.8, "risk": 0.9}, "temperature"),
    (be.Bernoulli(), 1, "labels", {"level": 0.8, "risk": 0.9}, "temperature"),
    (be.Ordinal(3), 1, "ordered", {"level": 0.8, "risk": 0.9}, "temperature"),
    (be.Gaussian(noise=0.5), 1, "real", {"level": 0.8}, "spread"),
    (be.Gaussian(noise="learned"), 2, "pairs", {"level": 0.8}, "spread"),
    (be.HeteroscedasticGaussian(), 2, "real", {"level": 0.8}, "spread"),
    (be.HeteroscedasticStudent(), 2, "real", {"level": 0.8}, "spread"),
    (be.MultivariateGaussian(rank=1), 6, "pairs", {"level": 0.8}, "spread"),
    (be.GaussianMixture(2), 6, "real", {"level": 0.8}, None),
    (be.Quantile((0.1, 0.5, 0.9)), 3, "real", {"level": 0.8}, None),
    (be.Poisson(), 1, "counts", {"level": 0.8}, None),
]


@pytest.mark.parametrize("case", LIKELIHOODS, ids=lambda case: f"{type(case[0]).__name__}-{case[1]}")
def test_every_likelihood_that_can_be(case, tmp_path):
    likelihood, outputs, kind, wishes, corrected = case
    (x, y), make = rows_of(kind), network(outputs)
    method = be.DeepEnsemble(num_members=2, learning_rate=0.02)
    ensemble = quick_fit(be.Task(make, likelihood), (x, y), method, epochs=3)
    calibrated = ensemble.calibrate((x, y), **wishes)
    found = calibrated.calibration
    assert {name for name in ("temperature", "spread") if getattr(found, name) is not None} == {corrected} - {None}
    predictive = calibrated.predict(x)
    torch.testing.assert_close(
        predictive.aleatoric + predictive.epistemic,
        predictive.entropy if corrected == "temperature" else predictive.variance,
    )
    if corrected == "temperature":
        assert found.sets(predictive).hit(y).double().mean() > 0.7
        assert found.decide(predictive).abstain.shape == (120,)
    else:
        intervals = found.intervals(predictive)
        assert intervals.low.shape == predictive.mean.shape
        inside = (intervals.low <= y) & (y <= intervals.high)
        assert (inside.double().mean(0) > 0.7).all()
    calibrated.save(tmp_path)
    assert same(be.load(tmp_path, make).predict(x), predictive)


@pytest.mark.parametrize(("likelihood", "outputs"), [(be.Poisson(), 1), (be.Quantile((0.1, 0.5, 0.9)), 3)])
def test_what_has_neither_temperature_nor_spread_says_so(likelihood, outputs):
    x, y = rows_of("counts", 30)
    ensemble = quick_fit(be.Task(network(outputs), likelihood), (x, y), epochs=1)
    with pytest.raises(SettingError, match="say level="):
        ensemble.calibrate((x, y))


def test_censored_times_are_refused():
    x, y = rows_of("counts", 30)
    ensemble = quick_fit(be.Task(network(2), be.Weibull()), (x, y + 1), epochs=1)
    with pytest.raises(SettingError, match="censored"):
        ensemble.calibrate((x, y + 1), level=0.9)


def test_closed_forms_are_calibrated_too():
    x, y = numbered(40, 0)
    task = be.Task(network(1), be.Gaussian(noise=0.3))
    ensemble = quick_fit(task, (x, y), be.Laplace(num_members=1, structure="diag"), epochs=5)
    plain, calibrated = ensemble.predict(x), ensemble.calibrate(HELD_OUT["numbers"])
    found = calibrated.predict(x)
    assert plain.mean_variance is not None
    torch.testing.assert_close(found.variance, calibrated.calibration.spread**2 * plain.variance)


@pytest.mark.parametrize(
    ("rows", "wishes", "words"),
    [
        (20, {"level": 0.95}, "at least 19 rows"),
        (20, {"risk": 0.001}, "no threshold on the uncertainty"),
        (20, {"level": 1.0}, "strictly between 0 and 1"),
        (20, {"risk": 0.0}, "strictly between 0 and 1"),
        (20, {"share": 1.0}, "between 0 and 1"),
        (1, {"level": 0.5}, "two parts"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_promised_is_refused(classes, rows, wishes, words):
    x, y = HELD_OUT["classes"]
    with pytest.raises((DataError, SettingError), match=words):
        classes.calibrate((x[:rows], y[:rows]), **wishes)


def test_rows_that_are_all_right_have_no_temperature(classes):
    x, y = labelled(60, 0)
    right = (classes.predict(x).member_probs.argmax(-1) == y).all(0)
    with pytest.raises(DataError, match="held out"):
        classes.calibrate((x[right], y[right]))


def test_rows_that_nothing_is_known_of_have_no_temperature():
    sure = Predictive.from_probs(torch.tensor([[0.9, 0.1], [0.9, 0.1]]))
    with pytest.raises(DataError, match="more extreme"):
        fit_calibration([(sure, torch.tensor([1, 1]))])


def test_a_risk_is_of_classes(numbers):
    with pytest.raises(SettingError, match="for intervals"):
        numbers.calibrate(HELD_OUT["numbers"], risk=0.1)


def test_what_was_not_fitted_is_not_answered(classes):
    found = classes.calibrate(HELD_OUT["classes"]).calibration
    predictive = classes.predict(TEST["classes"][0])
    for ask, words in [(found.sets, "level=0.9"), (found.intervals, "level=0.9"), (found.decide, "risk=0.05")]:
        with pytest.raises(SettingError, match=words):
            ask(predictive)


def test_a_prediction_of_another_kind_is_refused(classes, numbers):
    found = numbers.calibrate(HELD_OUT["numbers"], level=0.9).calibration
    for ask in (found.apply, found.intervals):
        with pytest.raises(SettingError, match="not for ClassPredictive"):
            ask(classes.predict(TEST["classes"][0]))


def test_several_labels_of_a_row_share_a_temperature_but_have_no_sets():
    x, values = rows_of("pairs", 80)
    y = (values > 0).float()
    ensemble = quick_fit(be.Task(network(2), be.Bernoulli()), (x, y), epochs=1)
    assert ensemble.calibrate((x, y)).calibration.temperature > 0
    with pytest.raises(SettingError, match="one class per row"):
        ensemble.calibrate((x, y), level=0.8)


def test_labels_that_do_not_count_are_left_out(classes):
    x, y = HELD_OUT["classes"]
    blank = y.clone()
    blank[:100] = -1
    likelihood = be.Categorical(ignore_index=-1)
    masked = replace(classes, task=replace(classes.task, likelihood=likelihood))
    found = masked.calibrate((x, blank), level=0.9).calibration
    assert found == classes.calibrate((x[100:], y[100:]), level=0.9).calibration


def test_it_tells_what_it_is(classes, numbers):
    found = classes.calibrate(HELD_OUT["classes"], level=0.9, risk=0.4)
    assert "sets at level 0.9, risk at most 0.4, from 400 rows" in str(found.calibration)
    assert "temperature" in found._repr_html_()
    assert "spread" in str(numbers.calibrate(HELD_OUT["numbers"]).calibration)
    assert "below" in str(found.calibration.abstention)
