import math
from functools import partial

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.apps.tables.targets import baseline_of, columns_of, evaluate_rows, in_units, likelihood_of, values_of
from bayesemble.data.find_schema import find_schema
from bayesemble.data.table_files import Chunk
from bayesemble.estimators.recipe import Recipe
from bayesemble.metrics import summarise
from bayesemble.metrics.calibration import expected_calibration_error
from bayesemble.predictive import NormalPredictive, PoissonPredictive, Predictive, StudentPredictive
from bayesemble.training.outgoing.readings import Rules


def table(y, task=None):
    chunk = Chunk(
        "t.csv", {"x": [str(i) for i in range(len(y))], "y": [str(value) for value in y]}, range(2, 2 + len(y))
    )
    schema = find_schema([chunk], "y", task)
    return schema, schema.encode(chunk)


REALS = [1000.5, 1002.25, 999.75, 1003.125]


def test_each_target_has_its_likelihood_and_baseline():
    for y, task, likelihood, outputs, baseline in (
        (REALS, None, be.HeteroscedasticStudent(), 2, np.mean(REALS)),
        (["a", "b", "b", "c", "c", "c"], None, be.Categorical(), 3, "c"),
        ([3, 0, 1, 0], "count", be.Poisson(), 1, 1.0),
    ):
        schema, rows = table(y, task)
        assert likelihood_of(schema, Recipe()) == (likelihood, outputs)
        assert baseline_of(schema, rows) == (baseline if isinstance(baseline, str) else pytest.approx(baseline))


def test_real_targets_may_have_normal_noise():
    assert likelihood_of(table(REALS)[0], Recipe(noise="normal")) == (be.HeteroscedasticGaussian(), 2)


@pytest.mark.parametrize(
    ("counts", "likelihood"),
    [("negative_binomial", be.NegativeBinomial()), ("zero_inflated", be.ZeroInflatedPoisson())],
)
def test_counts_may_have_another_distribution_and_other_targets_may_not(counts, likelihood):
    schema, _ = table([3, 0, 1, 0], "count")
    assert likelihood_of(schema, Recipe(counts=counts)) == (likelihood, 2)
    predictive = likelihood.predictive(torch.randn(2, 4, 2, generator=torch.Generator()), {}, torch.full((2,), 0.5))
    assert np.isfinite(np.array(values_of(schema, in_units(schema, predictive), Rules(0.9)), dtype=float)).all()
    with pytest.raises(
        be.SettingError, match=f"counts='{counts}' is for a target of counts, 'y' is read for regression"
    ):
        likelihood_of(table(REALS)[0], Recipe(counts=counts))


@pytest.mark.parametrize("family", [NormalPredictive, partial(StudentPredictive, degrees=4)])
def test_predictions_keep_the_digits_of_a_target_that_is_large_beside_its_deviation(family):
    schema, _ = table([1e9 + value for value in REALS])
    weights, means = torch.full((2,), 0.5), torch.tensor([[0.25, -1.0], [0.75, 1.0]])
    found = in_units(schema, family(weights, means, torch.ones(2, 2)))
    expected = schema.target.mean + schema.target.scale * np.array([0.5, 0.0])
    np.testing.assert_allclose(found.mean.numpy(), expected, rtol=0, atol=1e-6)
    mean, std, aleatoric, epistemic, low, high = values_of(schema, found, Rules(0.9))
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.square(std), np.square(aleatoric) + np.square(epistemic), rtol=1e-6)
    np.testing.assert_allclose(epistemic, schema.target.scale * np.array([0.25, 1.0]), rtol=1e-6)
    inside = found.cdf(np.array(high)) - found.cdf(np.array(low))
    np.testing.assert_allclose(inside.numpy(), 0.9, atol=1e-5)


def test_rates_without_end_become_large_numbers():
    schema, _ = table([3, 0, 1, 0], "count")
    found = in_units(schema, PoissonPredictive(torch.ones(1), torch.tensor([[float("inf"), 0.0, 2.0]])))
    assert np.isfinite(np.array(values_of(schema, found, Rules(0.9)), dtype=float)).all()
    assert columns_of(schema) == ["mean", "std", "aleatoric_std", "epistemic_std", "low", "high"]


def test_classes_come_with_their_probabilities_and_doubts():
    schema, _ = table(["a", "b", "b", "a"])
    probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.4, 0.6]]])
    values = dict(zip(columns_of(schema), values_of(schema, Predictive.from_probs(probs), Rules(0.9)), strict=True))
    assert values["prediction"] == ["a", "b"]
    np.testing.assert_allclose(values["p_a"], [0.8, 0.3], rtol=1e-6)
    np.testing.assert_allclose(values["p_b"], [0.2, 0.7], rtol=1e-6)
    np.testing.assert_allclose(np.add(values["aleatoric"], values["epistemic"]), values["entropy"], rtol=1e-5)
    assert values["entropy"][0] == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2), rel=1e-5)


def test_scores_in_parts_are_those_of_all_rows_in_original_units():
    schema, rows = table(REALS)
    y = np.array(REALS)

    def predict(part):
        return Predictive.from_normal(np.full(len(part.rows), 1001.0), 2.0)

    found = evaluate_rows(schema, 1000.0, predict, [rows, rows], "new ")
    expected = summarise(predict(rows), y)
    for name, value in expected.items():
        assert found.scores[name] == pytest.approx(value, rel=1e-5)
    assert found.baseline["rmse"] == pytest.approx(np.sqrt(np.square(y - 1000).mean()), rel=1e-5)
    assert (found.rows, found.unlike) == (8, 0)
    assert found.words.startswith("On 8 new rows: RMSE")
    assert evaluate_rows(schema, 1000.0, predict, [], "").words.startswith("There are no rows")


def test_the_error_of_chance_is_that_of_calibrated_predictions():
    """Labels drawn from the predicted probabilities: the mean of their ECE is close to what chance should make."""
    generator = np.random.default_rng(0)
    first = generator.uniform(0, 1, size=2000)
    probs = torch.tensor(np.stack([first, 1 - first], 1))
    errors, chances = [], []
    for _ in range(30):
        labels = (generator.uniform(size=2000) > first).astype(int)
        schema, rows = table([["a", "b"][label] for label in labels])
        found = evaluate_rows(schema, "a", lambda _: Predictive.from_probs(probs), [rows], "")
        errors.append(found.scores["ece"])
        chances.append(found.chance_ece)
        assert found.baseline["accuracy"] == pytest.approx((labels == 0).mean())
    assert expected_calibration_error(Predictive.from_probs(probs), labels) == pytest.approx(errors[-1], rel=1e-5)
    assert np.mean(errors) == pytest.approx(np.mean(chances), rel=0.1)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_numbers_are_written_to_six_digits_below_the_deviation_of_the_target_in_any_unit(unit):
    schema, _ = table([unit * value for value in (1.0, 4.0, -2.0, 0.5)])
    weights, means = torch.ones(1), torch.tensor([[0.123456789, -1.23456789]])
    found = in_units(schema, NormalPredictive(weights, means, torch.ones(1, 2)))
    mean, _, _, _, low, high = values_of(schema, found, Rules(0.9))
    for written, exact in zip((mean, low, high), (found.mean, *found.interval(0.9)), strict=True):
        errors = np.abs(written - exact.numpy()) / schema.target.scale
        assert errors.max() < 1e-5
        assert errors.max() > 0, "no more digits than tell something"
