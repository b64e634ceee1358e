import json
import math

import pytest
import scipy.stats
import torch
from torch import distributions

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import dump, parse
from bayesemble.task.priors import LaplacePrior, NormalPrior, Prior, VaguePrior

SHAPES = {"0.weight": (5, 3), "0.bias": (5,), "conv.weight": (4, 2, 3, 3), "head.weight": (2, 5), "scale": ()}
PRIORS = [NormalPrior(0.7), LaplacePrior(0.7)]
FAMILIES = {NormalPrior: distributions.Normal, LaplacePrior: distributions.Laplace}
over_priors = pytest.mark.parametrize("prior", PRIORS, ids=str)


def random_params(generator, members=3):
    return {
        name: torch.randn(members, *shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()
    }


@over_priors
def test_the_log_density_is_that_of_torch_distributions_with_its_constant(prior, generator):
    params = random_params(generator)
    scales = {"0.weight": 0.1, "0.bias": 1.0, "conv.weight": 2.0, "head.weight": 5.0, "scale": 3.0}
    family = FAMILIES[type(prior)]
    each = [family(0.0, scales[name]).log_prob(leaf).reshape(3, -1).sum(1) for name, leaf in params.items()]
    torch.testing.assert_close(prior.log_prob(params, scales), sum(each))


@over_priors
def test_a_network_may_have_a_parameter_that_is_a_single_number(prior):
    values = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64)
    expected = FAMILIES[type(prior)](0.0, 0.7).log_prob(values)
    torch.testing.assert_close(prior.log_prob({"scale": values}, prior.scales({"scale": ()})), expected)


@over_priors
def test_the_score_is_the_gradient_of_the_log_density(prior, generator):
    params = {name: leaf.requires_grad_() for name, leaf in random_params(generator).items()}
    scales = prior.scales(SHAPES)
    gradients = torch.autograd.grad(prior.log_prob(params, scales).sum(), list(params.values()))
    for score, gradient in zip(prior.gradient(params, scales).values(), gradients, strict=True):
        torch.testing.assert_close(score, gradient)


def test_the_vague_prior_has_one_width_for_any_number_of_inputs_and_nobody_states_it():
    expected = {
        "0.weight": 2 / math.sqrt(3),
        "0.bias": 1.0,
        "conv.weight": 2 / math.sqrt(18),
        "head.weight": 2 / math.sqrt(5),
        "scale": 1.0,
    }
    assert VaguePrior().scales(SHAPES) == pytest.approx(expected)
    assert not VaguePrior().stated
    assert all(prior.stated and prior.weight(10, 1000) == 1 for prior in (NormalPrior(), LaplacePrior()))


def test_a_vague_prior_honours_its_one_setting_and_refuses_what_it_cannot():
    assert VaguePrior(3.0).scales(SHAPES)["head.weight"] == pytest.approx(3 / math.sqrt(5))
    for std in ({"*": 1.0}, (0.1, 0.5), [0.1, 0.2]):
        with pytest.raises(SettingError, match="std is a number above 0, got"):
            VaguePrior(std)
    for settings in ({"scaling": "none"}, {"per_member": (1.0, 2.0)}):
        with pytest.raises(SettingError, match="state a NormalPrior"):
            VaguePrior(**settings)


@pytest.mark.parametrize(("rows", "weights", "expected"), [(50, 1000, 0.05), (100, 1000, 0.1), (5000, 1000, 0.1)])
def test_the_vague_prior_counts_for_less_where_weights_outnumber_rows(rows, weights, expected):
    assert VaguePrior().weight(rows, weights) == pytest.approx(expected)


@over_priors
def test_members_do_not_mix(prior, generator):
    params, scales = random_params(generator), prior.scales(SHAPES)
    alone = [prior.log_prob({n: leaf[m : m + 1] for n, leaf in params.items()}, scales) for m in range(3)]
    torch.testing.assert_close(prior.log_prob(params, scales), torch.cat(alone))


@pytest.mark.parametrize(
    ("prior", "family"),
    [(NormalPrior({"a": 0.5, "b": 3.0}), "norm"), (LaplacePrior({"a": 0.5, "b": 3.0}), "laplace")],
)
def test_draws_have_the_distribution_of_the_density_with_the_scale_of_their_leaf(prior, family, generator):
    draws = prior.sample({"a": (100, 100), "b": (100, 100)}, generator, torch.float64)
    for name, scale in (("a", 0.5), ("b", 3.0)):
        test = scipy.stats.kstest(draws[name].flatten().numpy(), family, args=(0, scale))
        assert test.pvalue > 0.01


@over_priors
def test_a_draw_has_the_shapes_and_number_type_asked_for_and_repeats_with_its_generator(prior):
    first, second = (prior.sample(SHAPES, torch.Generator().manual_seed(4), torch.float32) for _ in range(2))
    assert {name: tuple(leaf.shape) for name, leaf in first.items()} == SHAPES
    assert all(leaf.dtype == torch.float32 and torch.equal(leaf, second[name]) for name, leaf in first.items())


def test_one_scale_serves_all_leaves():
    assert NormalPrior(2.0).scales(SHAPES) == dict.fromkeys(SHAPES, 2.0)


def test_the_first_pattern_that_matches_counts():
    prior = LaplacePrior({"head.*": 0.1, "*.bias": 5.0, "*": 1.0})
    expected = dict.fromkeys(SHAPES, 1.0) | {"0.bias": 5.0, "head.weight": 0.1}
    assert prior.scales(SHAPES) == expected
    assert LaplacePrior({"*": 1.0, "head.*": 0.1}).scales(SHAPES) == dict.fromkeys(SHAPES, 1.0)


@pytest.mark.parametrize("prior", [NormalPrior([0.1, 0.5, 2.0]), NormalPrior(per_member=(0.1, 0.5, 2.0))], ids=str)
def test_each_member_may_have_a_std_of_its_own(prior, generator):
    """The gradient of a member is that of the prior with its own std."""
    w = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    own = prior.gradient({"w": w}, prior.scales({"w": (4,)}))["w"] * prior.member_factors(3, generator).unsqueeze(1)
    for member, std in enumerate((0.1, 0.5, 2.0)):
        torch.testing.assert_close(own[member], -w[member] / std**2)
    assert prior.differs_by_member
    assert not NormalPrior().differs_by_member
    with pytest.raises(SettingError, match="a std for each of 3 members, the method has 2"):
        prior.member_factors(2, generator)
    with pytest.raises(SettingError, match="a prior of its own, which this method or measure cannot honour"):
        prior.sample(SHAPES, generator, torch.float64)


def test_stds_of_members_are_drawn_log_uniformly_and_patterns_are_multiplied(generator):
    prior = NormalPrior((0.1, 10.0))
    stds = prior.member_factors(4000, generator).rsqrt().log10()
    assert scipy.stats.kstest(stds.numpy(), "uniform", args=(-1, 2)).pvalue > 0.01
    both = NormalPrior({"head.*": 0.1, "*": 1.0}, per_member=(2.0, 3.0))
    assert both.scales(SHAPES)["head.weight"] == 0.1
    assert both.member_factors(2, generator).tolist() == [1 / 4, pytest.approx(1 / 9)]


def test_a_prior_of_each_member_comes_back_from_json():
    for prior in (NormalPrior([0.1, 0.5]), NormalPrior((0.1, 0.5))):
        assert parse(json.loads(json.dumps(dump(prior))), Prior) == prior


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"std": (0.5, 0.1)}, r"pair \(low, high\)"),
        ({"std": (0.1, 0.2, 0.3)}, r"pair \(low, high\).*a list has one a member"),
        ({"std": []}, "a std for each member is needed"),
        ({"std": [0.1], "per_member": (0.2,)}, "give one of the two"),
        ({"std": (0.1, 0.2), "per_member": (0.2,)}, "leave per_member out"),
        ({"std": [0.1, -1.0]}, "std is .*got"),
    ],
)
def test_priors_of_members_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        NormalPrior(**settings)


def test_scaling_by_fan_in_divides_weights_and_kernels_but_not_biases_and_single_numbers():
    expected = {
        "0.weight": 2 / math.sqrt(3),
        "0.bias": 2.0,
        "conv.weight": 2 / math.sqrt(18),
        "head.weight": 2 / math.sqrt(5),
        "scale": 2.0,
    }
    assert NormalPrior(2.0, scaling="fan_in").scales(SHAPES) == pytest.approx(expected)


def test_scaling_by_fan_in_keeps_the_variance_of_a_layers_outputs(generator):
    prior = NormalPrior(1.5, scaling="fan_in")
    for width in (10, 1000):
        weight = prior.sample({"w": (2000, width)}, generator, torch.float64)["w"]
        error = math.sqrt(2 / 2000)  # the relative standard error of a variance
        assert weight.sum(1).var().item() == pytest.approx(1.5**2, rel=4 * error)


def test_weight_decay_on_the_mean_loss_is_this_prior_on_the_summed_loss(generator):
    weight_decay, num_data = 3e-4, 500
    weight = torch.randn(1, 7, generator=generator, dtype=torch.float64)
    prior = NormalPrior.from_weight_decay(weight_decay, num_data)
    score = prior.gradient({"w": weight}, prior.scales({"w": (7,)}))["w"]
    torch.testing.assert_close(score, -num_data * weight_decay * weight)


def test_the_laplace_prior_is_silent_at_zero():
    assert LaplacePrior().gradient({"w": torch.zeros(1, 2)}, {"w": 1.0})["w"].tolist() == [[0, 0]]


def test_one_row_of_data_is_enough_for_weight_decay():
    assert NormalPrior.from_weight_decay(4.0, 1).std == 0.5


@pytest.mark.parametrize(("weight_decay", "num_data"), [(0.0, 10), (-1.0, 10), (0.1, 0)])
def test_no_weight_decay_is_no_prior(weight_decay, num_data):
    with pytest.raises(SettingError, match=r"positive weight decay and data.*prior=None"):
        NormalPrior.from_weight_decay(weight_decay, num_data)


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "1", None, {"*": 0.0}, {"a": 1.0, "*": -1}], ids=str)
@pytest.mark.parametrize("cls", [NormalPrior, LaplacePrior])
def test_a_scale_must_be_a_positive_number(cls, scale):
    with pytest.raises(
        SettingError, match=r"(std|scale) is a number above 0(, | or )a dict of numbers above 0.*, got "
    ):
        cls(scale)


def test_a_parameter_without_a_scale_is_named():
    with pytest.raises(SettingError, match=r"no scale for the parameter '0\.bias'; add a pattern such as"):
        NormalPrior({"*weight": 1.0}).scales(SHAPES)


def test_an_unknown_scaling_is_refused():
    with pytest.raises(SettingError, match="scaling is 'none' or 'fan_in', got 'fan_out'"):
        NormalPrior(scaling="fan_out")
