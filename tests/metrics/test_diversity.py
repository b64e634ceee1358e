import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.members import Members
from bayesemble.metrics import accuracy, nll, rmse
from bayesemble.metrics.diversity import (
    ambiguity,
    disagreement,
    disagreement_matrix,
    diversity_gain,
    effective_members,
    error_correlation,
    jensen_shannon,
    jensen_shannon_matrix,
    kl_matrix,
    weight_cosine,
)
from bayesemble.predictive import ClassPredictive, PoissonPredictive, Predictive
from helpers import norm_mlp, quick_fit, table

MEMBERS, ROWS, CLASSES = 4, 30, 3
WEIGHTS = [0.1, 0.2, 0.3, 0.4]


def random_classes(generator, weights=None, sharpness=2.0):
    logits = torch.randn(MEMBERS, ROWS, CLASSES, generator=generator, dtype=torch.float64)
    return Predictive.from_probs((sharpness * logits).softmax(-1), weights)


def random_labels(generator, rows=ROWS):
    return torch.randint(0, CLASSES, (rows,), generator=generator)


def random_normals(generator, weights=None, outputs=()):
    means, stds = (torch.randn(MEMBERS, ROWS, *outputs, generator=generator, dtype=torch.float64) for _ in range(2))
    return Predictive.from_normal(means, stds.exp(), weights)


def pair_mean(matrix, weights):
    """Mean over ordered pairs of different members, by the product of their weights."""
    pairs = list(itertools.permutations(range(len(weights)), 2))
    return np.average([matrix[m][n] for m, n in pairs], weights=[weights[m] * weights[n] for m, n in pairs])


# --- disagreement ---


def test_disagreement_matrix_is_that_of_a_loop(generator):
    predictive = random_classes(generator)
    choices = predictive.member_probs.argmax(-1).tolist()
    naive = [[np.mean([a != b for a, b in zip(one, two, strict=True)]) for two in choices] for one in choices]
    np.testing.assert_allclose(disagreement_matrix(predictive), naive)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_disagreement_is_the_mean_over_pairs(weights, generator):
    predictive = random_classes(generator, weights)
    expected = pair_mean(disagreement_matrix(predictive), weights or [1] * MEMBERS)
    assert disagreement(predictive) == pytest.approx(expected)
    assert disagreement(predictive.reduce()) == pytest.approx(expected)


def test_equal_members_do_not_differ_in_any_way(generator):
    one = random_classes(generator).member_probs[:1]
    predictive = Predictive.from_probs(one.repeat(3, 1, 1))
    for matrix in (disagreement_matrix, kl_matrix, jensen_shannon_matrix):
        np.testing.assert_allclose(matrix(predictive), np.zeros((3, 3)), atol=1e-12)
    labels = random_labels(generator)
    assert disagreement(predictive) == 0
    assert jensen_shannon(predictive) == pytest.approx(0, abs=1e-12)
    assert diversity_gain(predictive, labels) == pytest.approx(0, abs=1e-12)
    assert error_correlation(predictive, labels) == pytest.approx(1)


def test_random_choices_disagree_as_often_as_the_number_of_classes_says(generator):
    probs = torch.rand(6, 4000, 5, generator=generator, dtype=torch.float64)
    predictive = Predictive.from_probs(probs / probs.sum(-1, keepdim=True))
    assert disagreement(predictive) == pytest.approx(1 - 1 / 5, abs=0.01)


def test_one_member_does_not_disagree_with_itself(generator):
    predictive = random_classes(generator).member(0)
    assert disagreement(predictive) == 0
    assert disagreement_matrix(predictive).tolist() == [[0]]
    assert jensen_shannon(predictive) == pytest.approx(0, abs=1e-12)
    assert math.isnan(error_correlation(predictive, random_labels(generator)))


# --- divergences ---


def test_divergences_are_those_of_scipy_averaged_over_rows(generator):
    predictive = random_classes(generator)
    probs = predictive.member_probs.numpy()
    kl = [[np.mean([entropy(p, q) for p, q in zip(one, two, strict=True)]) for two in probs] for one in probs]
    js = [[np.mean(jensenshannon(one, two, axis=1) ** 2) for two in probs] for one in probs]
    np.testing.assert_allclose(kl_matrix(predictive), kl, atol=1e-12)
    np.testing.assert_allclose(jensen_shannon_matrix(predictive), js, atol=1e-12)


def test_probability_0_is_safe():
    """KL is infinite only where the second member excludes what the first does not; JS stays finite."""
    predictive = Predictive.from_probs([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])
    np.testing.assert_allclose(kl_matrix(predictive), [[0, math.log(2)], [math.inf, 0]])
    expected = jensenshannon([1, 0, 0], [0.5, 0.5, 0]) ** 2
    np.testing.assert_allclose(jensen_shannon_matrix(predictive), [[0, expected], [expected, 0]])


def test_members_certain_of_different_classes_reach_the_largest_divergence():
    predictive = Predictive.from_probs(np.eye(3)[:, None, :])
    expected = math.log(2) * (1 - np.eye(3))
    np.testing.assert_allclose(jensen_shannon_matrix(predictive), expected)
    assert jensen_shannon(predictive) == pytest.approx(math.log(3))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_divergence_of_all_members_is_the_mean_mutual_information(weights, generator):
    predictive = random_classes(generator, weights)
    w, probs = np.array(weights or [1 / MEMBERS] * MEMBERS), predictive.member_probs.numpy()
    naive = [
        entropy(sum(w[m] * probs[m, row] for m in range(MEMBERS)))
        - sum(w[m] * entropy(probs[m, row]) for m in range(MEMBERS))
        for row in range(ROWS)
    ]
    assert jensen_shannon(predictive) == pytest.approx(np.mean(naive))
    assert jensen_shannon(predictive) == pytest.approx(float(predictive.mutual_information.mean()))


def test_divergence_of_two_members_at_once_is_that_of_their_pair(generator):
    predictive = Predictive.from_probs(random_classes(generator).member_probs[:2])
    assert jensen_shannon(predictive) == pytest.approx(float(jensen_shannon_matrix(predictive)[0, 1]))


@pytest.mark.parametrize("matrix", [disagreement_matrix, kl_matrix, jensen_shannon_matrix])
def test_several_outputs_count_as_rows(matrix, generator):
    flat = random_classes(generator)
    wide = ClassPredictive(flat.weights, flat.log_probs.reshape(MEMBERS, ROWS // 2, 2, CLASSES))
    torch.testing.assert_close(matrix(wide), matrix(flat))


@pytest.mark.parametrize("matrix", [disagreement_matrix, kl_matrix, jensen_shannon_matrix])
def test_predictions_that_dropped_their_members_are_refused(matrix, generator):
    with pytest.raises(SettingError, match="needs the members, which this prediction dropped"):
        matrix(random_classes(generator).reduce())


# --- weights ---


def random_members(generator, shared=frozenset()):
    def leaf(name, *shape):
        return torch.randn(*(() if name in shared else (MEMBERS,)), *shape, generator=generator)

    params = {"body.weight": leaf("body.weight", 3, 2), "norm.weight": leaf("norm.weight", 3), "bias": leaf("bias", 2)}
    return Members(params, {}, torch.full((MEMBERS,), 1 / MEMBERS), shared)


def naive_cosines(members, names):
    vectors = [np.concatenate([one[0][name].double().numpy().ravel() for name in names]) for one in members.split()]
    return [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in vectors] for a in vectors]


def test_cosine_is_that_of_concatenated_parameters(generator):
    members = random_members(generator)
    np.testing.assert_allclose(weight_cosine(members), naive_cosines(members, members.params), atol=1e-12)


def test_cosine_leaves_out_what_a_pattern_names(generator):
    members = random_members(generator)
    expected = naive_cosines(members, ["body.weight", "bias"])
    np.testing.assert_allclose(weight_cosine(members, exclude=["norm.*"]), expected, atol=1e-12)


def test_shared_leaves_do_not_count(generator):
    members = random_members(generator, shared=frozenset(["body.weight"]))
    expected = naive_cosines(members, ["norm.weight", "bias"])
    np.testing.assert_allclose(weight_cosine(members), expected, atol=1e-12)


def test_cosine_with_itself_is_1_with_its_opposite_minus_1_and_without_direction_undefined():
    leaf = torch.tensor([[1.0, 2.0], [3.0, 6.0], [-1.0, -2.0], [2.0, -1.0], [0.0, 0.0]])
    cosines = weight_cosine(Members({"w": leaf}, {}, torch.ones(5) / 5))
    np.testing.assert_allclose(cosines[0, :4], [1, 1, -1, 0], atol=1e-12)
    assert cosines[4].isnan().all()


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (["*batch*"], r"no parameter is called '\*batch\*'; the stacked ones are body.weight, norm.weight, bias"),
        (["*"], "no stacked parameter is left to compare"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(exclude, message, generator):
    with pytest.raises(SettingError, match=message):
        weight_cosine(random_members(generator), exclude)


def test_norm_layers_that_start_alike_raise_the_cosine_of_a_trained_ensemble():
    members = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), epochs=1).state.members
    others = ~torch.eye(3, dtype=torch.bool)
    everything, without_norm = weight_cosine(members), weight_cosine(members, exclude=["1.*"])
    assert (everything > without_norm + 0.1)[others].all()
    np.testing.assert_allclose(everything.diagonal(), 1)


@pytest.mark.parametrize("kind", ["squares", "entropy"])
def test_effective_members_counts_equal_weights_and_ignores_empty_ones(kind):
    assert effective_members([1] * 7, kind) == pytest.approx(7)
    assert effective_members([2, 2, 0, 2, 0], kind) == pytest.approx(3)
    assert effective_members(torch.tensor([0.0, 1.0]), kind) == pytest.approx(1)


def test_effective_members_by_hand_and_the_entropy_is_the_larger_count():
    weights = np.array([0.5, 0.25, 0.25])
    assert effective_members(weights) == pytest.approx(1 / (1 / 4 + 1 / 16 + 1 / 16))
    assert effective_members(weights, "entropy") == pytest.approx(2**1.5)
    assert effective_members(weights, "entropy") > effective_members(weights)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [[1.0, 2.0]], [math.nan, 1], [math.inf, 1]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(DataError, match="weights must be non-negative numbers, one per member, not all zero"):
        effective_members(weights)


def test_an_unknown_way_to_count_is_refused():
    with pytest.raises(SettingError, match='kind is "squares" or "entropy", not \'size\''):
        effective_members([1, 1], "size")


# --- errors ---


def wrong_rows(predictive, labels):
    return (predictive.member_probs.argmax(-1) != labels).double().numpy()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_error_correlation_is_that_of_numpy(weights, generator):
    predictive, labels = random_classes(generator, weights), random_labels(generator)
    expected = pair_mean(np.corrcoef(wrong_rows(predictive, labels)), weights or [1] * MEMBERS)
    assert error_correlation(predictive, labels) == pytest.approx(expected)


def test_members_that_never_err_or_always_do_are_left_out(generator):
    labels = random_labels(generator)
    right = torch.nn.functional.one_hot(labels, CLASSES).double()
    predictive = random_classes(generator)
    more = torch.cat([predictive.member_probs, right[None], right.roll(1, dims=-1)[None]])
    assert error_correlation(Predictive.from_probs(more), labels) == pytest.approx(
        error_correlation(predictive, labels)
    )
    assert math.isnan(error_correlation(Predictive.from_probs(torch.stack([right, right])), labels))


def test_errors_drawn_independently_are_hardly_correlated(generator):
    probs = torch.rand(5, 5000, 4, generator=generator, dtype=torch.float64)
    predictive = Predictive.from_probs(probs / probs.sum(-1, keepdim=True))
    labels = torch.randint(0, 4, (5000,), generator=generator)
    assert error_correlation(predictive, labels) == pytest.approx(0, abs=0.02)


# --- gains ---


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("kind", ["classes", "normals", "counts"])
def test_diversity_gain_is_the_mean_loss_of_the_members_minus_that_of_the_ensemble(kind, weights, generator):
    if kind == "classes":
        predictive, targets = random_classes(generator, weights), random_labels(generator)
    elif kind == "normals":
        predictive = random_normals(generator, weights)
        targets = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    else:
        rates = torch.randn(MEMBERS, ROWS, generator=generator, dtype=torch.float64).exp()
        predictive = PoissonPredictive(torch.tensor(weights or [1 / MEMBERS] * MEMBERS), rates)
        targets = torch.arange(ROWS) % 4
    losses = [nll(predictive.member(m), targets) for m in range(MEMBERS)]
    expected = np.average(losses, weights=predictive.weights) - nll(predictive, targets)
    assert diversity_gain(predictive, targets) == pytest.approx(expected)
    assert expected > 0


def test_diversity_gain_of_certain_members():
    """A member that excludes what happened makes the gain infinite; where all exclude it there is nothing to gain."""
    predictive = Predictive.from_probs([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    assert diversity_gain(predictive, [0]) == math.inf
    assert diversity_gain(predictive, [2]) == 0
    assert diversity_gain(predictive.reweight([1, 0]), [0]) == 0


def test_diversity_gain_helps_choose_no_class(generator):
    """Poor members gain most: the gain is no measure of quality."""
    labels = random_labels(generator)
    poor = random_classes(generator, sharpness=4.0)
    right = torch.nn.functional.one_hot(labels, CLASSES)
    good = Predictive.from_probs(0.5 * poor.member_probs + 0.5 * right)
    assert accuracy(good, labels) > accuracy(poor, labels)
    assert diversity_gain(good, labels) < diversity_gain(poor, labels)


@pytest.mark.parametrize("outputs", [(), (2,)])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_ambiguity_takes_the_squared_error_apart_exactly(weights, outputs, generator):
    predictive = random_normals(generator, weights, outputs)
    targets = torch.randn(ROWS, *outputs, generator=generator, dtype=torch.float64)
    parts = ambiguity(predictive, targets)
    assert parts.ensemble == pytest.approx(parts.members - parts.variance)
    assert parts.ensemble == pytest.approx(rmse(predictive, targets) ** 2)
    assert parts.variance == pytest.approx(float(predictive.epistemic.mean()))
    own = [rmse(predictive.member(m), targets) ** 2 for m in range(MEMBERS)]
    assert parts.members == pytest.approx(np.average(own, weights=predictive.weights))


def test_ambiguity_does_not_broadcast_a_column_of_targets(generator):
    predictive = random_normals(generator)
    targets = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    assert ambiguity(predictive, targets[:, None]) == ambiguity(predictive, targets)


@pytest.mark.parametrize("score", [diversity_gain, ambiguity])
def test_gains_need_the_members(score, generator):
    with pytest.raises(SettingError, match=r"needs the members, which this prediction dropped; use keep_members=True"):
        score(random_normals(generator).reduce(), torch.zeros(ROWS))
