"""Mixtures of classes against torch.distributions, scipy and sums over pairs."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from torch import distributions

from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import ClassPredictive, DirichletPredictive, Predictive
from bayesemble.predictive.classes import digamma_from_one
from mixtures import WEIGHTS, certain_classes, random_classes

# --- classes ---


def test_probabilities_are_the_weighted_mean_of_the_members(generator):
    predictive = random_classes(generator)
    expected = sum(w * member for w, member in zip(WEIGHTS, predictive.member_probs, strict=True))
    torch.testing.assert_close(predictive.probs, expected)
    torch.testing.assert_close(predictive.probs.sum(-1), torch.ones(6, dtype=torch.float64))


def test_entropies_are_those_of_torch_distributions(generator):
    predictive = random_classes(generator)
    total = distributions.Categorical(predictive.probs).entropy()
    inside = torch.tensor(WEIGHTS).double() @ distributions.Categorical(predictive.member_probs).entropy()
    torch.testing.assert_close(predictive.entropy, total)
    torch.testing.assert_close(predictive.aleatoric, inside)


def test_total_entropy_is_aleatoric_plus_epistemic(generator):
    predictive = random_classes(generator)
    assert (predictive.epistemic > 0).all()
    torch.testing.assert_close(predictive.entropy, predictive.aleatoric + predictive.epistemic)


def test_mutual_information_is_the_mean_divergence_of_the_members_from_the_mixture(generator):
    predictive = random_classes(generator)
    divergence = scipy.stats.entropy(predictive.member_probs.numpy(), predictive.probs.numpy()[None], axis=-1)
    np.testing.assert_allclose(predictive.mutual_information.numpy(), WEIGHTS @ divergence)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mutual_information_of_equal_members_is_zero_and_never_negative(generator, dtype):
    one = torch.rand(1, 500, 10, generator=generator, dtype=dtype).softmax(-1)
    information = Predictive.from_probs(one.expand(7, -1, -1)).mutual_information
    assert (information >= 0).all()
    torch.testing.assert_close(information, torch.zeros_like(information), atol=1e-6, rtol=0)


def test_certain_members_that_all_disagree_have_only_epistemic_doubt_of_log_m():
    predictive = certain_classes([[0], [1], [2]], num_classes=3)
    assert predictive.aleatoric.item() == 0
    assert predictive.epistemic.item() == pytest.approx(math.log(3))
    assert predictive.disagreement.item() == pytest.approx(1)


def test_probabilities_of_exactly_0_and_1_give_no_nan():
    predictive = certain_classes([[0, 1], [0, 2]], num_classes=3)
    assert predictive.probs.tolist() == [[1, 0, 0], [0, 0.5, 0.5]]
    assert predictive.entropy.tolist() == pytest.approx([0, math.log(2)])
    assert predictive.log_prob([0, 1]).tolist() == pytest.approx([0, -math.log(2)])
    assert predictive.log_prob([2, 0]).tolist() == [-math.inf, -math.inf]


def test_disagreement_is_the_mean_over_pairs_of_different_members(generator):
    predictive = random_classes(generator, (5, 40, 3), weights=None)
    choices = predictive.member_probs.argmax(-1)
    naive = torch.stack([(a != b).double() for a, b in itertools.combinations(choices, 2)]).mean(0)
    torch.testing.assert_close(predictive.disagreement, naive)


def test_weighted_disagreement_weighs_each_pair_by_the_product_of_weights(generator):
    predictive = random_classes(generator)
    choices = predictive.member_probs.argmax(-1)
    pairs = list(itertools.combinations(range(3), 2))
    naive = sum(WEIGHTS[i] * WEIGHTS[j] * (choices[i] != choices[j]).double() for i, j in pairs)
    all_pairs = sum(WEIGHTS[i] * WEIGHTS[j] for i, j in pairs)
    torch.testing.assert_close(predictive.disagreement, naive / all_pairs)


def test_one_member_has_no_epistemic_doubt_and_nothing_is_nan(generator):
    predictive = random_classes(generator, (1, 6, 4), weights=None)
    zeros = torch.zeros(6, dtype=torch.float64)
    torch.testing.assert_close(predictive.epistemic, zeros)
    assert torch.equal(predictive.disagreement, zeros)
    torch.testing.assert_close(predictive.entropy, predictive.aleatoric)
    torch.testing.assert_close(predictive.probs, predictive.member_probs[0])


def test_a_member_of_weight_0_changes_nothing(generator):
    three = random_classes(generator, weights=[0.5, 0.5, 0.0])
    two = Predictive.from_probs(three.member_probs[:2])
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    for name in ("probs", "entropy", "aleatoric", "epistemic", "disagreement"):
        torch.testing.assert_close(getattr(three, name), getattr(two, name))
    torch.testing.assert_close(three.log_prob(labels), two.log_prob(labels))


def test_all_weight_on_one_member_leaves_nobody_to_disagree_with(generator):
    predictive = random_classes(generator, weights=[0, 1, 0])
    assert torch.equal(predictive.disagreement, torch.zeros(6, dtype=torch.float64))


def test_the_log_probability_of_a_label_is_that_of_the_averaged_probabilities(generator):
    predictive = random_classes(generator)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    expected = distributions.Categorical(predictive.probs).log_prob(labels)
    torch.testing.assert_close(predictive.log_prob(labels), expected)


def test_log_probabilities_far_below_the_smallest_float_stay_finite():
    logs = torch.tensor([[[0.0, -2000.0]], [[0.0, -1000.0]]], dtype=torch.float64)
    predictive = ClassPredictive(torch.tensor([0.5, 0.5]), logs)
    assert predictive.log_prob([1]).item() == pytest.approx(-1000 - math.log(2))


def test_each_member_can_be_asked_about_its_own_targets(generator):
    predictive = random_classes(generator, (2, 3, 4), weights=None)
    labels = torch.tensor([[0, 1, 2], [3, 2, 1]])
    expected = [[predictive.log_probs[m, r, labels[m, r]].item() for r in range(3)] for m in range(2)]
    assert predictive.member_log_prob(labels).tolist() == expected


def test_several_outputs_are_independent_within_a_member_but_not_under_the_mixture(generator):
    predictive = ClassPredictive(
        torch.tensor(WEIGHTS).double(),
        torch.randn(3, 5, 2, 4, generator=generator, dtype=torch.float64).log_softmax(-1),
    )
    labels = torch.randint(0, 4, (5, 2), generator=generator)
    for row in range(5):
        joint = [predictive.log_probs[m, row, [0, 1], labels[row]].sum().exp().item() for m in range(3)]
        assert predictive.log_prob(labels)[row].item() == pytest.approx(math.log(np.dot(WEIGHTS, joint)))
    assert predictive.entropy.shape == predictive.disagreement.shape == (5, 2)


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
@pytest.mark.parametrize("values", [[0, 3], [0.0, 3.0], [False, True]], ids=str)
def test_whole_labels_of_any_number_type_become_integers_in_the_shape_of_the_rows(form, values):
    predictive = Predictive.from_probs(np.full((2, 4), 0.25))
    for given in (form(values), form([[value] for value in values])):
        labels = predictive.labels(given)
        assert labels.dtype == torch.int64
        assert labels.tolist() == values


@pytest.mark.parametrize("labels", [[0, 4], [-1, 0], [0.5, 1], [0, 1e30]], ids=str)
def test_labels_that_are_not_whole_or_out_of_range_are_refused(labels):
    predictive = Predictive.from_probs(np.full((2, 4), 0.25))
    for ask in (predictive.labels, predictive.log_prob, predictive.member_log_prob):
        with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.3, got "):
            ask(labels)


def test_the_range_of_wrong_labels_is_told():
    with pytest.raises(DataError, match=r"got -1\.\.2\.5$"):
        Predictive.from_probs(np.full((2, 4), 0.25)).labels([2.5, -1])


def test_labels_are_drawn_with_the_averaged_probabilities(generator):
    predictive = random_classes(generator)
    draws = predictive.sample(20_000, generator)
    frequencies = torch.stack([(draws == label).double().mean(0) for label in range(4)], dim=-1)
    torch.testing.assert_close(frequencies, predictive.probs, atol=0.02, rtol=0)


def test_a_draw_is_one_function_for_all_rows(generator):
    draws = certain_classes([[0, 0, 0], [1, 1, 1]], num_classes=2).sample(100, generator)
    assert draws.shape == (100, 3)
    assert (draws == draws[:, :1]).all()
    assert set(draws[:, 0].tolist()) == {0, 1}


# --- reduced ---


def test_reduced_classes_keep_probabilities_all_kinds_of_doubt_and_log_probabilities(generator):
    predictive = random_classes(generator)
    reduced = predictive.reduce()
    assert reduced.num_members == 1
    for name in ("probs", "entropy", "aleatoric", "epistemic", "disagreement"):
        torch.testing.assert_close(getattr(reduced, name), getattr(predictive, name))
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(reduced.log_prob(labels), predictive.log_prob(labels))


def test_reduced_certain_classes_give_no_nan():
    reduced = certain_classes([[0], [1]], num_classes=3).reduce()
    assert reduced.probs.tolist() == [[0.5, 0.5, 0]]
    assert reduced.epistemic.item() == pytest.approx(math.log(2))


# --- predictions of other models ---


def test_probabilities_of_one_model_become_one_member():
    predictive = Predictive.from_probs([[0.1, 0.9], [0.5, 0.5]])
    assert predictive.num_members == 1
    assert predictive.probs.flatten().tolist() == pytest.approx([0.1, 0.9, 0.5, 0.5])


def test_members_are_equally_weighted_unless_told_otherwise():
    probs = [[[1.0, 0.0]], [[0.0, 1.0]]]
    assert Predictive.from_probs(probs).probs.tolist() == [[0.5, 0.5]]
    assert Predictive.from_probs(probs, weights=[3, 1]).probs[0].tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("probs", [[[0.5, 0.6]], [[-0.1, 1.1]], [[0.2, 0.2]]])
def test_numbers_that_are_no_probabilities_are_refused(probs):
    with pytest.raises(DataError, match="non-negative and sum to one over the last axis"):
        Predictive.from_probs(probs)


def test_probabilities_of_the_wrong_shape_are_refused():
    with pytest.raises(DataError, match=r"probs must have 2 or 3 axes, got shape \(2,\)"):
        Predictive.from_probs([0.5, 0.5])


# --- the standard deviation over members ---


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


# --- Dirichlet distributions ---


def test_digamma_is_that_of_scipy_with_its_slope():
    values = torch.cat([torch.linspace(1, 20, 200), torch.logspace(1, 9, 100)]).double().requires_grad_()
    found, exact = digamma_from_one(values), values.detach().numpy()
    np.testing.assert_allclose(found.detach().numpy(), scipy.special.digamma(exact), rtol=1e-12, atol=2e-12)
    (slope,) = torch.autograd.grad(found.sum(), values)
    np.testing.assert_allclose(slope.numpy(), scipy.special.polygamma(1, exact), rtol=1e-9)


def test_dirichlets_are_like_many_networks_drawn_from_them(generator):
    """Entropies, standard deviations and mean logarithms against 100,000 draws of each of two weighted members."""
    alpha = torch.rand(2, 4, 3, generator=generator, dtype=torch.float64) * 4 + 0.5
    whole, weights = alpha.sum(-1), torch.tensor([0.25, 0.75], dtype=torch.float64)
    predictive = DirichletPredictive(weights, (alpha / whole.unsqueeze(-1)).log(), precisions=whole)
    rng = np.random.default_rng(0)
    drawn = [np.stack([rng.dirichlet(a, 100_000) for a in member.numpy()], 1) for member in alpha]
    drawn = torch.tensor(np.concatenate(drawn))
    many = ClassPredictive(weights.repeat_interleave(100_000) / 100_000, drawn.log())
    for name in ("probs", "entropy", "expected_entropy", "mutual_information", "member_std"):
        torch.testing.assert_close(getattr(predictive, name), getattr(many, name), rtol=0.02, atol=2e-3)
    torch.testing.assert_close(predictive.expected_log_probs(), many.expected_log_probs(), rtol=0.02, atol=1e-2)
    reduced = predictive.reduce()
    torch.testing.assert_close(reduced.mutual_information, predictive.mutual_information)
    torch.testing.assert_close(reduced.uncertainty("member_std"), predictive.member_std)
    with pytest.raises(SettingError, match="not known of a Dirichlet"):
        predictive.disagreement  # noqa: B018
    assert "disagreement" not in predictive.measures


def test_expected_log_probs_are_smoothed(generator):
    predictive = random_classes(generator)
    smooth = 0.9 * predictive.member_probs + 0.1 / predictive.probs.shape[-1]
    expected = sum(w * one.log() for w, one in zip(WEIGHTS, smooth, strict=True))
    torch.testing.assert_close(predictive.expected_log_probs(0.1), expected)
