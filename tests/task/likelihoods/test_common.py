import math
from dataclasses import replace

import pytest
import torch
from torch import distributions, nn

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import ClassPredictive, NormalPredictive, PoissonPredictive, StudentPredictive
from bayesemble.task.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    HeteroscedasticStudent,
    Poisson,
)
from helpers import largest_difference, quick_fit

MEMBERS, ROWS = 3, 5

# likelihood, shape of the outputs of one row, shape of the targets of one row, number of different targets
CASES = [
    (Categorical(), (4,), (), 4),
    (Categorical(), (2, 4), (2,), 4),
    (Bernoulli(), (), (), 2),
    (Bernoulli(), (1,), (1,), 2),
    (Bernoulli(), (3,), (3,), 2),
    (Gaussian(0.7), (), (), None),
    (Gaussian(0.7), (1,), (1,), None),
    (Gaussian(0.7), (3,), (3,), None),
    (Gaussian("learned"), (), (), None),
    (Gaussian("learned"), (1,), (1,), None),
    (Gaussian("learned"), (3,), (3,), None),
    (HeteroscedasticGaussian(), (2,), (1,), None),
    (HeteroscedasticGaussian(), (6,), (3,), None),
    (HeteroscedasticStudent(), (2,), (1,), None),
    (HeteroscedasticStudent(7), (6,), (3,), None),
    (Poisson(), (), (), 9),
    (Poisson(), (1,), (1,), 9),
    (Poisson(), (2,), (2,), 9),
]
over_likelihoods = pytest.mark.parametrize(
    ("likelihood", "output_shape", "target_shape", "kinds"), CASES, ids=[f"{c[0]}{c[1]}" for c in CASES]
)


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_targets(generator, kinds, *shape):
    return torch.randint(0, kinds, shape, generator=generator) if kinds else normal(generator, *shape)


def random_leaves(generator, likelihood, output_shape):
    """Leaves of all members, with values other than those they start from."""
    return {name: normal(generator, MEMBERS, *leaf.shape) for name, leaf in likelihood.leaves(output_shape).items()}


# --- closed forms ---


def test_categorical_is_that_of_torch_distributions(generator):
    logits, labels = 5 * normal(generator, ROWS, 4), torch.tensor([0, 1, 2, 3, 0])
    expected = distributions.Categorical(logits=logits).log_prob(labels)
    torch.testing.assert_close(Categorical().log_prob(logits, labels, {}), expected)


def test_bernoulli_is_that_of_torch_distributions_summed_over_labels(generator):
    logits, labels = 5 * normal(generator, ROWS, 3), torch.randint(0, 2, (ROWS, 3), generator=generator)
    expected = distributions.Bernoulli(logits=logits).log_prob(labels.double()).sum(-1)
    torch.testing.assert_close(Bernoulli().log_prob(logits, labels, {}), expected)


def test_one_logit_of_yes_is_two_logits_of_which_no_is_0(generator):
    logits, labels = normal(generator, ROWS), torch.tensor([0, 1, 1, 0, 1])
    two = torch.stack([torch.zeros(ROWS), logits], dim=-1)
    torch.testing.assert_close(Bernoulli().log_prob(logits, labels, {}), Categorical().log_prob(two, labels, {}))


def test_gaussian_is_that_of_torch_distributions_summed_over_outputs(generator):
    means, targets = normal(generator, ROWS, 3), normal(generator, ROWS, 3)
    expected = distributions.Normal(means, 0.7).log_prob(targets).sum(-1)
    torch.testing.assert_close(Gaussian(0.7).log_prob(means, targets, {}), expected)


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), HeteroscedasticGaussian(), Poisson()], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_booleans_and_whole_numbers_are_targets_too(likelihood, dtype, generator):
    outputs = normal(generator, MEMBERS, ROWS, 2)
    shape = (ROWS, 1) if isinstance(likelihood, HeteroscedasticGaussian) else (ROWS, 2)
    real = torch.randint(0, 2, shape, generator=generator).double()
    targets = likelihood.check_targets(real.to(dtype), (2,))
    expected, actual = (likelihood.log_prob(outputs[0], values, {}) for values in (real, targets))
    assert torch.equal(actual, expected)
    predictive = likelihood.predictive(outputs, {}, torch.full((MEMBERS,), 1 / MEMBERS))
    assert torch.equal(predictive.log_prob(targets), predictive.log_prob(real))


def test_learned_noise_has_one_standard_deviation_per_output(generator):
    means, targets = normal(generator, ROWS, 3), normal(generator, ROWS, 3)
    log_noise = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    expected = distributions.Normal(means, log_noise.exp()).log_prob(targets).sum(-1)
    actual = Gaussian("learned").log_prob(means, targets, {"log_noise": log_noise})
    torch.testing.assert_close(actual, expected)


def test_learned_noise_starts_as_a_standard_deviation_of_1(generator):
    means, targets = normal(generator, ROWS, 2), normal(generator, ROWS, 2)
    learned = Gaussian("learned")
    leaves = learned.leaves((2,))
    assert leaves["log_noise"].shape == (2,)
    expected = Gaussian(1.0).log_prob(means, targets, {})
    torch.testing.assert_close(learned.log_prob(means, targets, leaves), expected)


def test_the_best_learned_noise_is_the_root_mean_squared_error(generator):
    errors = normal(generator, 50)
    log_noise = errors.square().mean().sqrt().log().requires_grad_()
    leaves = {"log_noise": log_noise}
    Gaussian("learned").log_prob(torch.zeros(50).double(), errors, leaves).sum().backward()
    assert log_noise.grad.item() == pytest.approx(0, abs=1e-12)


def test_heteroscedastic_gaussian_reads_means_and_softplus_variances(generator):
    outputs, targets = normal(generator, ROWS, 4), normal(generator, ROWS, 2)
    variances = torch.nn.functional.softplus(outputs[:, 2:]) + 1e-6
    expected = distributions.Normal(outputs[:, :2], variances.sqrt()).log_prob(targets).sum(-1)
    torch.testing.assert_close(HeteroscedasticGaussian().log_prob(outputs, targets, {}), expected)


@pytest.mark.parametrize("likelihood", [HeteroscedasticGaussian(), HeteroscedasticStudent()], ids=str)
def test_a_stretch_is_a_factor_on_all_standard_deviations(likelihood, generator):
    outputs, targets = normal(generator, MEMBERS, ROWS, 2), normal(generator, ROWS)
    wide, weights = replace(likelihood, stretch=3.0), torch.full((MEMBERS,), 1 / MEMBERS)
    plain, stretched = (one.predictive(outputs, {}, weights) for one in (likelihood, wide))
    torch.testing.assert_close(stretched.stds, 3 * plain.stds)
    torch.testing.assert_close(stretched.member_log_prob(targets)[0], wide.log_prob(outputs[0], targets[:, None], {}))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match=f"stretch is a number above 0, got {wrong}"):
            replace(likelihood, stretch=wrong)


@pytest.mark.parametrize("degrees", [3, 4, 10])
def test_heavy_tails_have_the_variance_of_the_second_head(degrees, generator):
    outputs, targets = normal(generator, ROWS, 4), 9 * normal(generator, ROWS, 2)
    variances = torch.nn.functional.softplus(outputs[:, 2:]) + 1e-6
    student = distributions.StudentT(degrees, outputs[:, :2], (variances * (degrees - 2) / degrees).sqrt())
    torch.testing.assert_close(student.variance, variances)
    expected = student.log_prob(targets).sum(-1)
    torch.testing.assert_close(HeteroscedasticStudent(degrees).log_prob(outputs, targets, {}), expected)


def test_poisson_is_that_of_torch_distributions_with_log_rates(generator):
    log_rates, counts = normal(generator, ROWS), torch.tensor([0, 1, 2, 10, 100])
    expected = distributions.Poisson(log_rates.exp()).log_prob(counts.double())
    torch.testing.assert_close(Poisson().log_prob(log_rates, counts, {}), expected)


def test_extreme_logits_give_finite_log_probabilities_and_gradients():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64, requires_grad=True)
    values = Categorical().log_prob(logits, torch.tensor([1, 1]), {})
    assert values.tolist() == [-2e4, 0]
    values.sum().backward()
    assert logits.grad.isfinite().all()

    yes = torch.tensor([1e4, -1e4], dtype=torch.float64)
    assert Bernoulli().log_prob(yes, torch.tensor([0, 0]), {}).tolist() == [-1e4, 0]


def test_a_variance_head_far_below_zero_still_has_the_smallest_noise():
    outputs, targets = torch.tensor([[0.0, -1e4]], dtype=torch.float64), torch.zeros(1, 1).double()
    expected = distributions.Normal(0.0, torch.tensor(1e-3).double()).log_prob(torch.tensor(0.0))
    torch.testing.assert_close(HeteroscedasticGaussian().log_prob(outputs, targets, {})[0], expected)


# --- the predictive distribution says what the likelihood says ---


@over_likelihoods
def test_members_predict_the_log_probability_they_were_trained_with(
    likelihood, output_shape, target_shape, kinds, generator
):
    outputs = normal(generator, MEMBERS, ROWS, *output_shape)
    targets = random_targets(generator, kinds, ROWS, *target_shape)
    leaves = random_leaves(generator, likelihood, output_shape)
    predictive = likelihood.predictive(outputs, leaves, torch.full((MEMBERS,), 1 / MEMBERS).double())
    trained = [
        likelihood.log_prob(outputs[m], targets, {name: leaf[m] for name, leaf in leaves.items()})
        for m in range(MEMBERS)
    ]
    assert all(values.shape == (ROWS,) for values in trained)
    torch.testing.assert_close(predictive.member_log_prob(targets), torch.stack(trained))


@over_likelihoods
def test_a_single_output_has_no_output_axis(likelihood, output_shape, target_shape, kinds, generator):
    outputs = normal(generator, MEMBERS, ROWS, *output_shape)
    leaves = random_leaves(generator, likelihood, output_shape)
    predictive = likelihood.predictive(outputs, leaves, torch.full((MEMBERS,), 1 / MEMBERS).double())
    shape = () if target_shape == (1,) else target_shape
    assert predictive.aleatoric.shape == predictive.epistemic.shape == (ROWS, *shape)


@over_likelihoods
def test_targets_are_accepted_as_they_are_and_flat_where_there_is_one(
    likelihood, output_shape, target_shape, kinds, generator
):
    targets = random_targets(generator, kinds, ROWS, *target_shape)
    assert torch.equal(likelihood.check_targets(targets, output_shape), targets)
    if math.prod(target_shape) == 1:
        for given in (targets.reshape(ROWS), targets.reshape(ROWS, 1)):
            assert torch.equal(likelihood.check_targets(given, output_shape), targets)


@over_likelihoods
def test_targets_that_do_not_fit_the_outputs_are_refused(likelihood, output_shape, target_shape, kinds, generator):
    targets = random_targets(generator, kinds, ROWS, 7)
    with pytest.raises(DataError, match=r"targets of shape \(5, 7\) do not fit the network's outputs"):
        likelihood.check_targets(targets, output_shape)


def test_one_column_of_targets_for_three_outputs_is_refused_and_never_broadcast(generator):
    with pytest.raises(DataError, match=r"\(5, 1\) do not fit the network's outputs, which ask for \(5, 3\)"):
        Gaussian().check_targets(normal(generator, ROWS, 1), (3,))


def test_each_likelihood_has_its_kind_of_predictive(generator):
    outputs, weights = normal(generator, MEMBERS, ROWS, 2), torch.full((MEMBERS,), 1 / MEMBERS)
    kinds = {
        Categorical(): ClassPredictive,
        Bernoulli(): ClassPredictive,
        Gaussian(): NormalPredictive,
        HeteroscedasticGaussian(): NormalPredictive,
        HeteroscedasticStudent(): StudentPredictive,
        Poisson(): PoissonPredictive,
    }
    for likelihood, kind in kinds.items():
        assert type(likelihood.predictive(outputs, {}, weights)) is kind


def test_the_second_probability_of_bernoulli_is_that_of_yes(generator):
    logits = normal(generator, 1, ROWS)
    probs = Bernoulli().predictive(logits, {}, torch.ones(1)).probs
    torch.testing.assert_close(probs[:, 1], logits[0].sigmoid())
    torch.testing.assert_close(probs.sum(-1), torch.ones(ROWS).double())


@pytest.mark.parametrize("likelihood", [Bernoulli(), Gaussian(), Poisson()], ids=str)
def test_an_axis_of_one_output_is_dropped_and_one_of_one_row_is_not(likelihood, generator):
    for rows in (1, 4):
        outputs, weights = normal(generator, MEMBERS, rows), torch.full((MEMBERS,), 1 / MEMBERS)
        plain, with_axis = (likelihood.predictive(one, {}, weights) for one in (outputs, outputs.unsqueeze(-1)))
        assert plain.num_rows == with_axis.num_rows == rows
        torch.testing.assert_close(plain.member_values(), with_axis.member_values())


def test_only_a_fixed_noise_is_known_beforehand():
    assert Gaussian(0.3).target_noise() == 0.3
    others = (Gaussian("learned"), HeteroscedasticGaussian(), Categorical(), Bernoulli(), Poisson())
    assert all(other.target_noise() is None for other in others)


# --- refusals ---


def test_whole_labels_of_any_number_type_become_integers():
    for dtype in (torch.float32, torch.float64, torch.int32, torch.uint8):
        labels = Categorical().check_targets(torch.tensor([0, 2, 1], dtype=dtype), (3,))
        assert labels.dtype == torch.int64
        assert labels.tolist() == [0, 2, 1]
    assert Categorical().check_targets(torch.tensor([True, False]), (2,)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("likelihood", "output_shape", "targets", "message"),
    [
        (Categorical(), (3,), [0, 1, 3], r"a label in 0\.\.2.*row 2 has 3"),
        (Categorical(), (3,), [0, -1, 1], r"a label in 0\.\.2.*row 1 has -1"),
        (Categorical(), (3,), [0, 1.5, 1], r"a whole label; row 1 has 1\.5"),
        (Categorical(), (3,), [math.nan, 1.0], "a whole label; row 0 has nan"),
        (Categorical(), (2, 3), [[0, 1], [1, 4]], r"a label in 0\.\.2.*row 1 has \[1, 4\]"),
        (Bernoulli(), (), [0, 1, 2], "0 or 1; row 2 has 2"),
        (Bernoulli(), (1,), [0.0, 0.5], r"0 or 1; row 1 has \[0\.5\]"),
        (Bernoulli(), (2,), [[0, 1], [1, -1]], r"0 or 1; row 1 has \[1, -1\]"),
        (Poisson(), (), [3, -1], "a count 0, 1, 2, .*row 1 has -1"),
        (Poisson(), (), [3.0, 2.0, 0.5], r"a count 0, 1, 2, .*row 2 has 0\.5"),
        (Poisson(), (), [3.0, -2.0], r"a count 0, 1, 2, .*row 1 has -2\.0"),
    ],
)
def test_targets_that_make_no_sense_are_refused_by_row(likelihood, output_shape, targets, message):
    with pytest.raises(DataError, match=message):
        likelihood.check_targets(torch.tensor(targets), output_shape)


@pytest.mark.parametrize("output_shape", [(), (1,)])
def test_classes_need_two_logits(output_shape):
    with pytest.raises(DataError, match=r"at least two logits.*use Bernoulli"):
        Categorical().check_targets(torch.tensor([0, 1]), output_shape)


@pytest.mark.parametrize("output_shape", [(), (3,)])
def test_a_mean_without_its_variance_is_refused(output_shape):
    with pytest.raises(DataError, match="a mean and a variance head per target, so a multiple of 2 outputs"):
        HeteroscedasticGaussian().check_targets(torch.zeros(2), output_shape)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()], ids=str)
def test_a_single_class_cannot_be_learned_from(likelihood):
    likelihood.check_training_targets(torch.tensor([0, 1, 1]))
    with pytest.raises(DataError, match="at least two classes; all 3 rows have 1"):
        likelihood.check_training_targets(torch.tensor([1, 1, 1]))


@pytest.mark.parametrize("likelihood", [Gaussian(), HeteroscedasticGaussian(), Poisson()], ids=str)
def test_a_constant_number_can_be_learned_from(likelihood):
    likelihood.check_training_targets(torch.ones(3))


@pytest.mark.parametrize("noise", [0.5, "learned"])
def test_a_gaussian_around_normal_outputs_has_both_variances(noise, generator):
    means, variances = (
        torch.randn(MEMBERS, ROWS, 2, generator=generator),
        torch.rand(MEMBERS, ROWS, 2, generator=generator) + 0.1,
    )
    leaves = {"log_noise": torch.randn(MEMBERS, 2, generator=generator)} if noise == "learned" else {}
    stds = leaves["log_noise"].exp().unsqueeze(1) if leaves else torch.tensor(0.5)
    found = Gaussian(noise).predictive_of_normals(means, variances, leaves, torch.full((MEMBERS,), 1 / MEMBERS))
    torch.testing.assert_close(found.member_variance, variances + stds.square().expand(means.shape))
    torch.testing.assert_close(found.aleatoric, stds.square().expand(means.shape).mean(0))
    assert torch.equal(found.mean_variance, variances)


def test_normal_outputs_are_read_by_a_gaussian_alone():
    class Doubled(Gaussian):
        def predictive(self, outputs, leaves, weights):
            return super().predictive(2 * outputs, leaves, weights)

    assert Gaussian().reads_normals
    others = (Categorical(), Bernoulli(), HeteroscedasticGaussian(), HeteroscedasticStudent(), Poisson(), Doubled())
    assert not any(likelihood.reads_normals for likelihood in others)


@pytest.mark.parametrize("noise", [0, -1.0, math.nan, math.inf, "guess", None])
def test_noise_must_be_a_positive_standard_deviation(noise):
    with pytest.raises(SettingError, match=f"noise is a number above 0 or 'learned', got {noise!r}"):
        Gaussian(noise)


@pytest.mark.parametrize("classes", [2, 5, 32, 33])
@pytest.mark.parametrize("shape", [(3, 2000), (2, 700, 4)])
def test_probabilities_of_many_rows_are_those_of_few(shape, classes, generator):
    outputs = 5 * torch.randn(*shape, classes, generator=generator, dtype=torch.float64)
    outputs[0, 0, ..., 0] = -torch.inf
    weights = torch.full(shape[:1], 1 / shape[0])
    many = Categorical().predictive(outputs, {}, weights)
    few = [Categorical().predictive(rows, {}, weights) for rows in outputs.split(3, dim=1)]
    torch.testing.assert_close(many.log_probs, torch.cat([one.log_probs for one in few], 1), rtol=1e-13, atol=1e-13)
    assert many.log_probs.is_contiguous()


@pytest.mark.parametrize(
    ("likelihood", "heads"),
    [(be.Gaussian(noise="learned"), 1), (be.HeteroscedasticGaussian(), 2), (be.HeteroscedasticStudent(), 2)],
    ids=lambda value: type(value).__name__,
)
def test_forecasts_of_several_steps_take_targets_by_row_and_step(likelihood, heads):
    """A network that gives `(row, step, 1)`, or two heads for each step, is trained and scored on `(row, step)`."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = x @ torch.randn(3, 5, generator=generator)

    def forecaster() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5 * heads), nn.Unflatten(1, (5, heads)))

    flat, deep = (quick_fit(be.Task(forecaster, likelihood), (x, targets)) for targets in (y, y.unsqueeze(2)))
    assert largest_difference(flat.state.members.params, deep.state.members.params) == 0
    predictive = flat.predict(x)
    assert predictive.mean.shape == (40, 5)
    assert flat.evaluate((x, y)) == deep.evaluate((x, y.unsqueeze(2)))
    assert be.metrics.energy_score(predictive, y) > 0
    with pytest.raises(be.DataError, match=r"targets of shape \(40, 4\) do not fit"):
        quick_fit(be.Task(forecaster, likelihood), (x, y[:, :4]))


# --- weights, smoothing and soft labels of classes ---


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0, 0.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
def test_weights_and_smoothing_are_those_of_the_cross_entropy_of_torch(weights, smoothing, soft, generator):
    logits = 3 * normal(generator, ROWS, 4)
    targets = normal(generator, ROWS, 4).softmax(-1) if soft else torch.tensor([0, 1, 2, 3, 1])
    likelihood = Categorical(class_weights=weights, label_smoothing=smoothing)
    given = likelihood.check_targets(targets, (4,))
    expected = -nn.functional.cross_entropy(
        logits,
        targets,
        None if weights is None else torch.tensor(weights, dtype=torch.float64),
        reduction="none",
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(likelihood.log_prob(logits, given, {}), expected)


def test_one_hot_rows_are_labels():
    one_hot = torch.tensor([[0, 1, 0], [1, 0, 0]])
    for targets in (one_hot, one_hot.float(), one_hot.bool()):
        assert Categorical().check_targets(targets, (3,)).tolist() == [1, 0]


def test_a_row_of_weight_3_counts_as_three_rows(generator):
    x, y = torch.randn(12, 3, generator=generator), torch.tensor([0, 1] * 6)
    rows = torch.tensor([row for row in range(12) for _ in range(3 if y[row] else 1)])
    method = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=0.1)
    tasks = [
        be.Task(lambda: nn.Linear(3, 2), one, be.NormalPrior())
        for one in (Categorical(class_weights=[1.0, 3.0]), Categorical())
    ]
    repeated = quick_fit(tasks[1], (x[rows], y[rows]), method, batch_size=24, epochs=3)
    # The step is the gradient of the log joint over the number of rows, 12 and 24.
    halved = replace(method, learning_rate=0.05)
    weighted = quick_fit(tasks[0], (x, y), halved, batch_size=12, epochs=3)
    assert largest_difference(weighted.state.members.params, repeated.state.members.params) < 1e-6


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_soft_labels_are_trained_on_and_scores_need_labels(executor, generator):
    x = torch.randn(30, 3, generator=generator)
    soft = torch.randn(30, 3, generator=generator).softmax(-1)
    task = be.Task(lambda: nn.Linear(3, 3), Categorical(label_smoothing=0.1))
    ensemble = quick_fit(task, (x, soft), executor=executor)
    assert ensemble.evaluate((x, torch.eye(3)[soft.argmax(-1)])) == ensemble.evaluate((x, soft.argmax(-1)))
    with pytest.raises(DataError, match="soft labels can be trained on, but scores need labels"):
        ensemble.evaluate((x, soft))


@pytest.mark.parametrize("targets", [[[0.5, 0.6], [1.0, 0.0]], [[-0.1, 1.1], [1.0, 0.0]], [[1, 1], [0, 1]]])
def test_probabilities_that_are_none_are_refused(targets):
    with pytest.raises(DataError, match="probabilities of the classes that are not negative and sum to 1; row 0 has"):
        Categorical().check_targets(torch.tensor(targets), (2,))


def test_there_is_a_weight_for_each_class():
    with pytest.raises(SettingError, match=r"class_weights is .*, got 2\.0"):
        Categorical(class_weights=2.0)
    with pytest.raises(SettingError, match="class_weights are all 0"):
        Categorical(class_weights=(0.0, 0.0))
    assert Categorical(class_weights=torch.tensor([1.0, 3.0])) == Categorical(class_weights=(1.0, 3.0))
    with pytest.raises(SettingError, match=r"class_weights are one for each class, 3 .* got 2"):
        Categorical(class_weights=(1.0, 2.0)).check_targets(torch.tensor([0, 1]), (3,))


def test_the_curvature_of_weighted_classes_counts_their_rows(generator):
    """The Gaussian of weighted rows is that of repeated ones, at the same weights."""
    x, y = torch.randn(10, 2, generator=generator).double(), torch.tensor([0, 1] * 5)
    rows = torch.tensor([row for row in range(10) for _ in range(2 if y[row] else 1)])

    def network() -> nn.Module:
        module = nn.Linear(2, 2).double()
        for leaf in module.parameters():
            nn.init.constant_(leaf, 0.3)
        return module

    found = []
    for likelihood, data in ((Categorical(class_weights=(1.0, 2.0)), (x, y)), (Categorical(), (x[rows], y[rows]))):
        task, method = be.Task(network, likelihood, be.NormalPrior()), be.Laplace(learning_rate=1e-30)
        ensemble = quick_fit(task, data, method, epochs=1, batch_size=None)
        found.append(ensemble.state.slots["laplace"])
    torch.testing.assert_close(found[0]["std.0"], found[1]["std.0"])
    torch.testing.assert_close(found[0]["right.0"], found[1]["right.0"])
