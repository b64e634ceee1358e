import numpy as np
import pytest
import torch

from bayesemble.errors import SettingError
from bayesemble.likelihoods import Bernoulli
from bayesemble.metrics import doubt, ood_auroc
from bayesemble.predictive import Predictive


def random_classes(generator, rows, sharpness=1.0):
    logits = sharpness * torch.randn(3, rows, 4, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1))


def random_normals(generator, rows, spread=1.0):
    means = spread * torch.randn(3, rows, generator=generator, dtype=torch.float64)
    return Predictive.from_normal(means, torch.rand(3, rows, generator=generator, dtype=torch.float64) + 0.5)


def with_variances(variances):
    return Predictive.from_normal(np.zeros(len(variances)), np.sqrt(variances))


def naive_auroc(familiar, foreign):
    """The share of pairs in which the foreign row has more doubt, a tie being half a pair."""
    pairs = [(f > k) + 0.5 * (f == k) for f in foreign.tolist() for k in familiar.tolist()]
    return sum(pairs) / len(pairs)


def test_doubt_of_classes_is_in_entropies_and_of_real_numbers_in_variances(generator):
    classes, normals = random_classes(generator, 5), random_normals(generator, 5)
    assert torch.equal(doubt(classes), classes.entropy)
    assert torch.equal(doubt(classes, "epistemic"), classes.mutual_information)
    assert torch.equal(doubt(classes, "aleatoric"), classes.expected_entropy)
    assert torch.equal(doubt(normals), normals.variance)
    assert torch.equal(doubt(normals, "epistemic"), normals.epistemic)
    assert torch.equal(doubt(normals, "aleatoric"), normals.aleatoric)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_doubt_is_one_number_per_row_summed_over_outputs(measure, generator):
    several = Predictive.from_normal(torch.randn(3, 5, 2, generator=generator), 0.5)
    each = [Predictive.from_normal(several.means[..., i], 0.5) for i in range(2)]
    torch.testing.assert_close(doubt(several, measure), sum(doubt(one, measure) for one in each))
    labels = Bernoulli().predictive(torch.randn(3, 5, 2, generator=generator), {}, torch.full((3,), 1 / 3))
    assert doubt(labels, measure).shape == (5,)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_auroc_is_the_share_of_pairs_in_which_the_foreign_row_has_more_doubt(measure, generator):
    familiar, foreign = random_classes(generator, 40, sharpness=3.0), random_classes(generator, 30)
    expected = naive_auroc(doubt(familiar, measure), doubt(foreign, measure))
    assert ood_auroc(familiar, foreign, measure) == pytest.approx(expected)


def test_auroc_of_real_numbers_is_by_variance(generator):
    familiar, foreign = random_normals(generator, 40), random_normals(generator, 30, spread=2.0)
    assert ood_auroc(familiar, foreign) == pytest.approx(naive_auroc(familiar.variance, foreign.variance))


def test_ties_count_half():
    familiar, foreign = with_variances([1.0, 4.0, 4.0, 9.0]), with_variances([4.0, 4.0, 16.0])
    expected = naive_auroc(familiar.variance, foreign.variance)
    assert ood_auroc(familiar, foreign) == pytest.approx(expected) == pytest.approx((2 * 2 + 4) / 12)


def test_the_same_data_cannot_be_told_apart_from_itself(generator):
    predictive = random_classes(generator, 50)
    assert ood_auroc(predictive, predictive) == pytest.approx(0.5)


def test_sets_without_overlap_give_1_or_0():
    low, high = with_variances([1.0, 2.0]), with_variances([3.0, 4.0])
    assert ood_auroc(low, high) == 1
    assert ood_auroc(high, low) == 0


def test_exchanging_the_sets_turns_the_auroc_around(generator):
    one, other = random_classes(generator, 40), random_classes(generator, 30)
    assert ood_auroc(one, other) + ood_auroc(other, one) == pytest.approx(1)


def test_only_epistemic_doubt_tells_members_that_disagree_from_a_fair_coin():
    coin = Predictive.from_probs(np.full((2, 3, 2), 0.5))
    disagreeing = Predictive.from_probs(np.stack([np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))]))
    assert ood_auroc(coin, disagreeing, "total") == 0.5
    assert ood_auroc(coin, disagreeing, "epistemic") == 1
    assert ood_auroc(coin, disagreeing, "aleatoric") == 0


def test_a_reduced_prediction_doubts_as_the_whole_one(generator):
    familiar, foreign = random_classes(generator, 40), random_classes(generator, 30, sharpness=2.0)
    for measure in ("total", "epistemic", "aleatoric"):
        expected = ood_auroc(familiar, foreign, measure)
        assert ood_auroc(familiar.reduce(), foreign.reduce(), measure) == pytest.approx(expected)


def test_an_unknown_measure_is_refused(generator):
    with pytest.raises(SettingError, match="unknown measure of doubt 'fear'"):
        doubt(random_classes(generator, 3), "fear")
