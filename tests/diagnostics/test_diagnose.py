from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesemble as be
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def fitted() -> be.Ensemble:
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=3))


def test_coinciding_members_are_reported_in_words(fitted):
    diagnosis = be.diagnose(fitted.keep([0, 1, 0, 2]), table(seed=1))
    assert str(diagnosis).startswith("3 of 4 members are distinct functions (3 distinct in their weights).")
    assert "Members 0, 2 compute the same: keep one of them." in str(diagnosis)


def test_the_words_are_those_about_members_and_one_line_about_trust(fitted):
    diagnosis = be.diagnose(fitted, table(seed=1))
    *about_members, trust = str(diagnosis).splitlines()
    assert diagnosis.about_members() == about_members
    assert len(about_members) == 4
    assert trust.startswith("Accuracy ")


def test_the_words_carry_the_numbers(fitted):
    data = table(seed=1)
    diagnosis = be.diagnose(fitted, data)
    evidence = be.weighting.evidence(fitted, data)
    assert f"Equal weights cost {evidence.gap:.3g} nats" in str(diagnosis)
    stacked = fitted.reweight(be.weighting.stacking(fitted, data))
    gain = fitted.evaluate(data)["nll"] - stacked.evaluate(data)["nll"]
    assert diagnosis.stacking_gain == pytest.approx(gain, abs=1e-6)
    assert f"Accuracy {fitted.evaluate(data)['accuracy']:.3f}" in str(diagnosis)


@pytest.mark.parametrize(("noise", "words"), [(0.05, "too narrow"), (5.0, "too wide"), (1.0, "intervals fit")])
def test_regression_intervals_are_judged(noise, words, generator):
    x = torch.randn(2000, 2, generator=generator)
    y = x[:, 0] + torch.randn(2000, generator=generator)
    task = be.Task(lambda: nn.Linear(2, 1), be.Gaussian(noise=noise), prior=None)
    fitted = quick_fit(task, (x, y), be.DeepEnsemble(num_members=2, learning_rate=0.05), epochs=4, batch_size=100)
    assert words in str(be.diagnose(fitted, (x, y)))


def test_the_bounds_of_verdicts(fitted):
    diagnosis = be.diagnose(fitted, table(seed=1))
    for ece, over, words in (
        (0.019, 0.5, "well calibrated"),
        (0.02, 0.5, "too sure of itself"),
        (0.02, 0.0, "not sure enough"),
    ):
        scores = diagnosis.scores | {"ece": ece, "overconfidence": over}
        assert str(replace(diagnosis, scores=scores)).endswith(words + ".")
    for inside, words in ((0.869, "too narrow"), (0.871, "fit"), (0.929, "fit"), (0.931, "too wide")):
        scores = {"rmse": 1.0, "nll": 1.0, "coverage_90": inside}
        assert str(replace(diagnosis, scores=scores)).endswith(words + ".")


def test_a_confident_mistaken_ensemble_is_called_too_sure(fitted):
    x, y = table(seed=1)
    assert "too sure of itself" in str(be.diagnose(fitted, (10 * x, 1 - y)))


# --- the theorem's condition ---


def test_it_says_whether_averaging_is_empirical_bayes():
    """Members of one height meet the condition; under a prior, the height is that of the penalised likelihood."""
    x, y = table()

    def said(method, **options) -> str:
        return str(be.diagnose(quick_fit(be.Task(small_mlp, be.Categorical(), **options), (x, y), method), (x, y)))

    plain = said(be.DeepEnsemble(num_members=2), prior=None)
    assert "if all of them are of maximum likelihood on the training rows; this is not met" in plain
    penalised = said(be.DeepEnsemble(num_members=2))
    assert "MAP points, of maximum penalised likelihood on the training rows" in penalised
    assert "does not speak of them" in said(be.SWAG(start=0.0, rank=2, snapshots=3, draws=3))
    assert "does not speak of them" in said(be.DeepEnsemble(num_members=2, bootstrap=True))
    assert "does not speak of them" in said(be.DeepEnsemble(num_members=2, weight_decay=0.1), prior=None)
    assert "nothing to average" in said(be.DeepEnsemble(num_members=1))


def test_equal_members_meet_the_condition_and_a_scaled_one_only_without_penalty():
    x, y = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y), be.DeepEnsemble(num_members=2))
    for leaf in ensemble.state.members.params.values():
        leaf[1] = leaf[0]
    found = be.diagnose(ensemble, (x, y))
    assert found.penalised_range == pytest.approx(0, abs=1e-9)
    assert "this is met on these rows" in found.about_theorem()
    params = ensemble.state.members.params
    params["0.weight"][1] *= 3
    params["0.bias"][1] *= 3
    params["2.weight"][1] /= 3
    scaled = be.diagnose(ensemble, (x, y))
    assert scaled.evidence.likelihood_range == pytest.approx(0, abs=1e-3)
    assert scaled.penalised_range > 1
    assert "is not met" in scaled.about_theorem()


def test_of_censored_times_there_is_no_error_to_tell():
    generator = torch.Generator().manual_seed(0)
    x, times = torch.randn(40, 4, generator=generator), torch.rand(40, generator=generator) + 0.1
    y = torch.stack([times, (times > 0.5).float()], dim=1)
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Weibull()), (x, y))
    assert str(be.diagnose(ensemble, (x, y))).splitlines()[-1].startswith("NLL ")
