import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.diagnostics.duplicates import distinct, function_distances, groups, weight_distances
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def fitted() -> be.Ensemble:
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=3))


def test_independent_members_are_all_distinct(fitted):
    found = distinct(fitted.draw(), fitted.predict(table()[0]))
    assert found.by_weights == found.by_function == [[0], [1], [2]]


def test_members_that_are_close_but_far_from_zero_have_their_distance():
    leaf = 1e8 + torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    found = weight_distances(be.Members({"a": leaf}, {}, torch.full((3,), 1 / 3))) * 2**0.5 * 1e8
    expected = torch.tensor([[0, 1, 2], [1, 0, 5**0.5], [2, 5**0.5, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_differs_by_the_tolerance_itself_is_distinct():
    members = be.Members({"a": torch.tensor([[3.0, 4.0], [3.0, -4.0]])}, {}, torch.full((2,), 0.5))
    predictive = be.Predictive.from_normal([[0.0], [2.0]], 1.0)
    apart = float(weight_distances(members)[0, 1]), float(function_distances(predictive)[0, 1])
    assert apart == pytest.approx((8 / 5, 2.0))
    assert distinct(members, predictive, apart[0]).by_weights == [[0], [1]]
    assert distinct(members, predictive, apart[1]).by_function == [[0], [1]]
    wide = distinct(members, predictive, 2.001)
    assert wide.by_weights == wide.by_function == [[0, 1]]


def test_copies_are_found(fitted):
    twins = fitted.keep([0, 1, 0, 2, 1, 0])
    found = distinct(twins.draw(), twins.predict(table()[0]))
    assert found.by_weights == found.by_function == [[0, 2, 5], [1, 4], [3]]


def test_members_equal_up_to_the_order_of_hidden_units_are_one_function_with_two_weights(fitted):
    params, _ = fitted.draw().split()[0]
    order = torch.arange(7, -1, -1)
    turned = {
        "0.weight": params["0.weight"][order],
        "0.bias": params["0.bias"][order],
        "2.weight": params["2.weight"][:, order],
        "2.bias": params["2.bias"],
    }
    members = be.Members.stack([params, turned], [{}, {}])
    x = table()[0]
    outputs = be.Loop().outputs(lambda p, b, inputs, _: fitted.task.forward(p, b, inputs), members, x, False)
    found = distinct(members, fitted.task.predictive(outputs, members))
    assert found.by_weights == [[0], [1]]
    assert found.by_function == [[0, 1]]


def test_weight_distances_are_those_of_all_parameters_in_one_row(fitted):
    members = fitted.draw()
    flat = torch.cat([leaf.reshape(3, -1) for leaf in members.params.values()], dim=1).double()
    expected = torch.cdist(flat, flat) / flat.square().sum(1).mean().sqrt()
    torch.testing.assert_close(weight_distances(members), expected, atol=1e-7, rtol=1e-6)


def test_close_members_far_from_zero_are_told_apart():
    start = {"weight": torch.full((1000,), 1e3)}
    near = {"weight": start["weight"] + 0.01}
    distance = weight_distances(be.Members.stack([start, near], [{}, {}]))[0, 1].item()
    assert distance == pytest.approx(1e-5, rel=0.01)


def test_function_distance_is_the_root_of_the_mean_jensen_shannon_divergence(fitted):
    from scipy.spatial.distance import jensenshannon

    predictive = fitted.predict(table()[0])
    probs = predictive.member_probs.double().numpy()
    expected = (jensenshannon(probs[0], probs[1], axis=-1) ** 2).mean() ** 0.5
    assert function_distances(predictive)[0, 1].item() == pytest.approx(expected, rel=1e-5)


def test_real_functions_differ_by_their_means_in_standard_deviations():
    predictive = be.Predictive.from_normal([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]], 2.0)
    distances = function_distances(predictive)
    assert distances[0, 1].item() == pytest.approx((12.5 / 4) ** 0.5)
    assert groups(distances < 1e-3) == [[0, 2], [1]]


def test_groups_are_connected_components():
    same = torch.eye(5, dtype=torch.bool)
    for i, j in ((0, 2), (2, 4)):
        same[i, j] = same[j, i] = True
    assert groups(same) == [[0, 2, 4], [1], [3]]


def test_shared_leaves_make_no_difference():
    def make():
        return nn.Linear(2, 2)

    params = {name: leaf.detach() for name, leaf in be.Task(make, be.Categorical()).new_member(0)[0].items()}
    members = be.Members.stack([params, params], [{}, {}], share=frozenset({"weight"}))
    assert weight_distances(members).max() == 0
