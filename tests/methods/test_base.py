"""A method of a user's own: what it gets for nothing, and that it works wherever the library's methods do."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Clock, Info, WeightedTargets
from bayesemble.methods import METHODS, make_method
from bayesemble.task.task import BoundTask
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table


@dataclass(frozen=True, kw_only=True)
class Jumpy(be.Method):
    """Plain gradient ascent with a jump at every step, written from nothing."""

    num_members: int = setting(2, "number of members")
    rate: float = setting(0.1, "step size")
    jump: float = setting(0.01, "standard deviation of the jump")

    def init(self, task: BoundTask, seed: int) -> State:
        return State(task.new_members(self.num_members, seed))

    def step(self, state: State, batch: Batch, context: be.Context) -> tuple[State, Info]:
        task, members = context.task, state.members
        values, gradients = context.gradients(members, batch)
        uphill = task.log_joint_gradient(gradients, members.params)
        generator = torch.Generator().manual_seed(context.clock.member_seeds(1)[0])
        for name in sorted(members.params):
            leaf = members.params[name]
            noise = torch.randn(leaf.shape, generator=generator)
            leaf.add_(uphill[name], alpha=self.rate / task.num_data).add_(noise, alpha=self.jump)
        return state, {"loss": -values}


@dataclass(frozen=True, kw_only=True)
class Shaken(be.DeepEnsemble):
    """A deep ensemble whose members are shaken for every network that is drawn."""

    draws: int = setting(6, "networks of a prediction")

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        members = state.members.take(torch.tensor(numbers) % state.members.num_members)
        for index, number in enumerate(numbers):
            generator = torch.Generator().manual_seed(seed % 1000 + number)
            for name in sorted(members.params):
                leaf = members.params[name][index]
                leaf.add_(torch.randn(leaf.shape, generator=generator), alpha=0.01)
        return members


@dataclass(frozen=True)
class Smoothed(be.Categorical):
    """Labels of which a share is uncertain."""

    share: float = 0.1

    def log_prob(self, outputs, targets, leaves):
        log_probs = outputs.log_softmax(-1)
        chosen = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (1 - self.share) * chosen + self.share * log_probs.mean(-1)


@dataclass(frozen=True)
class Narrow(be.NormalPrior):
    """A prior of a user's own."""


@pytest.fixture
def registered():
    """Names that are gone after the test."""
    before = dict(METHODS)
    yield be.register
    METHODS.clear()
    METHODS.update(before)


def task(model=norm_mlp) -> be.Task:
    return be.Task(model, Smoothed(0.2), prior=Narrow(0.5))


@pytest.mark.parametrize(
    "method", [Jumpy(num_members=3), Shaken(num_members=2)], ids=lambda method: type(method).__name__
)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_it_is_trained_saved_loaded_and_resumed(method, executor, tmp_path):
    whole = quick_fit(task(), table(), method, epochs=4, executor=executor)
    for epochs in (2, 4):
        resumed = quick_fit(
            task(), table(), method, epochs=epochs, executor=executor, checkpoint=tmp_path / "run", resume=True
        )
    assert largest_difference(all_leaves(whole), all_leaves(resumed)) == 0
    whole.save(tmp_path / "saved")
    for folder in ("run", "saved"):
        loaded = be.load(tmp_path / folder, norm_mlp)
        assert (loaded.method, loaded.task.likelihood, loaded.task.prior) == (method, Smoothed(0.2), Narrow(0.5))
        assert torch.equal(loaded.predict(table()[0]).member_probs, whole.predict(table()[0]).member_probs)


def test_it_trains_on_disk_without_a_word_of_its_own_about_it(tmp_path):
    memory = quick_fit(task(), table(), Jumpy(num_members=3))
    disk = quick_fit(task(), table(), Jumpy(num_members=3), offload=tmp_path)
    assert largest_difference(all_leaves(memory), all_leaves(disk)) == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["buffers", "params"]


def test_its_step_is_what_was_written():
    """One step of a plain loop over the members, in its own words."""
    method, (x, y) = Jumpy(num_members=2, jump=0.0), table(16)
    bound = be.Task(small_mlp, be.Categorical(), prior=None).bind(16, x)
    state = method.init(bound, 0)
    before = state.clone().members
    method.step(state, Batch(x, y), be.Context(bound, be.Loop(), Clock(0, 1, 0)))
    for index, (params, _) in enumerate(before.split()):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        loss = torch.nn.functional.cross_entropy(torch.func.functional_call(bound.module, leaves, (x,)), y)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for (name, leaf), slope in zip(params.items(), slopes, strict=True):
            torch.testing.assert_close(state.members.params[name][index], leaf - 0.1 * slope)


def test_what_is_not_said_has_a_default():
    method = Jumpy(num_members=3)
    state = method.init(task().bind(48, table()[0]), 0)
    assert method.networks(state) is state.members
    assert method.draws is method.chains(state) is method.member_rows(48, 0) is None
    said = [method.full_batch, method.keeps_dropout, method.needs_every_epoch, method.can_draw(state)]
    assert said == [False] * 4
    assert (method.gradients_per_step, method.num_moments, method.training_slots) == (3, 0, ())
    assert be.count_parameters(task(), method).total == 3 * task().num_parameters


def test_drawn_networks_come_by_number():
    ensemble = quick_fit(task(), table(), Shaken(num_members=2))
    assert ensemble.predict(table()[0]).num_members == 6
    assert ensemble.predict(table()[0]).epistemic.min() > 0
    few, many = ensemble.draw(2), ensemble.draw(5)
    assert torch.equal(few.params["0.weight"], many.params["0.weight"][:2])


def test_the_gradients_of_a_run_are_counted():
    """33 rows in batches of 32 are one batch: a last row that would be alone joins the batch before it."""
    history = quick_fit(task(), table(33), Jumpy(num_members=3), batch_size=32, epochs=2).history
    assert [row["gradients"] for row in history] == [3, 3]
    history = quick_fit(task(), table(48), be.DeepEnsemble(num_members=3, adversarial=0.1), epochs=1).history
    assert history[0]["gradients"] == 3 * 3 * 2


def test_a_method_without_a_way_to_draw_is_told():
    ensemble = quick_fit(task(), table(), Jumpy())
    with pytest.raises(NotImplementedError, match="Jumpy has a number of draws, but no way to draw"):
        ensemble.method.draw(ensemble.state, range(3), 0)


def test_a_registered_method_has_a_name(registered):
    assert registered(Jumpy) is Jumpy
    registered(Shaken, "shaken_twice", num_members=2)
    assert make_method("jumpy", rate=0.3) == Jumpy(rate=0.3)
    assert make_method("shaken_twice") == Shaken(num_members=2)
    assert METHODS["jumpy"].idea == "Plain gradient ascent with a jump at every step, written from nothing."
    with pytest.raises(be.SettingError, match="always has num_members=2, num_members=3 cannot be honoured"):
        make_method("shaken_twice", num_members=3)
    registered(Jumpy)  # the same class again, as a notebook does


def test_what_cannot_be_registered_is_refused(registered):
    @dataclass(frozen=True, kw_only=True)
    class Other(be.DeepEnsemble):
        """Not the method that has this name."""

    with pytest.raises(be.SettingError, match="'map' is taken by DeepEnsemble"):
        registered(Other, "map")
    with pytest.raises(be.SettingError, match=r"derived from be\.Method is needed, got 'map'"):
        registered("map")

    class Plain(be.DeepEnsemble):
        """It lacks the decorator."""

    with pytest.raises(be.SettingError, match=r"Plain must be a dataclass"):
        registered(Plain)


IN_PARTS = {
    "deep ensemble": be.DeepEnsemble(num_members=3, optimizer="sgd", learning_rate=0.1),
    "bootstrap": be.DeepEnsemble(num_members=3, bootstrap=True, optimizer="sgd", learning_rate=0.1),
    "adversarial": be.DeepEnsemble(num_members=3, adversarial=0.1, optimizer="sgd", learning_rate=0.1),
    "repulsive": be.Repulsive(num_members=3, optimizer="sgd", learning_rate=0.1),
    "components": be.ECMP(optimizer="sgd", learning_rate=0.1),
    "plain noise": be.MeanField(noise="plain", optimizer="sgd", learning_rate=0.1),
    "hmc": be.HMC(num_members=2, max_leapfrog=5, num_draws=1),
}


@pytest.mark.filterwarnings("ignore:.*diverged")
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", IN_PARTS)
def test_a_batch_that_goes_through_in_parts_gives_the_same_numbers(name, executor):
    method, task = IN_PARTS[name], be.Task(small_mlp, be.Categorical())
    size = {"batch_size": None} if method.full_batch else {"batch_size": 20}
    whole, parts = (
        quick_fit(task, table(), method, epochs=3, executor=executor, max_batch=most, **size) for most in (None, 7)
    )
    assert largest_difference(all_leaves(parts), all_leaves(whole)) < 1e-5
    assert parts.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=1e-4)
    assert parts.task.max_batch is None, "it is a matter of the run, not of the ensemble"


def test_labels_that_do_not_count_weigh_nothing_in_parts_either():
    x, y = table()
    y = y.masked_fill(torch.arange(48) % 5 < 2, -100)
    task = be.Task(small_mlp, be.Categorical(ignore_index=-100))
    whole, parts = (quick_fit(task, (x, y), batch_size=24, max_batch=most) for most in (None, 5))
    assert largest_difference(all_leaves(parts), all_leaves(whole)) < 1e-4


def test_each_part_drops_units_of_its_own():
    """Twice the same rows in two parts: with the same masks, the gradient would be that of one of them."""
    x, y = (part[:8] for part in table())
    task, method = be.Task(dropout_mlp, be.Categorical()), be.DeepEnsemble(num_members=1, optimizer="sgd")
    twice = (torch.cat([x, x]), torch.cat([y, y]))
    bound = task.bind(16, twice[0])
    members = bound.new_members(1, seed=0)
    context = be.Context(replace(bound, max_batch=8), be.Loop(), Clock(0, 1, 0))
    _, both = context.gradients(members, Batch(*twice))
    random = [seeds.child(seed, "part", 0) for seed in context.random_seeds(members)]
    _, first = be.Loop().gradients(bound.mean_log_likelihood, members, Batch(x, y), random)
    assert largest_difference(both, first) > 1e-3
    assert quick_fit(task, twice, method, max_batch=8).num_members == 1


@pytest.mark.parametrize(
    ("make", "method", "options", "message"),
    [
        (norm_mlp, None, {}, "batch norm goes by the rows of a batch"),
        (small_mlp, be.Repulsive(num_members=2, space="function"), {}, "compared by their outputs on the whole batch"),
        (small_mlp, None, {"max_batch": 0}, "max_batch must be a whole number of rows from 1, or None, got 0"),
    ],
)
def test_parts_that_would_change_the_numbers_are_refused(make, method, options, message):
    with pytest.raises(be.SettingError, match=message):
        quick_fit(be.Task(make, be.Categorical()), table(), method, **({"max_batch": 4} | options))


def test_parts_and_members_on_disk_are_refused(tmp_path):
    with pytest.raises(be.SettingError, match="max_batch adds up gradients in memory"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), max_batch=4, offload=tmp_path / "disk")


def test_parts_of_a_batch_count_by_the_weights_of_their_rows():
    x, y = table(12)
    weights = torch.tensor([3.0, 0, 1, 2, 0, 0, 0, 0, 1, 1, 5, 0.5])
    bound = be.Task(small_mlp, be.Categorical()).bind(12, x)
    members = bound.new_members(2, seed=0)
    batch = Batch(x, WeightedTargets(y, weights))

    def gradients(most: int | None) -> list[Tensor]:
        context = be.Context(replace(bound, max_batch=most), be.Vmap(), Clock(0, 1, 0))
        value, slopes = context.gradients(members, batch)
        return [value, *slopes.values()]

    for one, other in zip(gradients(4), gradients(None), strict=True):  # the second part weighs nothing
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
