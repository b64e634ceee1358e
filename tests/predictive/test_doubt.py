import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from bayesemble.core.errors import SettingError
from bayesemble.predictive import PoissonPredictive, Predictive
from bayesemble.predictive.doubt import doubt, measures
from bayesemble.task.likelihoods import Bernoulli

OF_CLASSES = ("total", "epistemic", "aleatoric", "disagreement", "max_probability", "member_std")
OF_REALS = ("total", "epistemic", "aleatoric")
WEIGHTS = [0.5, 0.125, 0.375]


def random_classes(generator, members=3, rows=20, weights=None):
    logits = 2 * torch.randn(members, rows, 4, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1), weights)


def random_normals(generator):
    return Predictive.from_normal(torch.randn(3, 20, generator=generator, dtype=torch.float64), 0.5)


def test_classes_have_six_measures_and_numbers_three(generator):
    assert measures(random_classes(generator)) == OF_CLASSES
    assert measures(random_normals(generator)) == OF_REALS
    assert measures(PoissonPredictive(torch.ones(1), torch.ones(1, 3))) == OF_REALS


def test_each_measure_of_classes_is_what_it_says(generator):
    predictive = random_classes(generator)
    probs, members = predictive.probs.numpy(), predictive.member_probs.numpy()
    total, inside = scipy.stats.entropy(probs, axis=-1), scipy.stats.entropy(members, axis=-1).mean(0)
    pairs = list(itertools.combinations(members.argmax(-1), 2))
    expected = {
        "total": total,
        "epistemic": total - inside,
        "aleatoric": inside,
        "disagreement": np.mean([one != other for one, other in pairs], axis=0),
        "max_probability": 1 - probs.max(-1),
        "member_std": members.std(0, ddof=1).mean(-1),
    }
    for measure, values in expected.items():
        np.testing.assert_allclose(doubt(predictive, measure).numpy(), values, atol=1e-12)


@pytest.mark.parametrize(
    ("alias", "measure"),
    [("entropy", "total"), ("mutual_information", "epistemic"), ("expected_entropy", "aleatoric")],
)
def test_other_names_mean_the_same_for_classes_and_are_refused_for_numbers(alias, measure, generator):
    predictive = random_classes(generator)
    assert torch.equal(doubt(predictive, alias), doubt(predictive, measure))
    with pytest.raises(SettingError, match=f"doubt by '{alias}' is for classes; real numbers and counts have total, "):
        doubt(random_normals(generator), alias)


@pytest.mark.parametrize("measure", ["disagreement", "max_probability", "member_std"])
def test_measures_of_classes_are_refused_for_numbers(measure, generator):
    with pytest.raises(SettingError, match="is for classes; real numbers and counts have total, epistemic, aleatoric"):
        doubt(random_normals(generator), measure)


def test_an_unknown_measure_is_refused_and_the_known_ones_are_listed(generator):
    for predictive in (random_classes(generator), random_normals(generator)):
        with pytest.raises(SettingError, match=r"unknown measure of doubt 'fear'; there are .*max_probability"):
            doubt(predictive, "fear")


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_all_measures_are_zero_for_one_certain_member(measure):
    certain = Predictive.from_probs([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert doubt(certain, measure).tolist() == [0, 0]


@pytest.mark.parametrize("measure", ["epistemic", "disagreement", "member_std"])
def test_one_member_does_not_differ_from_itself(measure, generator):
    one = random_classes(generator, members=1)
    assert doubt(one, measure).tolist() == [0.0] * 20
    alone = random_classes(generator, weights=[0, 1, 0])
    torch.testing.assert_close(doubt(alone, measure), torch.zeros(20, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_every_measure_is_finite_and_not_negative_for_certain_members_that_differ(measure, generator):
    choices = torch.randint(0, 3, (4, 30), generator=generator)
    values = doubt(Predictive.from_probs(torch.eye(3)[choices]), measure)
    assert values.isfinite().all()
    assert (values >= 0).all()


def test_the_spread_of_members_by_weights_is_that_of_repeated_members(generator):
    """Weights 4, 1, 3: as a variance of the repeated members, up to the divisor of so many independent members."""
    predictive = random_classes(generator, weights=WEIGHTS)
    repeated = np.repeat(predictive.member_probs.numpy(), [4, 1, 3], axis=0)
    expected = (repeated.var(0, ddof=0) / (1 - np.square(WEIGHTS).sum())) ** 0.5
    np.testing.assert_allclose(predictive.member_std.numpy(), expected.mean(-1))


def test_the_weighted_variance_of_members_is_not_biased():
    """Members drawn with variance 1/12 have it on average, whatever their weights."""
    draws = np.random.default_rng(0).random((3, 20_000))
    predictive = Predictive.from_probs(np.stack([draws, 1 - draws], axis=-1), WEIGHTS)
    assert (predictive.member_std**2).mean().item() == pytest.approx(1 / 12, rel=0.03)


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_several_outputs_are_added_up_to_one_number_per_row(measure, generator):
    logits = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    each = [doubt(Bernoulli().predictive(logits[..., i], {}, weights), measure) for i in range(2)]
    torch.testing.assert_close(doubt(Bernoulli().predictive(logits, {}, weights), measure), each[0] + each[1])


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_a_reduced_prediction_remembers_every_measure(measure, generator):
    predictive = random_classes(generator, weights=WEIGHTS)
    torch.testing.assert_close(doubt(predictive.reduce(), measure), doubt(predictive, measure))
    joined = type(predictive).concat([predictive.reduce(), predictive.reduce()])
    torch.testing.assert_close(doubt(joined, measure), doubt(predictive, measure).repeat(2))
