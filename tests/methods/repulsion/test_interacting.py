import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Clock
from bayesemble.execute.optimizers import leaf_rows
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion.interacting import Forces, _combine, norms, products
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table

METHODS = [be.Repulsive, be.Stein]


def task() -> be.Task:
    return be.Task(small_mlp, be.Categorical())


# --- identities ---


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "laplace"])
def test_one_member_is_map_exactly(kind, calibrate, kernel):
    alone = quick_fit(task(), table(), kind(num_members=1, calibrate=calibrate, kernel=kernel))
    plain = quick_fit(task(), table(), be.DeepEnsemble(num_members=1))
    assert largest_difference(all_leaves(alone), all_leaves(plain)) == 0


@pytest.mark.parametrize("estimator", ["kde", "sge", "ssge"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_without_repulsion_it_is_a_deep_ensemble_exactly(estimator, executor):
    method = be.Repulsive(num_members=3, repulsion=0.0, estimator=estimator)
    calm = quick_fit(task(), table(), method, executor=executor)
    plain = quick_fit(task(), table(), be.DeepEnsemble(num_members=3), executor=executor)
    assert largest_difference(all_leaves(calm), all_leaves(plain)) == 0


def directions(method, task: be.Task, params: dict, batch: int = 48) -> dict:
    """What one step of plain SGD adds to each member, for one snapshot of the members."""
    x, y = table(batch)
    bound = task.bind(len(x), x)
    members = be.Members(params, {}, torch.full((len(params["0.weight"]),), 1 / len(params["0.weight"])))
    from bayesemble.core.members import State
    from bayesemble.core.types import Batch

    before = {name: leaf.clone() for name, leaf in params.items()}
    state = State(State(members).clone().members, {})
    state, _ = method.step(state, Batch(x.to(params["0.weight"]), y), Context(bound, be.Loop(), Clock(0, 1, 0)))
    return {name: state.members.params[name] - before[name] for name in before}


def random_members(count: int, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: tuple(p.shape) for name, p in _module().named_parameters()}
    return {n: torch.randn(count, *shape, generator=generator) for n, shape in shapes.items()}


def _module() -> nn.Module:
    with scoped(0):
        return small_mlp()


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("calibrate", [True, False])
def test_permuting_members_permutes_the_step(kind, space, calibrate):
    method = kind(num_members=5, space=space, calibrate=calibrate, optimizer="sgd", momentum=0.0, function_prior=False)
    order = torch.tensor([3, 1, 4, 0, 2])
    params = {name: leaf.double() for name, leaf in random_members(5).items()}
    moved = directions(method, task(), params)
    shuffled = directions(method, task(), {name: leaf[order] for name, leaf in params.items()})
    for name, leaf in moved.items():
        torch.testing.assert_close(shuffled[name], leaf[order], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("estimator", ["kde", "sge", "ssge"])
@pytest.mark.parametrize("calibrate", [True, False])
def test_the_step_is_that_of_all_weights_laid_end_to_end(estimator, calibrate):
    """Leaf by leaf with a shared matrix = the estimator on concatenated weights, written out."""
    params = {name: leaf.double() for name, leaf in random_members(4).items()}
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
    _combine(Forces(None, repelling), found, params, list(params), 1.0)
    torch.testing.assert_close(torch.cat([leaf.flatten(1) for leaf in found.values()], 1), -expected)
    sizes = norms(torch.ones(4), repelling, gram)
    torch.testing.assert_close(sizes["repulsion_norm"], expected.norm(dim=1))


def method_dimension(gram, dim):
    return be.scores.effective_dimension(be.scores.spread(gram, dim), dim)


def test_rows_are_views_whatever_the_memory_order():
    leaf = torch.randn(3, 4, 5, 2, 2, generator=torch.Generator().manual_seed(0))
    last = leaf.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    for tensor in (leaf, last, leaf.transpose(1, 2).contiguous().transpose(1, 2)):
        rows = leaf_rows(tensor)
        assert rows.data_ptr() == tensor.data_ptr()
        torch.testing.assert_close(products([tensor])[0], products([leaf])[0], rtol=1e-5, atol=1e-5)


def test_products_keep_their_digits_where_members_are_large_and_close():
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(5, 1000, generator=generator, dtype=torch.float64)
    close = (1000 + 1e-2 * small).float()
    exact = close.double() - close.double().mean(0)
    torch.testing.assert_close(products([close])[0], exact @ exact.T, rtol=1e-5, atol=1e-6)


# --- settings ---


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": "output"}, "space is 'weight' or 'function', got 'output'"),
        ({"kernel": "linear"}, "kernel is 'rbf' or 'laplace', got 'linear'"),
        ({"bandwidth": -1.0}, "bandwidth is 'median' or a number above 0, got -1.0"),
        ({"repulsion": -0.1}, "repulsion is a number from 0, got -0.1"),
        ({"anneal": "cosine"}, "anneal is 'none', 'linear', 'tanh' or 'cyclical', got 'cosine'"),
        ({"anneal_share": 0.0}, r"anneal_share is a number in \(0, 1\], got 0.0"),
        ({"driving": 0.0}, "driving is a number above 0, got 0.0"),
        ({"features": "softmax"}, "features is 'auto', 'outputs', 'centred' or 'log_probs', got 'softmax'"),
        ({"points": "grid"}, "points is 'batch', 'noise' or a Sampler, got 'grid'"),
        ({"prior_every": 0}, "prior_every is a whole number from 1, got 0"),
        ({"prior_draws": 1}, "prior_draws is a whole number from 2, got 1"),
    ],
)
def test_wrong_settings_are_refused(kind, settings, message):
    with pytest.raises(SettingError, match=message):
        kind(**settings)


def test_the_driving_force_rises_as_documented():
    def factor(step, **settings):
        return be.Repulsive(anneal_share=0.5, **settings).driving_factor(Clock(step, 200, 0))

    assert [factor(step, anneal="linear") for step in (0, 99, 100, 150)] == [0, 1, 1, 1]
    assert factor(33, anneal="linear") == pytest.approx(33 / 99)
    assert factor(50, anneal="tanh") == pytest.approx(math.tanh(0.65**10))
    assert factor(25, anneal="cyclical") == pytest.approx((5 / 20) ** 10)
    assert factor(0, anneal="none", driving=0.01) == 0.01
    assert factor(150, anneal="tanh", driving=0.01) == 0.01


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
    params = {name: leaf.double() for name, leaf in random_members(3).items()}
    free = directions(be.DeepEnsemble(**plain), task(), params)
    found = directions(kind(select="0.*", driving=0.25, **plain), task(), params)
    for name, leaf in free.items():
        same = torch.allclose(found[name], 0.25 * leaf, rtol=1e-9)
        assert same == name.startswith("2."), name


def test_the_history_has_the_forces_and_a_faint_repulsion_warns():
    ensemble = quick_fit(task(), table(), be.Repulsive(num_members=3))
    row = ensemble.history[-1]
    assert len(row["driving_norm"]) == len(row["repulsion_norm"]) == 3
    assert min(row["repulsion_norm"]) > 0
    with pytest.warns(UserWarning, match="less than a millionth of the driving force.*calibrate=True"):
        quick_fit(task(), table(), be.Repulsive(num_members=3, repulsion=1e-9))


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


def test_between_measurements_the_last_matrices_act():
    """Three steps with one measurement are three steps with a matrix that does not change."""
    data = table()
    seen = []

    def remember(state, _row):
        seen.append({name: leaf.clone() for name, leaf in state.slots["interaction"].items()})

    settings = {"num_members": 4, "learning_rate": 0.05}
    rare = quick_fit(
        task(), data, be.Repulsive(measure_every=3, **settings), epochs=4, batch_size=None, on_epoch=remember
    )
    assert torch.equal(seen[0]["repelling"], seen[2]["repelling"])
    assert not torch.equal(seen[2]["repelling"], seen[3]["repelling"])
    each = quick_fit(task(), data, be.Repulsive(**settings), epochs=4, batch_size=None)
    first = [fitted.history[0] for fitted in (rare, each)]
    assert first[0]["repulsion_norm"] == first[1]["repulsion_norm"]
    assert largest_difference(all_leaves(rare), all_leaves(each)) > 0
