import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import distributions

from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import (
    ClassPredictive,
    NormalPredictive,
    Predictive,
    match_targets,
)
from helpers import poissons

WEIGHTS = [0.5, 0.125, 0.375]


def random_classes(generator, shape=(3, 6, 4), weights=WEIGHTS):
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1), weights)


def random_normals(generator, shape=(3, 6), weights=WEIGHTS):
    means = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    stds = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    return Predictive.from_normal(means, stds, weights)


def random_poissons(generator):
    return poissons((8 * torch.rand(3, 6, generator=generator, dtype=torch.float64)).tolist(), WEIGHTS)


def certain_classes(choices, num_classes):
    """Members that give probability exactly 1 to one class: choices `(member, row)`."""
    return Predictive.from_probs(np.eye(num_classes)[np.asarray(choices)])


def mixture_of(predictive):
    """The same mixture of normals by torch.distributions, batched over rows."""
    weights = distributions.Categorical(predictive.weights.expand(predictive.num_rows, -1))
    members = distributions.Normal(predictive.means.T, predictive.stds.T)
    return distributions.MixtureSameFamily(weights, members)


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


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_the_same_generator_gives_the_same_draws(make, generator):
    predictive = make(generator)
    first, second = (predictive.sample(5, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)


# --- real numbers ---


def test_moments_of_a_mixture_of_normals_are_those_of_torch_distributions(generator):
    predictive = random_normals(generator)
    torch.testing.assert_close(predictive.mean, mixture_of(predictive).mean)
    torch.testing.assert_close(predictive.variance, mixture_of(predictive).variance)
    torch.testing.assert_close(predictive.std, mixture_of(predictive).stddev)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_the_second_moment_less_the_squared_mean_is_aleatoric_plus_epistemic_variance(make, generator):
    predictive = make(generator)
    weights = torch.tensor(WEIGHTS).double()
    second_moment = weights @ (predictive.member_variance + predictive.member_mean.square())
    torch.testing.assert_close(predictive.variance, second_moment - predictive.mean.square())
    torch.testing.assert_close(predictive.aleatoric, weights @ predictive.member_variance)
    torch.testing.assert_close(predictive.epistemic, predictive.variance - predictive.aleatoric)


def test_density_and_cdf_of_a_mixture_of_normals_are_those_of_torch_distributions(generator):
    predictive = random_normals(generator)
    values = 3 * torch.randn(6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(predictive.log_prob(values), mixture_of(predictive).log_prob(values))
    torch.testing.assert_close(predictive.cdf(values), mixture_of(predictive).cdf(values))


def test_the_density_of_a_target_hundreds_of_standard_deviations_away_stays_finite():
    predictive = Predictive.from_normal(np.zeros((2, 1)), np.ones((2, 1)))
    assert predictive.log_prob([500.0]).item() == pytest.approx(scipy.stats.norm.logpdf(500.0))


@pytest.mark.parametrize("level", [1e-6, 0.05, 0.5, 0.9, 1 - 1e-6])
def test_quantiles_of_a_mixture_of_normals_invert_its_cdf(generator, level):
    predictive = random_normals(generator)
    for row, quantile in enumerate(predictive.quantile(level).tolist()):
        means, stds = predictive.means[:, row].numpy(), predictive.stds[:, row].numpy()

        def excess(value, means=means, stds=stds):
            return WEIGHTS @ scipy.stats.norm.cdf(value, means, stds) - level

        assert quantile == pytest.approx(scipy.optimize.brentq(excess, -50, 50, xtol=1e-13), abs=1e-8)


@pytest.mark.parametrize("level", [1e-12, 0.1, 0.5, 0.975])
def test_the_quantile_of_one_member_is_that_of_a_normal(level):
    predictive = Predictive.from_normal([1.0, -2.0], [0.5, 3.0])
    expected = scipy.stats.norm.ppf(level, [1.0, -2.0], [0.5, 3.0])
    np.testing.assert_allclose(predictive.quantile(level).numpy(), expected)


def test_quantiles_of_far_modes_lie_in_the_modes():
    predictive = Predictive.from_normal([[-1000.0], [1000.0]], 1.0)
    low, high = predictive.interval(0.5)
    assert (low.item(), high.item()) == pytest.approx((-1000, 1000))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_central_interval_leaves_half_of_the_rest_on_each_side(generator, level):
    predictive = random_normals(generator)
    low, high = predictive.interval(level)
    tail = torch.full((6,), (1 - level) / 2, dtype=torch.float64)
    torch.testing.assert_close(predictive.cdf(low), tail)
    torch.testing.assert_close(1 - predictive.cdf(high), tail)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_level_that_is_no_probability_is_refused(make, level, generator):
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        make(generator).quantile(level)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_draws_have_the_moments_of_the_mixture(make, generator):
    predictive = make(generator)
    draws = predictive.sample(40_000, generator)
    torch.testing.assert_close(draws.mean(0), predictive.mean, atol=0.05, rtol=0.02)
    torch.testing.assert_close(draws.var(0), predictive.variance, atol=0.05, rtol=0.05)


def test_a_draw_of_real_numbers_is_one_function_plus_noise(generator):
    predictive = Predictive.from_normal([[-100.0] * 3, [100.0] * 3], 1.0)
    signs = predictive.sample(50, generator).sign()
    assert (signs == signs[:, :1]).all()
    assert len(signs[:, 0].unique()) == 2


def test_one_member_of_real_numbers_has_no_epistemic_variance(generator):
    predictive = random_normals(generator, (1, 6), weights=None)
    assert torch.equal(predictive.epistemic, torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(predictive.std, predictive.stds[0])
    torch.testing.assert_close(predictive.mean, predictive.means[0])


def test_several_real_outputs_are_summed_in_the_log_density_of_a_member(generator):
    predictive = random_normals(generator, (3, 5, 2))
    values = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    each = distributions.Normal(predictive.means, predictive.stds).log_prob(values).sum(-1)
    torch.testing.assert_close(predictive.member_log_prob(values), each)
    assert predictive.mean.shape == predictive.variance.shape == predictive.quantile(0.3).shape == (5, 2)


def test_rescaling_is_a_change_of_variables(generator):
    predictive = random_normals(generator)
    values = torch.randn(6, generator=generator, dtype=torch.float64)
    scaled = predictive.rescale(shift=5.0, scale=3.0)
    torch.testing.assert_close(scaled.mean, 5 + 3 * predictive.mean)
    torch.testing.assert_close(scaled.quantile(0.2), 5 + 3 * predictive.quantile(0.2))
    torch.testing.assert_close(scaled.log_prob(5 + 3 * values), predictive.log_prob(values) - math.log(3))
    reduced = predictive.reduce().rescale(5.0, 3.0)
    for part in ("aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(scaled, part), 9 * getattr(predictive, part))
        torch.testing.assert_close(getattr(reduced, part), 9 * getattr(predictive, part))


def test_a_negative_scale_turns_the_distribution_around(generator):
    predictive = random_normals(generator)
    values = torch.randn(6, generator=generator, dtype=torch.float64)
    turned = predictive.rescale(shift=5.0, scale=-2.0)
    torch.testing.assert_close(turned.mean, 5 - 2 * predictive.mean)
    torch.testing.assert_close(turned.variance, 4 * predictive.variance)
    torch.testing.assert_close(turned.quantile(0.2), 5 - 2 * predictive.quantile(0.8))
    torch.testing.assert_close(turned.cdf(5 - 2 * values), 1 - predictive.cdf(values))
    torch.testing.assert_close(turned.log_prob(5 - 2 * values), predictive.log_prob(values) - math.log(2))


def test_targets_given_as_a_list_are_as_precise_as_the_prediction():
    predictive = Predictive.from_normal([0.1], [1e-9])
    assert predictive.log_prob([0.1]).item() == pytest.approx(-math.log(1e-9) - math.log(2 * math.pi) / 2)
    assert predictive.cdf([0.1]).item() == 0.5


# --- counts ---


RATES = [[0.0, 0.1, 0.7, 1.0, 3.3, 20.0, 500.0, 1e5]]


@pytest.mark.parametrize("level", [0.001, 0.05, 0.31, 0.5, 0.9, 0.999])
def test_quantiles_of_one_poisson_are_those_of_scipy(level):
    expected = scipy.stats.poisson.ppf(level, RATES[0])
    np.testing.assert_array_equal(poissons(RATES).quantile(level).numpy(), expected)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.77, 0.95])
def test_the_quantile_of_a_poisson_mixture_is_the_first_count_whose_cdf_reaches_the_level(generator, level):
    predictive = random_poissons(generator)
    for row, quantile in enumerate(predictive.quantile(level).tolist()):
        cumulative = WEIGHTS @ scipy.stats.poisson.cdf(np.arange(60), predictive.rates[:, row, None].numpy())
        assert quantile == np.argmax(cumulative >= level)


@pytest.mark.parametrize("value", [-3.0, -0.5, 0.0, 0.5, 2.0, 2.999, 30.0])
def test_the_cdf_of_a_poisson_is_that_of_scipy_between_and_below_the_counts_too(value):
    predictive = poissons(RATES)
    expected = scipy.stats.poisson.cdf(value, RATES[0])
    np.testing.assert_allclose(predictive.cdf(np.full(8, value)).numpy(), expected, atol=1e-14)


def test_probabilities_of_counts_are_mixed_poissons(generator):
    predictive = random_poissons(generator)
    counts = np.array([0, 1, 2, 5, 10, 40])
    expected = np.log(WEIGHTS @ scipy.stats.poisson.pmf(counts, predictive.rates.numpy()))
    np.testing.assert_allclose(predictive.log_prob(counts).numpy(), expected)


def test_a_rate_of_0_is_certain_of_the_count_0():
    predictive = poissons([[0.0, 0.0]])
    assert predictive.log_prob([0, 1]).tolist() == [0, -math.inf]
    assert predictive.variance.tolist() == [0, 0]


# --- members, weights, joining, reducing ---


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_a_member_alone_has_the_log_probability_it_had_among_the_others(make, generator):
    predictive, targets = make(generator), torch.tensor([0, 1, 2, 3, 0, 1])
    for index in range(3):
        alone = predictive.member(index)
        assert alone.num_members == 1
        torch.testing.assert_close(alone.log_prob(targets), predictive.member_log_prob(targets)[index])
        torch.testing.assert_close(alone.epistemic, torch.zeros(6, dtype=torch.float64))


def test_members_count_from_the_end_too(generator):
    predictive = random_normals(generator)
    for index in range(-3, 0):
        assert torch.equal(predictive.member(index).means[0], predictive.means[index])


@pytest.mark.parametrize("index", [3, 7, -4])
def test_a_member_that_does_not_exist_is_refused(index, generator):
    with pytest.raises(SettingError, match=f"there are 3 members, 0 to 2, not {index}"):
        random_classes(generator).member(index)


def test_other_weights_are_normalised_and_put_in_place_of_the_old_ones(generator):
    predictive = random_classes(generator)
    assert predictive.probs is not None  # the average under the old weights has been worked out and kept
    other = predictive.reweight([2.0, 6.0, 0.0])
    assert other.weights.tolist() == [0.25, 0.75, 0]
    first, second, _ = predictive.member_probs
    torch.testing.assert_close(other.probs, 0.25 * first + 0.75 * second)
    torch.testing.assert_close(predictive.weights, torch.tensor(WEIGHTS).double())


def test_weights_given_as_a_list_are_as_precise_as_the_prediction(generator):
    weights = [0.1, 0.2, 0.7]
    assert random_classes(generator).reweight(weights).weights.tolist() == pytest.approx(weights, rel=1e-15)
    assert random_normals(generator, weights=weights).weights.tolist() == pytest.approx(weights, rel=1e-15)


@pytest.mark.parametrize(
    "weights",
    [[1, 1], [1, -1, 1], [0, 0, 0], [1, math.nan, 1], [1, math.inf, 1], [[1, 1, 1]], list("abc"), "abc", [1, [2], 3]],
    ids=str,
)
def test_wrong_weights_are_refused(weights, generator):
    with pytest.raises(SettingError, match="weights must be 3 non-negative numbers, one per member"):
        random_classes(generator).reweight(weights)


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
@pytest.mark.parametrize("reduced", [False, True])
def test_rows_predicted_in_parts_are_the_rows_predicted_at_once(make, reduced, generator):
    whole = make(generator)
    fields = whole._member_fields()
    cuts = [{name: leaf[:, rows] for name, leaf in fields.items()} for rows in (slice(0, 4), slice(4, 6))]
    parts = [type(whole)(whole.weights, **cut) for cut in cuts]
    joined = type(whole).concat([part.reduce() for part in parts] if reduced else parts)
    expected = whole.reduce() if reduced else whole
    assert joined.num_rows == 6
    for name in ("aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(joined, name), getattr(expected, name))
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(joined.log_prob(targets), expected.log_prob(targets))


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


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_reduced_real_predictions_keep_mean_and_both_variances(make, generator):
    predictive = make(generator)
    for name in ("mean", "aleatoric", "epistemic", "variance", "std"):
        torch.testing.assert_close(getattr(predictive.reduce(), name), getattr(predictive, name))


def test_a_reduced_mixture_of_normals_has_the_quantiles_of_the_normal_with_its_moments(generator):
    predictive = random_normals(generator)
    expected = scipy.stats.norm.ppf(0.8, predictive.mean.numpy(), predictive.std.numpy())
    np.testing.assert_allclose(predictive.reduce().quantile(0.8).numpy(), expected)


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_reducing_twice_is_reducing_once(make, generator):
    once = make(generator).reduce()
    twice = once.reduce()
    torch.testing.assert_close(twice.aleatoric, once.aleatoric)
    torch.testing.assert_close(twice.epistemic, once.epistemic)


@pytest.mark.parametrize(
    "ask",
    [
        lambda p, g: p.member(0),
        lambda p, g: p.reweight([1]),
        lambda p, g: p.sample(1, g),
        lambda p, g: p.member_probs,
    ],
    ids=["member", "reweight", "sample", "member_probs"],
)
def test_what_needs_the_members_is_refused_once_they_are_dropped(ask, generator):
    with pytest.raises(SettingError, match="needs the members, which this prediction dropped"):
        ask(random_classes(generator).reduce(), generator)


def test_a_prediction_says_how_large_it_is(generator):
    assert repr(random_classes(generator)) == "ClassPredictive(3 members, 6 rows)"
    assert repr(random_normals(generator).reduce()) == "NormalPredictive(1 members, 6 rows, reduced)"


# --- predictions of other models ---


def test_probabilities_of_one_model_become_one_member():
    predictive = Predictive.from_probs([[0.1, 0.9], [0.5, 0.5]])
    assert predictive.num_members == 1
    assert predictive.probs.flatten().tolist() == pytest.approx([0.1, 0.9, 0.5, 0.5])


def test_members_are_equally_weighted_unless_told_otherwise():
    probs = [[[1.0, 0.0]], [[0.0, 1.0]]]
    assert Predictive.from_probs(probs).probs.tolist() == [[0.5, 0.5]]
    assert Predictive.from_probs(probs, weights=[3, 1]).probs[0].tolist() == pytest.approx([0.75, 0.25])


def test_one_standard_deviation_serves_all_means():
    predictive = Predictive.from_normal([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], 0.5)
    assert isinstance(predictive, NormalPredictive)
    assert predictive.aleatoric.tolist() == [0.25] * 3
    assert predictive.epistemic.tolist() == [0.25] * 3


def test_whole_numbers_are_taken_as_real_ones():
    assert Predictive.from_normal([1, 2], 1).mean.tolist() == [1.0, 2.0]
    assert Predictive.from_probs([[1, 0]]).probs.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("probs", [[[0.5, 0.6]], [[-0.1, 1.1]], [[0.2, 0.2]]])
def test_numbers_that_are_no_probabilities_are_refused(probs):
    with pytest.raises(DataError, match="non-negative and sum to one over the last axis"):
        Predictive.from_probs(probs)


def test_probabilities_of_the_wrong_shape_are_refused():
    with pytest.raises(DataError, match=r"probs must have 2 or 3 axes, got shape \(2,\)"):
        Predictive.from_probs([0.5, 0.5])


@pytest.mark.parametrize("shape", [(0, 4, 2), (3, 0, 2), (0, 2)])
def test_predictions_without_members_or_rows_are_refused(shape):
    with pytest.raises(DataError, match=r"probs is empty, its shape is .*at least one member and row is needed"):
        Predictive.from_probs(np.zeros(shape))
    with pytest.raises(DataError, match="mean is empty"):
        Predictive.from_normal(np.zeros(shape), 1.0)


@pytest.mark.parametrize("values", [[["a", "b"]], [[0.5, "b"]], [[0.5, 0.5], [1.0]]], ids=str)
def test_what_is_no_array_of_numbers_is_refused_by_name(values):
    with pytest.raises(DataError, match=r"probs must be (an array of )?numbers"):
        Predictive.from_probs(values)
    with pytest.raises(DataError, match=r"mean must be (an array of )?numbers"):
        Predictive.from_normal(values, 1.0)
    with pytest.raises(DataError, match=r"std must be (an array of )?numbers"):
        Predictive.from_normal([[0.0, 0.0]], values)


@pytest.mark.parametrize("std", [np.ones(2), np.ones((3, 1)), np.ones((1, 2, 3))], ids=np.shape)
def test_a_standard_deviation_that_does_not_broadcast_is_refused(std):
    shape = str(std.shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DataError, match=rf"std of shape {shape} does not fit means \(2, 3\)"):
        Predictive.from_normal(np.zeros((2, 3)), std)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_are_refused_by_name(bad):
    with pytest.raises(DataError, match="probs contains NaN or infinity"):
        Predictive.from_probs([[bad, 0.5]])
    with pytest.raises(DataError, match="mean contains NaN or infinity"):
        Predictive.from_normal([bad], 1.0)
    with pytest.raises(DataError, match="std contains NaN or infinity"):
        Predictive.from_normal([0.0], [bad])


@pytest.mark.parametrize("std", [0.0, -1.0])
def test_standard_deviations_must_be_positive(std):
    with pytest.raises(DataError, match=f"must be positive, the smallest is {std:g}"):
        Predictive.from_normal([0.0, 0.0], [1.0, std])


# --- shapes of targets ---


@pytest.mark.parametrize(
    ("given", "outputs", "expected"),
    [
        ((4,), (3, 4), (4,)),
        ((4, 1), (3, 4), (4,)),
        ((4,), (3, 4, 1), (4, 1)),
        ((4, 2), (3, 4, 2), (4, 2)),
    ],
)
def test_targets_are_brought_to_the_shape_of_the_outputs(given, outputs, expected):
    values = torch.arange(math.prod(given))
    matched = match_targets(values.reshape(given), torch.Size(outputs))
    assert matched.shape == expected
    assert torch.equal(matched.flatten(), values)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
def test_only_members_asked_one_by_one_may_have_targets_of_their_own(shape):
    own = torch.zeros(shape)
    assert match_targets(own, torch.Size(shape), per_member=True).shape == shape
    with pytest.raises(DataError, match="to fit the predictions"):
        match_targets(own, torch.Size(shape))


def test_targets_that_are_not_finite_are_named_by_row():
    with pytest.raises(DataError, match="targets must be finite numbers; row 1 holds nan"):
        match_targets([0.0, math.nan], torch.Size((3, 2)))


@pytest.mark.parametrize("given", [(3,), (5,), (4, 2), (1, 4), ()])
def test_targets_that_do_not_fit_are_refused_and_never_broadcast(given):
    with pytest.raises(DataError, match=r"targets must have shape \(4,\) to fit the predictions"):
        match_targets(torch.zeros(given), torch.Size((3, 4)))
