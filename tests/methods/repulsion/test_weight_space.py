import itertools
import warnings

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.methods.repulsion.interacting import norms, products
from bayesemble.methods.repulsion.weight_space import PUSH, combine, put_push
from helpers import all_leaves, directions, largest_difference, norm_mlp, quick_fit, random_members, small_mlp, table

METHODS = [be.Repulsive, be.Stein]


def task() -> be.Task:
    return be.Task(small_mlp, be.Categorical())


@pytest.mark.parametrize("estimator", ["kde", "sge", "ssge"])
@pytest.mark.parametrize("calibrate", [True, False])
def test_the_step_is_that_of_all_weights_laid_end_to_end(estimator, calibrate):
    """Leaf by leaf with a shared matrix = the estimator on concatenated weights, written out."""
    params = random_members(4)
    flat = torch.cat([leaf.flatten(1) for leaf in params.values()], 1)
    method = be.Repulsive(num_members=4, estimator=estimator, calibrate=calibrate, whiten=False)
    gram, dim = products(list(params.values()))
    assert dim == flat.shape[1]
    expected = getattr(be.scores, estimator)(flat)
    if calibrate:
        expected = expected * -method_dimension(gram, dim) / ((flat - flat.mean(0)) * expected).sum(1).mean()
    repelling = method.forces(gram, dim).repelling
    torch.testing.assert_close(repelling @ flat, expected)
    found = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    push = {name: torch.empty_like(leaf) for name, leaf in params.items()}
    put_push(push, repelling, params)
    combine(None, push, found, 1.0)
    torch.testing.assert_close(torch.cat([leaf.flatten(1) for leaf in found.values()], 1), -expected)
    sizes = norms(torch.ones(4), repelling, gram)
    torch.testing.assert_close(sizes["repulsion_norm"], expected.norm(dim=1))


def method_dimension(gram, dim):
    return be.scores.effective_dimension(be.scores.principal_axes(gram, dim), dim)


def test_of_an_even_matrix_two_numbers_are_enough():
    gradients, push = random_members(4), random_members(4, seed=1)
    driving = 0.1 + 0.7 * torch.eye(4, dtype=torch.float64)
    found = [{name: leaf.clone() for name, leaf in gradients.items()} for _ in range(2)]
    combine(driving, push, found[0], 0.5)
    combine(driving[0, :2], push, found[1], 0.5)
    for name, leaf in gradients.items():
        expected = 0.5 * torch.einsum("ij,j...->i...", driving.to(leaf), leaf) - push[name]
        torch.testing.assert_close(found[0][name], expected)
        torch.testing.assert_close(found[1][name], expected)


@pytest.mark.parametrize("settings", [{}, {"calibrate": False}])
def test_members_of_svgd_share_their_gradients_also_between_estimates(settings):
    """Steps of plain descent by D g - R x with D and R of the first step, written out."""
    data, seen = table(), []

    def remember(state, _row):
        seen.append({slot: dict(leaves) for slot, leaves in state.clone().groups().items()})

    options = {"num_members": 4, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.0}
    method = be.Stein(measure_every=3, **options, **settings)
    bound = task().bind(len(data[1]), data[0])
    quick_fit(task(), data, method, on_epoch=remember, epochs=5, batch_size=None)
    places = [one["params"] for one in seen]
    for step, (before, after) in enumerate(itertools.pairwise(places), start=1):  # the step from one to the other
        if step % 3 == 0:
            driving = method.forces_in(bound, *products(list(before.values()))).driving
        if step >= 3:
            uphill = directions(be.DeepEnsemble(**options), before)
            for name, leaf in before.items():
                driven = torch.einsum("ij,j...->i...", driving.to(leaf), uphill[name])
                expected = driven - options["learning_rate"] * seen[step][PUSH][name] / bound.num_data
                torch.testing.assert_close(after[name] - leaf, expected, rtol=1e-4, atol=1e-6)


def test_norm_layers_can_be_left_out_of_the_repulsion():
    calm = quick_fit(
        be.Task(norm_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=3), epochs=1, batch_size=48
    )
    options = {"epochs": 1, "batch_size": 48}
    chosen = be.Repulsive(num_members=3, select="not norm", repulsion=100.0)
    pushed = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), chosen, **options)
    for name, leaf in pushed.state.members.params.items():
        same = torch.equal(leaf, calm.state.members.params[name])
        assert same == (name in ("1.weight", "1.bias"))


@pytest.mark.parametrize("kind", METHODS)
def test_what_does_not_repel_is_driven_by_the_same_factor(kind):
    plain = {"num_members": 3, "optimizer": "sgd", "momentum": 0.0}
    params = random_members(3)
    free = directions(be.DeepEnsemble(**plain), params)
    found = directions(kind(select="0.*", driving=0.25, **plain), params)
    for name, leaf in free.items():
        same = torch.allclose(found[name], 0.25 * leaf, rtol=1e-9)
        assert same == name.startswith("2."), name


def test_weight_space_refuses_different_architectures():
    mixed = be.Task([small_mlp, norm_mlp], be.Categorical())
    with pytest.raises(SettingError, match=r"different architectures.*space='function'"):
        quick_fit(mixed, table(), be.Repulsive(num_members=4))
    ensemble = quick_fit(mixed, table(), be.Repulsive(num_members=4, space="function"))
    assert ensemble.predict(table()[0]).probs.isfinite().all()


@pytest.mark.parametrize("options", [{"adversarial": 0.05}, {"bootstrap": True}, {"anchored": True}, {"clip": 0.01}])
def test_options_of_deep_ensembles_work_in_weight_space(options):
    ensemble = quick_fit(task(), table(), be.Repulsive(num_members=3, **options))
    plain = quick_fit(task(), table(), be.Repulsive(num_members=3))
    assert largest_difference(all_leaves(ensemble), all_leaves(plain)) > 0


def test_between_estimates_the_last_push_acts():
    """Steps of plain descent: each moves members by the gradient less the push that was measured last, written out."""
    data, seen = table(), []

    def remember(state, _row):
        seen.append({slot: dict(leaves) for slot, leaves in state.clone().groups().items()})

    settings = {"num_members": 4, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.0}
    rare, options = be.Repulsive(measure_every=3, **settings), {"epochs": 5, "batch_size": None}
    bound = task().bind(len(data[1]), data[0])
    fitted = quick_fit(task(), data, rare, on_epoch=remember, **options)
    for step, (before, after) in enumerate(itertools.pairwise(seen), start=1):  # the step from one to the other
        measured = step % 3 == 0
        assert torch.equal(before[PUSH]["0.weight"], after[PUSH]["0.weight"]) != measured
        gram, dim = products(list(before["params"].values()))
        repelling = rare.forces_in(bound, gram, dim).repelling if measured else None
        for name, leaf in before["params"].items():
            push = after[PUSH][name]
            if measured:
                expected = (repelling.to(leaf) @ leaf.flatten(1)).reshape(leaf.shape)
                torch.testing.assert_close(push, expected, rtol=1e-4, atol=1e-5)
            free = directions(be.DeepEnsemble(**settings), before["params"])[name]
            expected = free - settings["learning_rate"] * push / bound.num_data
            torch.testing.assert_close(after["params"][name] - leaf, expected, rtol=1e-4, atol=1e-6)
    each = quick_fit(task(), data, be.Repulsive(**settings), **options)
    first = [one.history[0] for one in (fitted, each)]
    assert first[0]["repulsion_norm"] == first[1]["repulsion_norm"]
    assert PUSH not in each.state.slots  # small networks measure at every step, and need not keep it
    assert largest_difference(all_leaves(fitted), all_leaves(each)) > 0


def test_leaves_that_all_members_share_cannot_repel():
    def shared_head():
        network = small_mlp()
        network[2].requires_grad_(False)
        return network

    with pytest.raises(SettingError, match=r"select='2\.\*' "):
        quick_fit(be.Task(shared_head, be.Categorical()), table(), be.Repulsive(space=be.WeightSpace(select="2.*")))


def wide_network():
    return torch.nn.Linear(1500, 7)


@pytest.mark.parametrize(
    ("prior", "settings", "warned"),
    [
        (be.NormalPrior(1.0), {}, True),
        (be.NormalPrior(1.0), {"repulsion": 1.0}, False),
        (be.NormalPrior(1.0), {"calibrate": False}, False),
        (be.NormalPrior(1.0), {"space": "function"}, False),
        (be.NormalPrior(1.41, "fan_in"), {}, False),
        (be.VaguePrior(), {}, False),
        (None, {}, False),
    ],
    ids=str,
)
def test_a_stated_prior_that_is_far_wider_than_the_start_is_warned_of(prior, settings, warned):
    """The weights start with a root mean square of 0.015, as each has 1500 inputs."""
    bound = be.Task(wide_network, be.Categorical(), prior).bind(4, torch.ones(4, 1500))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        be.Repulsive(num_members=2, **settings).init(bound, 0)
    found = [str(one.message) for one in caught]
    assert any("may harm predictions" in words and "repulsion=0.1" in words for words in found) == warned


def test_small_networks_may_be_as_far_apart_as_their_prior_says():
    bound = be.Task(small_mlp, be.Categorical(), be.NormalPrior(30.0)).bind(48, table()[0])
    be.Repulsive(num_members=2).init(bound, 0)
