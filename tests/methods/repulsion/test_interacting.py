import math
from dataclasses import replace

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock
from bayesemble.execute.optimizers.fused import leaf_rows
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion import interacting
from bayesemble.methods.repulsion.interacting import _caution_once, products
from bayesemble.methods.repulsion.kernels import RBF
from helpers import all_leaves, directions, largest_difference, quick_fit, random_members, small_mlp, table

METHODS = [be.Repulsive, be.Stein]


def task() -> be.Task:
    return be.Task(small_mlp, be.Categorical())


@pytest.mark.parametrize(
    ("large", "settings", "expected"),
    [
        (58, {}, range(9)),
        (57, {}, (0, 8)),
        (57, {"measure_every": 3}, (0, 3, 6)),
        (58, {"measure_every": 3}, (0, 3, 6)),
    ],
)
def test_forces_of_large_networks_are_estimated_every_eighth_step_unless_told_otherwise(
    large, settings, expected, monkeypatch
):
    monkeypatch.setattr("bayesemble.methods.repulsion.interacting.PARAMETERS_OF_A_LARGE_NETWORK", large)
    space, bound = be.WeightSpace(**settings), task().bind(48, table()[0])
    state = State(bound.new_members(2, 0), {"interaction": {}})
    contexts = [Context(bound, be.Loop(), Clock(step, 9, 0)) for step in range(9)]
    assert [step for step in range(9) if space.is_due(state, contexts[step])] == list(expected)
    assert space.is_due(replace(state, slots={}), contexts[5])


# --- how strong the repulsion is ---


PRIORS = {"vague": be.VaguePrior(), "stated": be.NormalPrior(), "flat": None}


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    ("prior", "settings", "strength", "words"),
    [
        ("vague", {}, 0.1, "0.1: no prior was stated; there are 48 rows for 58 weights"),
        ("stated", {}, 1.0, "1: as a prior was stated, members spread as wide as it says"),
        ("flat", {}, 1.0, "1: as a prior was stated"),
        ("vague", {"calibrate": False}, 1.0, "1: as published"),
        ("vague", {"repulsion": 0.3}, 0.3, None),
        ("stated", {"repulsion": 0.3}, 0.3, None),
    ],
)
def test_the_strength_goes_by_whether_somebody_stated_a_prior(kind, prior, settings, strength, words):
    x, _ = table()
    bound, method = be.Task(small_mlp, be.Categorical(), PRIORS[prior]).bind(48, x), kind(**settings)
    assert method.strength(bound) == strength
    found = method.resolved(bound)
    assert found.keys() == ({"repulsion"} if words else set())
    assert not words or found["repulsion"].startswith(words)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize(("prior", "strength"), [("vague", 0.1), ("stated", 1.0)])
def test_the_strength_that_is_found_is_the_one_that_acts(kind, space, prior, strength):
    own_task = be.Task(small_mlp, be.Categorical(), PRIORS[prior])
    left, said = (
        quick_fit(own_task, table(), kind(num_members=3, space=space, repulsion=repulsion), epochs=1)
        for repulsion in ("auto", strength)
    )
    assert largest_difference(all_leaves(left), all_leaves(said)) == 0


HELD_OUT = "compare it by held-out rows with repulsion=0"


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    ("rows", "likelihood", "prior", "settings", "warned"),
    [
        (1999, be.HeteroscedasticGaussian(), "vague", {}, True),
        (1999, be.HeteroscedasticStudent(), "vague", {"space": "function"}, True),
        (2000, be.HeteroscedasticGaussian(), "vague", {}, False),
        (1999, be.Gaussian(0.1), "vague", {}, False),
        (1999, be.Categorical(), "vague", {}, False),
        (1999, be.HeteroscedasticGaussian(), "stated", {}, False),
        (1999, be.HeteroscedasticGaussian(), "flat", {}, False),
        (1999, be.HeteroscedasticGaussian(), "vague", {"repulsion": 0.1}, False),
        (1999, be.HeteroscedasticGaussian(), "vague", {"calibrate": False}, False),
        (1999, be.HeteroscedasticGaussian(), "vague", {"num_members": 1}, False),
    ],
)
def test_where_the_default_was_seen_to_cost_log_score_it_says_what_to_compare_it_with(
    kind, rows, likelihood, prior, settings, warned, caplog
):
    """Once in a process, and in the words that tell the strength."""
    _caution_once.cache_clear()
    bound = be.Task(lambda: torch.nn.Linear(3, 2), likelihood, PRIORS[prior]).bind(rows, torch.ones(4, 3))
    method = kind(**{"num_members": 2} | settings)
    for _ in range(2):
        method.init(bound, 0)
    assert sum(HELD_OUT in record.getMessage() for record in caplog.records) == warned
    assert (HELD_OUT in method.resolved(bound).get("repulsion", "")) == warned


def test_members_that_come_in_turn_are_told_too(caplog):
    _caution_once.cache_clear()
    bound = be.Task(lambda: torch.nn.Linear(3, 2), be.HeteroscedasticGaussian()).bind(9, torch.ones(4, 3))
    be.Repulsive(num_members=2, sequential=True).init(bound, 0)
    assert any(HELD_OUT in record.getMessage() for record in caplog.records)


def test_the_log_has_the_strength_and_why(caplog):
    with caplog.at_level("INFO", "bayesemble"):
        quick_fit(task(), table(), be.Repulsive(num_members=2), epochs=1)
    assert any("repulsion: 0.1: no prior was stated" in record.getMessage() for record in caplog.records)


def test_a_word_that_is_no_strength_is_refused():
    with pytest.raises(SettingError, match="repulsion"):
        be.Repulsive(repulsion="strong")


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


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("space", [be.WeightSpace(), be.FunctionSpace(function_prior=False)])
@pytest.mark.parametrize("calibrate", [True, False])
def test_permuting_members_permutes_the_step(kind, space, calibrate):
    method = kind(num_members=5, space=space, calibrate=calibrate, optimizer="sgd", momentum=0.0)
    order = torch.tensor([3, 1, 4, 0, 2])
    params = random_members(5)
    moved = directions(method, params)
    shuffled = directions(method, {name: leaf[order] for name, leaf in params.items()})
    for name, leaf in moved.items():
        torch.testing.assert_close(shuffled[name], leaf[order], rtol=1e-7, atol=1e-10)


def test_rows_are_views_whatever_the_memory_order():
    leaf = torch.randn(3, 4, 5, 2, 2, generator=torch.Generator().manual_seed(0))
    last = leaf.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    for tensor in (leaf, last, leaf.transpose(1, 2).contiguous().transpose(1, 2)):
        rows = leaf_rows(tensor)
        assert rows.data_ptr() == tensor.data_ptr()
        torch.testing.assert_close(products([tensor])[0], products([leaf])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("at_a_time", [1, 7, 20, 10**6])
def test_columns_are_mixed_some_at_a_time(monkeypatch, at_a_time):
    generator = torch.Generator().manual_seed(0)
    matrix, columns = (torch.randn(4, size, generator=generator, dtype=torch.float64) for size in (4, 9))
    monkeypatch.setattr(interacting, "_NUMBERS_MIXED_AT_A_TIME", at_a_time)
    torch.testing.assert_close(interacting.mixed(matrix, columns), matrix @ columns)


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
        ({"kernel": "cubic"}, "kernel is 'rbf', 'laplace', 'linear', .*, got 'cubic'"),
        ({"kernel": "linear"}, "the linear kernel is no function of distances.*set calibrate=False"),
        ({"kernel": RBF(), "bandwidth": 2.0}, r"bandwidth=2.0 cannot be honoured.*use RBF\(bandwidth=2.0\)"),
        ({"kernel": "linear", "bandwidth": 2.0}, "bandwidth=2.0 cannot be honoured: the linear kernel has none"),
        ({"bandwidth": -1.0}, "bandwidth is 'median' or a number above 0, got -1.0"),
        ({"repulsion": -0.1}, "repulsion is 'auto' or a number from 0, got -0.1"),
        ({"anneal": "cosine"}, "anneal is 'none', 'linear', 'tanh' or 'cyclical', got 'cosine'"),
        ({"anneal_share": 0.0}, r"anneal_share is a number in \(0, 1\], got 0.0"),
        ({"driving": 0.0}, "driving is a number above 0, got 0.0"),
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
    for anneal in ("linear", "tanh", "cyclical"):
        for step in (17, 63, 88):
            assert factor(step, anneal=anneal, driving=0.3) == pytest.approx(0.3 * factor(step, anneal=anneal)) != 0


def test_the_history_has_the_forces_and_a_faint_repulsion_warns():
    ensemble = quick_fit(task(), table(), be.Repulsive(num_members=3))
    row = ensemble.history[-1]
    assert len(row["driving_norm"]) == len(row["repulsion_norm"]) == 3
    assert min(row["repulsion_norm"]) > 0
    assert row["driving"] == [1, 1, 1]
    with pytest.warns(UserWarning, match="less than a millionth of the driving force.*calibrate=True"):
        quick_fit(task(), table(), be.Repulsive(num_members=3, repulsion=1e-9))


@pytest.mark.parametrize("space", ["weight", "function"])
def test_the_history_has_the_factor_on_the_driving_force(space):
    method = be.Repulsive(num_members=2, space=space, driving=0.3, anneal="linear", anneal_share=0.5)
    ensemble = quick_fit(task(), table(48), method, epochs=4, batch_size=16)
    factors = [method.driving_factor(Clock(step, 12, 0)) for step in range(12)]
    means = [sum(factors[start : start + 3]) / 3 for start in range(0, 12, 3)]
    assert [row["driving"] for row in ensemble.history] == [pytest.approx([mean] * 2, abs=1e-7) for mean in means]


@pytest.mark.parametrize("space", ["weight", "function"])
def test_the_driving_force_is_told_with_its_factor_and_the_warning_goes_by_it(space):
    def forces(**settings: float) -> dict:
        method = be.Repulsive(num_members=3, space=space, **settings)
        return quick_fit(task(), table(), method, epochs=1, batch_size=None).history[-1]

    whole, tenth = forces(repulsion=1.0), forces(repulsion=1.0, driving=0.1)
    assert tenth["driving_norm"] == pytest.approx([0.1 * norm for norm in whole["driving_norm"]], rel=1e-5)
    assert tenth["repulsion_norm"] == whole["repulsion_norm"]
    faint = 0.1 * min(drive / push for drive, push in zip(whole["driving_norm"], whole["repulsion_norm"], strict=True))
    with pytest.warns(UserWarning, match="less than a millionth of the driving force"):
        forces(repulsion=1e-6 * faint)
    forces(repulsion=1e-6 * faint, driving=1e-3)


def test_in_function_space_too_the_linear_kernel_pushes_members_against_their_sum():
    """With kde, all members are moved along -S / (f_i . S), S the sum of their outputs: pulled back by J = x here."""
    x = torch.tensor([[1.0], [2.0]])
    linear = be.Task(lambda: torch.nn.Linear(1, 1, bias=False), be.Gaussian(1.0), prior=None)
    settings = {"space": "function", "kernel": "linear", "calibrate": False, "optimizer": "sgd", "momentum": 0.0}
    method = be.Repulsive(num_members=3, learning_rate=1.0, **settings)
    bound = linear.bind(2, x)
    state, targets = method.init(bound, 0), torch.zeros(2, 1)
    w = torch.tensor([0.5, 1.0, 2.0])
    state.members.params["weight"].copy_(w.reshape(3, 1, 1))
    state, _ = method.step(state, Batch(x, targets), Context(bound, be.Loop(), Clock(0, 1, 0)))
    drive, push = -w * 5, -5 * w.sum() / (5 * w * w.sum())  # J^T J = 5
    torch.testing.assert_close(state.members.params["weight"].flatten() - w, (drive + push) / 2)
