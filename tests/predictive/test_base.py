"""What all predictions share: members and weights, joining and reducing, uncertainty by every measure, targets."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

from bayesemble import metrics
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import PoissonPredictive, Predictive, StudentPredictive, base, match_targets
from bayesemble.task.likelihoods import Bernoulli
from mixtures import (
    OF_CLASSES,
    OF_REALS,
    WEIGHTS,
    random_classes,
    random_normals,
    random_poissons,
    rows_of_classes,
    rows_of_numbers,
)

# --- members, weights, joining, reducing ---


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_a_member_alone_has_the_log_probability_it_had_among_the_others(make, generator):
    predictive, targets = make(generator), torch.tensor([0, 1, 2, 3, 0, 1])
    for index in range(3):
        alone = predictive.member(index)
        assert alone.num_members == 1
        torch.testing.assert_close(alone.log_prob(targets), predictive.member_log_prob(targets)[index])
        torch.testing.assert_close(alone.epistemic, torch.zeros(6, dtype=torch.float64))


def test_members_say_probabilities_or_means_unless_they_were_dropped(generator):
    classes, normals, counts = (make(generator) for make in (random_classes, random_normals, random_poissons))
    assert torch.equal(classes.member_values(), classes.log_probs.exp())
    assert torch.equal(normals.member_values(), normals.means)
    assert torch.equal(counts.member_values(), counts.rates)
    for predictive in (classes, normals, counts):
        with pytest.raises(SettingError, match="needs the members, which this prediction dropped"):
            predictive.reduce().member_values()


def test_members_count_from_the_end_too(generator):
    predictive = random_normals(generator)
    for index in range(-3, 0):
        assert torch.equal(predictive.member(index).means[0], predictive.means[index])


@pytest.mark.parametrize("index", [3, 7, -4])
def test_a_member_that_does_not_exist_is_refused(index, generator):
    with pytest.raises(SettingError, match=f"there are 3 members, 0 to 2, not {index}"):
        random_classes(generator).member(index)


def test_chosen_members_keep_the_proportions_of_their_weights_or_weigh_the_same_if_all_are_zero():
    predictive = Predictive.from_normal([[0.0], [1.0], [2.0], [3.0]], 1.0, [0.25, 0.75, 0.0, 0.0])
    assert predictive.take([1, 0]).weights.tolist() == [0.75, 0.25]
    assert predictive.take([1, 2]).weights.tolist() == [1, 0]
    assert predictive.take([2, 3]).weights.tolist() == [0.5, 0.5]
    assert predictive.take([-4]).mean.tolist() == [0]


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


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_the_same_generator_gives_the_same_draws(make, generator):
    predictive = make(generator)
    first, second = (predictive.sample(5, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)


# --- predictions of other models ---


def test_whole_numbers_are_taken_as_real_ones():
    assert Predictive.from_normal([1, 2], 1).mean.tolist() == [1.0, 2.0]
    assert Predictive.from_probs([[1, 0]]).probs.tolist() == [[1.0, 0.0]]


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_are_refused_by_name(bad):
    with pytest.raises(DataError, match="probs contains NaN or infinity"):
        Predictive.from_probs([[bad, 0.5]])
    with pytest.raises(DataError, match="mean contains NaN or infinity"):
        Predictive.from_normal([bad], 1.0)
    with pytest.raises(DataError, match="std contains NaN or infinity"):
        Predictive.from_normal([0.0], [bad])


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


# --- uncertainty ---


def test_classes_have_six_measures_and_numbers_three(generator):
    assert random_classes(generator).measures == OF_CLASSES
    assert random_normals(generator).measures == OF_REALS
    assert PoissonPredictive(torch.ones(1), torch.ones(1, 3)).measures == OF_REALS


def test_each_measure_of_classes_is_what_it_says(generator):
    predictive = random_classes(generator, weights=None)
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
        np.testing.assert_allclose(predictive.uncertainty(measure).numpy(), values, atol=1e-12)


def test_doubt_of_classes_is_in_entropies_and_of_real_numbers_in_variances(generator):
    classes, normals = rows_of_classes(generator, 5), rows_of_numbers(generator, 5)
    assert torch.equal(classes.uncertainty(), classes.entropy)
    assert torch.equal(classes.uncertainty("epistemic"), classes.mutual_information)
    assert torch.equal(classes.uncertainty("aleatoric"), classes.expected_entropy)
    assert torch.equal(normals.uncertainty(), normals.variance)
    assert torch.equal(normals.uncertainty("epistemic"), normals.epistemic)
    assert torch.equal(normals.uncertainty("aleatoric"), normals.aleatoric)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_doubt_is_one_number_per_row_summed_over_outputs(measure, generator):
    several = Predictive.from_normal(torch.randn(3, 5, 2, generator=generator), 0.5)
    each = [Predictive.from_normal(several.means[..., i], 0.5) for i in range(2)]
    torch.testing.assert_close(several.uncertainty(measure), sum(one.uncertainty(measure) for one in each))
    labels = Bernoulli().predictive(torch.randn(3, 5, 2, generator=generator), {}, torch.full((3,), 1 / 3))
    assert labels.uncertainty(measure).shape == (5,)


@pytest.mark.parametrize(
    ("alias", "measure"),
    [("entropy", "total"), ("mutual_information", "epistemic"), ("expected_entropy", "aleatoric")],
)
def test_other_names_mean_the_same_for_classes_and_are_refused_for_numbers(alias, measure, generator):
    predictive = random_classes(generator)
    assert torch.equal(predictive.uncertainty(alias), predictive.uncertainty(measure))
    refused = f"NormalPredictive has uncertainty by total, epistemic, aleatoric, not by '{alias}'"
    with pytest.raises(SettingError, match=refused):
        random_normals(generator).uncertainty(alias)


@pytest.mark.parametrize("measure", ["disagreement", "max_probability", "member_std"])
def test_measures_of_classes_are_refused_for_numbers(measure, generator):
    refused = f"NormalPredictive has uncertainty by total, epistemic, aleatoric, not by '{measure}'"
    with pytest.raises(SettingError, match=refused):
        random_normals(generator).uncertainty(measure)


def test_an_unknown_measure_is_refused_and_the_known_ones_are_listed(generator):
    with pytest.raises(SettingError, match=r"ClassPredictive has uncertainty by total, .*max_prob.* not by 'fear'"):
        random_classes(generator).uncertainty("fear")
    with pytest.raises(SettingError, match=r"PoissonPredictive has uncertainty by total, .* not by 'fear'"):
        random_poissons(generator).uncertainty("fear")


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_all_measures_are_zero_for_one_certain_member(measure):
    certain = Predictive.from_probs([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert certain.uncertainty(measure).tolist() == [0, 0]


@pytest.mark.parametrize("measure", ["epistemic", "disagreement", "member_std"])
def test_one_member_does_not_differ_from_itself(measure, generator):
    one = random_classes(generator, (1, 20, 4), weights=None)
    assert one.uncertainty(measure).tolist() == [0.0] * 20
    alone = random_classes(generator, (3, 20, 4), weights=[0, 1, 0])
    torch.testing.assert_close(alone.uncertainty(measure), torch.zeros(20, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_every_measure_is_finite_and_not_negative_for_certain_members_that_differ(measure, generator):
    choices = torch.randint(0, 3, (4, 30), generator=generator)
    values = Predictive.from_probs(torch.eye(3)[choices]).uncertainty(measure)
    assert values.isfinite().all()
    assert (values >= 0).all()


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_several_outputs_are_added_up_to_one_number_per_row(measure, generator):
    logits = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    each = [Bernoulli().predictive(logits[..., i], {}, weights).uncertainty(measure) for i in range(2)]
    both = Bernoulli().predictive(logits, {}, weights)
    torch.testing.assert_close(both.uncertainty(measure), each[0] + each[1])


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_a_reduced_prediction_remembers_every_measure(measure, generator):
    predictive = random_classes(generator, weights=WEIGHTS)
    torch.testing.assert_close(predictive.reduce().uncertainty(measure), predictive.uncertainty(measure))
    joined = type(predictive).concat([predictive.reduce(), predictive.reduce()])
    torch.testing.assert_close(joined.uncertainty(measure), predictive.uncertainty(measure).repeat(2))


def test_answers_are_the_most_probable_class_or_the_mean_and_losses_what_they_cost(generator):
    classes, normals = random_classes(generator), random_normals(generator)
    assert (classes.kind, normals.kind) == ("classes", "numbers")
    labels, values = torch.tensor([0, 1, 2, 3, 0, 1]), torch.randn(6, generator=generator, dtype=torch.float64)
    assert classes.answers.tolist() == classes.probs.numpy().argmax(-1).tolist()
    assert classes.losses(labels).tolist() == [float(a != b) for a, b in zip(classes.answers, labels, strict=True)]
    assert torch.equal(normals.answers, normals.mean)
    torch.testing.assert_close(normals.losses(values), (normals.mean - values) ** 2)


# --- in a notebook ---


def test_a_prediction_shows_what_it_is(generator):
    predictive = random_classes(generator)
    shown = predictive._repr_html_()
    assert "ClassPredictive" in shown
    assert f"{float(predictive.epistemic.double().mean()):.4g}" in shown
    assert "dropped" not in shown
    assert "dropped" in predictive.reduce()._repr_html_()
    assert "NormalPredictive" in random_normals(generator)._repr_html_()


def test_it_needs_no_matplotlib():
    code = (
        "import sys, torch, bayesemble as be; be.Predictive.from_normal(torch.zeros(3, 5), 1.0)._repr_html_(); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- members that weigh nothing ---


def students(generator):
    normal = random_normals(generator)
    return StudentPredictive(normal.weights, normal.means, normal.stds, 5)


def with_a_silent_member(predictive, value):
    """One more member, of weight 0, of which nothing is a number."""
    extra = {
        name: torch.cat([field[:1], torch.full_like(field[:1], value), field[1:]])
        for name, field in predictive._member_fields().items()
    }
    weights = torch.cat([predictive.weights[:1], torch.zeros(1, dtype=torch.float64), predictive.weights[1:]])
    return dataclasses.replace(predictive, weights=weights, **extra)


SCORES = {
    "classes": [metrics.nll, metrics.diversity_gain, metrics.error_correlation, metrics.accuracy],
    "numbers": [metrics.nll, metrics.diversity_gain, metrics.crps, lambda *given: metrics.ambiguity(*given).variance],
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons, students])
def test_a_member_of_weight_zero_says_nothing_even_if_it_is_not_finite(make, value, generator):
    plain = make(generator)
    silent, targets = with_a_silent_member(plain, value), torch.arange(6) % 4
    for measure in plain.measures:
        torch.testing.assert_close(silent.uncertainty(measure), plain.uncertainty(measure))
    torch.testing.assert_close(silent.log_prob(targets), plain.log_prob(targets))
    torch.testing.assert_close(silent.answers, plain.answers)
    assert silent.weighed().num_members == 3
    assert plain.weighed() is plain
    if plain.kind == "numbers":
        torch.testing.assert_close(silent.interval(0.8), plain.interval(0.8))
        torch.testing.assert_close(silent.cdf(targets), plain.cdf(targets))
        torch.testing.assert_close(silent.std, plain.std)
    for score in SCORES[plain.kind]:
        assert score(silent, targets) == pytest.approx(score(plain, targets)), score
    assert metrics.summarise(silent, targets) == pytest.approx(metrics.summarise(plain, targets))


@pytest.mark.parametrize("shape", [(4, 50), (4, 50, 3), (4, 50, 2, 3)])
def test_an_average_in_blocks_of_rows_is_that_of_all_rows(shape, generator, monkeypatch):
    predictive = Predictive.from_probs(torch.ones(4, 50, 1), [0.1, 0.2, 0.3, 0.4])
    values = torch.randn(shape, generator=generator)
    whole = predictive.log_average(values)
    expected = (values.double().exp() * predictive.weights.double().reshape(-1, *[1] * (len(shape) - 1))).sum(0).log()
    monkeypatch.setattr(base, "_NUMBERS_AT_A_TIME", 40)
    torch.testing.assert_close(predictive.log_average(values), whole)
    torch.testing.assert_close(whole.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [random_classes, random_normals, random_poissons])
def test_some_rows_are_those_of_the_whole(make, generator):
    predictive = make(generator)
    for whole in (predictive, predictive.reduce()):
        some = whole.take_rows([4, 0])
        assert some.num_rows == 2
        assert torch.equal(some.epistemic, whole.epistemic[[4, 0]])
        assert torch.equal(some.answers, whole.answers[[4, 0]])
