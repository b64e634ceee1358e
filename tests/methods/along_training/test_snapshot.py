import math

import pytest
import torch
from torch import Tensor

import bayesemble as be
from bayesemble.core.types import Clock
from bayesemble.execute.schedules import Cosine
from bayesemble.methods.along_training.snapshot import Snapshot
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table


def everything(ensemble: be.Ensemble) -> dict[str, Tensor]:
    """Every tensor of the state, by name."""
    state = ensemble.state
    leaves = state.members.params | state.members.buffers
    return leaves | {f"{slot}/{name}": leaf for slot, own in state.slots.items() for name, leaf in own.items()}


def train(model=norm_mlp, **options) -> be.Ensemble:
    settings = {"num_members": 2, "snapshots": 3} | options.pop("settings", {})
    return quick_fit(be.Task(model, be.Categorical()), table(), Snapshot(**settings), **({"epochs": 6} | options))


def moments(total: int, **settings: object) -> tuple[list[float], dict[int, int]]:
    """Factors on the rate, and the places of what is collected after each step."""
    found = [Snapshot(**settings).moment(Clock(step, total, 0)) for step in range(total)]
    return [m.factor for m in found], {step: m.keep for step, m in enumerate(found) if m.keep is not None}


def test_snapshot_ensembles_restart_a_cosine_and_collect_at_its_ends():
    factors, places = moments(40, snapshots=4, floor=0.0)
    assert factors == pytest.approx([(1 + math.cos(math.pi * (step % 10) / 10)) / 2 for step in range(40)])
    assert places == {9: 0, 19: 1, 29: 2, 39: 3}


def test_fast_geometric_ensembles_go_up_and_down_late_and_collect_where_it_is_lowest():
    """The last 28 of 140 steps: three cycles and a half of 8 steps."""
    factors, places = moments(140, snapshots=4, cycle="triangular", floor=0.2)
    assert factors[:112] == [1.0] * 112
    assert factors[112:121] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[112:136] == pytest.approx(3 * factors[112:120])
    assert places == {115: 0, 123: 1, 131: 2, 139: 3}


def test_before_the_cycles_the_schedule_counts():
    factors, places = moments(100, snapshots=2, start=0.6, schedule=Cosine(warmup=0.1, floor=0.5))
    assert factors[:60] == pytest.approx([Cosine(warmup=0.1, floor=0.5)(step / 60) for step in range(60)])
    assert factors[60] == factors[80] == 1.0
    assert places == {79: 0, 99: 1}


@pytest.mark.parametrize("cycle", ["cosine", "triangular"])
@pytest.mark.parametrize("total", [5, 6, 7, 23, 100])
def test_every_snapshot_is_taken_once_and_the_last_at_the_end(cycle, total):
    factors, places = moments(total, snapshots=5, cycle=cycle, start=0.0)
    assert list(places.values()) == [0, 1, 2, 3, 4]
    assert max(places) == total - 1
    assert all(0.01 <= factor <= 1 for factor in factors)


@pytest.mark.parametrize("cycle", ["cosine", "triangular"])
def test_snapshots_are_the_members_as_they_were(cycle):
    weights, statistics = [], []

    def remember(state, row):
        weights.append(state.members.params["0.weight"].clone())
        statistics.append(state.members.buffers["1.running_mean"].clone())

    settings = {"cycle": cycle, "start": 0.25, "snapshots": 3}
    fitted = train(epochs=20, batch_size=None, on_epoch=remember, settings=settings)
    kept = [9, 14, 19] if cycle == "cosine" else [7, 13, 19]
    members = fitted.draw()
    assert torch.equal(members.params["0.weight"], torch.stack([weights[i] for i in kept], 1).flatten(0, 1))
    assert torch.equal(members.buffers["1.running_mean"], torch.stack([statistics[i] for i in kept], 1).flatten(0, 1))
    torch.testing.assert_close(members.weights, torch.full((6,), 1 / 6, dtype=torch.float64))
    assert fitted.predict(table()[0]).num_members == 6
    assert fitted.draw(7).num_members == 7


def test_at_a_constant_rate_it_trains_as_a_deep_ensemble():
    options = {"epochs": 6, "batch_size": 16}
    plain = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=2), **options)
    fitted = train(settings={"floor": 1.0})
    assert largest_difference(all_leaves(plain), all_leaves(fitted)) == 0
    assert largest_difference(all_leaves(plain), all_leaves(train())) > 1e-3


def test_the_rate_of_the_cycle_is_the_rate_of_the_optimiser():
    """A deep ensemble with the same cosine restarts, by its own schedule."""
    schedule = be.schedules.Cyclical(cycles=3)
    options = {"optimizer": "sgd", "learning_rate": 0.1, "num_members": 2}
    plain = quick_fit(
        be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(schedule=schedule, **options), epochs=6
    )
    fitted = train(small_mlp, settings={"floor": 0.0, "schedule": "constant"} | options)
    assert largest_difference(all_leaves(plain), all_leaves(fitted)) < 1e-6
    assert torch.equal(
        fitted.draw().params["0.weight"].unflatten(0, (2, 3))[:, -1], fitted.state.members.params["0.weight"]
    )


def test_before_any_snapshot_there_are_the_members():
    task = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])
    state = Snapshot(num_members=3).init(task, 0)
    drawn = Snapshot(num_members=3).networks(state)
    assert torch.equal(drawn.params["0.weight"], state.members.params["0.weight"])


@pytest.mark.parametrize("cycle", ["cosine", "triangular"])
def test_loop_and_vmap_agree_in_everything(cycle):
    settings = {"cycle": cycle, "start": 0.3}
    loop, vmap = (everything(train(executor=executor, settings=settings)) for executor in ("loop", "vmap"))
    assert loop.keys() == vmap.keys()
    assert all(torch.allclose(loop[name].double(), vmap[name].double(), atol=1e-5) for name in loop)


@pytest.mark.parametrize("interruption", [2, 5])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(tmp_path, interruption):
    def interrupt(state, row):
        if row["epoch"] == interruption + 1:
            raise KeyboardInterrupt

    expected = train()
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path / "run", on_epoch=interrupt)
    resumed = train(checkpoint=tmp_path / "run", resume=True)
    resumed.save(tmp_path / "saved")
    x = table()[0]
    for other in (resumed, be.load(tmp_path / "saved", norm_mlp)):
        assert everything(other).keys() == everything(expected).keys()
        assert all(torch.equal(leaf, everything(other)[name]) for name, leaf in everything(expected).items())
        assert torch.equal(other.predict(x).probs, expected.predict(x).probs)


def test_a_member_does_not_depend_on_those_beside_it_and_can_be_kept_alone():
    alone, together = train(settings={"num_members": 1}), train(settings={"num_members": 3})
    first = together.keep([0]).draw()
    assert first.num_members == 3
    assert largest_difference(alone.draw().params, first.params) < 1e-6


def test_options_of_all_gradient_methods_go_along():
    fitted = train(small_mlp, settings={"anchored": True, "bootstrap": True, "adversarial": 0.01, "clip": 1.0})
    assert fitted.predict(table()[0]).probs.isfinite().all()


def test_training_that_diverges_ends_with_a_sentence():
    x, _ = table()
    task = be.Task(lambda: torch.nn.Linear(4, 1), be.Gaussian(noise=1e-6))
    method = Snapshot(optimizer="sgd", learning_rate=1e30, snapshots=1)
    with pytest.raises(be.TrainingError, match="lower the learning rate"):
        quick_fit(task, (x, x[:, 0]), method, epochs=1, batch_size=None)


def test_more_snapshots_than_steps_are_refused():
    with pytest.raises(be.SettingError, match=r"snapshots=5 need at least as many steps .* there are 4 of 20"):
        train(epochs=20, batch_size=None, settings={"cycle": "triangular", "snapshots": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_members": 0}, "num_members is a whole number from 1, got 0"),
        ({"snapshots": 0}, "snapshots is a whole number from 1, got 0"),
        ({"snapshots": 2.5}, "snapshots is a whole number from 1, got 2.5"),
        ({"cycle": "sine"}, "cycle is 'cosine' or 'triangular', got 'sine'"),
        ({"start": 1.0}, r"start is a number in \[0, 1\) or None, got 1.0"),
        ({"floor": -0.1}, r"floor is a number in \[0, 1\], got -0.1"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        Snapshot(**settings)
