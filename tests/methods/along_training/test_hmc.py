"""What HMC promises beyond its moments: draws, adaptation, statistics, refusals, and runs that can be resumed."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.along_training.hmc import count_draws, dual_average, flatten, shrunk_variance, unflatten
from bayesemble.methods.base import Context
from comparisons import compared
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table


def line_data(num_rows: int = 10) -> tuple[Tensor, Tensor]:
    x = torch.randn(num_rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x[:, 0] - x[:, 1]


def line_task(noise: float = 0.5) -> be.Task:
    return be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(noise=noise))


def sample(task: be.Task | None = None, data=None, epochs: int = 20, executor="vmap", **settings) -> be.Ensemble:
    method = be.HMC(**({"num_members": 3, "step_size": 0.1} | settings))
    options = {"epochs": epochs, "batch_size": None, "executor": executor}
    return quick_fit(task or line_task(), data or line_data(), method, **options)


def everything(ensemble: be.Ensemble) -> dict[str, Tensor]:
    """Every tensor of the state, by name."""
    state = ensemble.state
    leaves = state.members.params | state.members.buffers
    return leaves | {f"{slot}/{name}": leaf for slot, own in state.slots.items() for name, leaf in own.items()}


@pytest.mark.parametrize(
    ("epochs", "num_draws", "kept"), [(20, 5, [11, 13, 15, 17, 19]), (12, 100, [6, 7, 8, 9, 10, 11])]
)
def test_draws_are_the_positions_at_evenly_spaced_transitions_chain_after_chain(epochs, num_draws, kept):
    positions = []

    def remember(state, row):
        positions.append(state.members.params["weight"].clone())

    method = be.HMC(num_members=3, num_draws=num_draws, step_size=0.1)
    fitted = quick_fit(line_task(), line_data(), method, epochs=epochs, batch_size=None, on_epoch=remember)
    members = fitted.draw()
    expected = torch.stack([positions[step] for step in kept], dim=1)
    assert torch.equal(members.params["weight"], expected.flatten(0, 1))
    torch.testing.assert_close(members.weights, torch.full((3 * len(kept),), 1 / (3 * len(kept)), dtype=torch.float64))
    assert fitted.predict(line_data()[0]).num_members == 3 * len(kept)
    assert len(fitted.draw(50).weights) == 50
    drawn = {tuple(weight.flatten().tolist()) for weight in fitted.draw(50).params["weight"]}
    assert drawn <= {tuple(weight.flatten().tolist()) for weight in members.params["weight"]}


def test_before_any_draw_is_kept_there_are_the_positions():
    x, _ = line_data()
    task = line_task().bind(len(x), x)
    method = be.HMC(num_members=3)
    state = method.init(task, 0)
    drawn = method.networks(state)
    assert torch.equal(drawn.params["weight"], state.members.params["weight"])


def test_weights_of_chains_are_shared_out_among_their_draws():
    fitted = sample(num_draws=4).reweight([1.0, 0.0, 3.0])
    expected = torch.tensor([1 / 16] * 4 + [0.0] * 4 + [3 / 16] * 4, dtype=torch.float64)
    torch.testing.assert_close(fitted.draw().weights, expected)


def test_after_the_warm_up_nothing_is_adapted():
    adapted = []

    def remember(state, row):
        slots = state.slots
        adapted.append((slots["step_size"]["log"].tolist(), slots["mass"]["inverse"].tolist()))

    method = be.HMC(num_members=3, warmup=0.75, step_size=0.1)
    quick_fit(line_task(), line_data(), method, epochs=40, batch_size=None, on_epoch=remember)
    assert len({str(entry) for entry in adapted[:30]}) > 20
    assert len({str(entry) for entry in adapted[29:]}) == 1
    assert len(set(adapted[20][0])) == 3
    assert len(set(adapted[-1][0])) == 1


def test_the_mass_is_the_variance_of_the_draws_of_the_last_window():
    positions = []

    def remember(state, row):
        positions.append(flatten(state.members.params))

    method = be.HMC(num_members=3, step_size=0.1)
    fitted = quick_fit(line_task(), line_data(), method, epochs=80, batch_size=None, on_epoch=remember)
    window = torch.cat(positions[18:34])  # from 45 % to 85 % of 40 transitions
    variance = window.var(0)
    expected = (48 * variance + 5 * 1e-3 * variance.mean()) / 53
    torch.testing.assert_close(fitted.state.slots["mass"]["inverse"], expected)


@pytest.mark.parametrize(("chains", "learnt"), [(9, False), (10, True)])
def test_the_mass_is_learnt_from_ten_draws_on(chains, learnt):
    """The first of four windows in 20 transitions of warm-up is a single one, in which each chain gives a draw."""
    masses = []

    def remember(state, row):
        masses.append(state.slots["mass"]["inverse"].clone())

    method = be.HMC(num_members=chains, step_size=0.1, max_leapfrog=3)
    quick_fit(line_task(), line_data(), method, epochs=40, batch_size=None, executor="vmap", on_epoch=remember)
    assert torch.equal(masses[0], masses[1])
    assert torch.equal(masses[1], masses[2]) != learnt


def test_running_sums_give_the_variance(generator):
    draws = 1e3 + torch.randn(6, 4, 5, generator=generator, dtype=torch.float64)
    zeros = torch.zeros(5, dtype=torch.float64)
    window = {"count": torch.tensor(0.0, dtype=torch.float64), "mean": zeros, "squares": zeros.clone()}
    for step in draws:
        count_draws(window, step)
    torch.testing.assert_close(window["squares"] / 23, draws.flatten(0, 1).var(0))
    assert (shrunk_variance(window) < draws.flatten(0, 1).var(0)).all()


def test_dual_averaging_finds_the_steps_whose_acceptance_is_wanted(generator):
    """Acceptance exp(-(step / scale)^2) and some noise: 0.8 at scale sqrt(log 1.25), from a step far off either way."""
    scale, start = torch.tensor([1e-2, 1.0, 1e2], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    slot = {name: start.clone() for name in ("log", "log_mean", "centre", "error")} | {"count": start[0].clone()}
    for _ in range(200):
        noise = 0.1 * torch.randn(3, generator=generator, dtype=torch.float64)
        dual_average(slot, ((-(slot["log"].exp() / scale).square()).exp() + noise).clamp(0, 1), 0.8)
    # Newton's step from the noise to the log step size, averaged over about 200^0.75 transitions; 4 standard errors.
    slope, averaged = 2 * math.log(1.25) * 0.8, 200**0.75
    error = 4 * 0.1 / (slope * math.sqrt(averaged))
    assert (slot["log_mean"] - (scale * math.sqrt(math.log(1.25))).log()).abs().max() < error


def test_dual_averaging_is_its_recursion(generator):
    slot = {name: torch.full((2,), 0.3).double() for name in ("log", "log_mean", "centre")}
    slot |= {"error": torch.zeros(2).double(), "count": torch.tensor(0.0).double()}
    error, mean = torch.zeros(2).double(), slot["log_mean"].clone()
    for t in range(1, 6):
        reached = torch.rand(2, generator=generator, dtype=torch.float64)
        dual_average(slot, reached, 0.7)
        error = (1 - 1 / (t + 10)) * error + (0.7 - reached) / (t + 10)
        log = 0.3 - math.sqrt(t) / 0.2 * error
        mean = t**-0.75 * log + (1 - t**-0.75) * mean
        torch.testing.assert_close(slot["log"], log, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(slot["log_mean"], mean, rtol=1e-6, atol=1e-6)


def test_the_first_error_is_that_from_the_acceptance_that_was_asked_for():
    seen = []

    def remember(state, row):
        seen.append((state.slots["step_size"]["error"].clone(), torch.tensor(row["acceptance"])))

    method = be.HMC(num_members=3, step_size=0.1, max_leapfrog=3, acceptance=0.6)
    quick_fit(line_task(), line_data(), method, epochs=20, batch_size=None, executor="vmap", on_epoch=remember)
    error, reached = seen[0]
    torch.testing.assert_close(error, (0.6 - reached.double()) / 11, rtol=1e-5, atol=1e-7)


def test_leaves_and_matrix(generator):
    leaves = {"b": torch.randn(3, 2, 4, generator=generator), "a": torch.randn(3, generator=generator)}
    flat = flatten(leaves)
    assert flat.shape == (3, 9)
    assert torch.equal(flat[:, 0], leaves["a"])
    assert torch.equal(flat, flatten(dict(reversed(leaves.items()))))
    assert all(torch.equal(unflatten(flat, leaves)[name], leaves[name]) for name in leaves)


def test_loop_and_vmap_take_the_same_path():
    one, other = everything(sample(executor="loop")), everything(sample(executor="vmap"))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-9, rtol=1e-9) for name in one)


def norm_net() -> nn.Module:
    return norm_mlp().double()


@pytest.mark.parametrize("interruption", [5, 13])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(tmp_path, interruption):
    x, y = table()
    method = be.HMC(num_members=2, num_draws=4, max_leapfrog=5)
    settings = {"task": be.Task(norm_net, be.Categorical()), "data": (x.double(), y), "method": method}
    settings |= {"epochs": 20, "batch_size": None, "executor": "vmap"}

    def interrupt(state, row):
        if row["epoch"] == interruption + 1:
            raise KeyboardInterrupt

    expected = quick_fit(**settings)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(**settings, checkpoint=tmp_path / "run", on_epoch=interrupt)
    resumed = quick_fit(**settings, checkpoint=tmp_path / "run", resume=True)
    resumed.save(tmp_path / "saved")
    loaded = be.load(tmp_path / "saved", norm_net)
    for other in (resumed, loaded):
        assert everything(other).keys() == everything(expected).keys()
        assert all(torch.equal(leaf, everything(other)[name]) for name, leaf in everything(expected).items())
        assert torch.equal(other.predict(x, num_draws=3).probs, expected.predict(x, num_draws=3).probs)
    for key in ("loss", "acceptance", "step_size"):
        assert [row[key] for row in resumed.history] == [row[key] for row in expected.history]


def test_more_epochs_go_on_with_the_chains(tmp_path):
    settings = {"task": line_task(), "data": line_data(), "method": be.HMC(num_members=3, step_size=0.1)}
    settings |= {"batch_size": None, "checkpoint": tmp_path}
    quick_fit(**settings, epochs=10)
    longer = quick_fit(**settings, epochs=30, resume=True)
    assert longer.draw().num_members == 3 * 15
    assert be.convergence(longer, line_data()[0])["rhat"] < 1.5


def test_a_draw_predicts_with_the_statistics_it_was_sampled_with():
    x, y = table()
    fitted = sample(be.Task(norm_net, be.Categorical()), (x.double(), y), epochs=8, num_draws=3)
    members = fitted.draw()
    for index in range(members.num_members):
        weight, bias = members.params["0.weight"][index], members.params["0.bias"][index]
        hidden = x.double() @ weight.T + bias
        running = members.buffers["1.running_mean"][index]
        assert (hidden.mean(0) - running).abs().max() < 0.02 * hidden.mean(0).abs().max()


def test_a_refused_trajectory_leaves_no_trace_in_the_statistics():
    x, y = table()
    task = be.Task(norm_net, be.Categorical()).bind(len(x), x.double())
    method, batch = be.HMC(num_members=2, num_draws=1, step_size=10.0, warmup=0.0), Batch(x.double(), y)
    state = method.init(task, 0)
    weight, bias = state.members.params["0.weight"].clone(), state.members.params["0.bias"].clone()
    state, info = method.step(state, batch, Context(task, be.Loop(), Clock(0, 100, 0)))
    assert (info["acceptance"] < 1e-6).all()
    assert torch.equal(state.members.params["0.weight"], weight)
    hidden = torch.einsum("moi,ni->mno", weight, x.double()) + bias[:, None]
    # One pass at the start, none along the way.
    torch.testing.assert_close(state.members.buffers["1.running_mean"], 0.1 * hidden.mean(1))


class Overflow(nn.Module):
    """A posterior with a cliff: beyond it the outputs are not numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.a).exp().exp()


@pytest.mark.parametrize(
    ("task", "step_size"), [(line_task(noise=1e-3), 1.0), (be.Task(Overflow, be.Gaussian()), 50.0)], ids=["far", "nan"]
)
def test_divergences_are_refused_counted_and_told(task, step_size):
    with pytest.warns(UserWarning, match="30 trajectories diverged after the warm-up") as caught:
        fitted = sample(task, epochs=10, warmup=0.0, step_size=step_size, trajectory=10 * step_size)
    assert len(caught) == 1
    assert all(row["divergent"] == [1.0, 1.0, 1.0] and row["acceptance"] == [0.0, 0.0, 0.0] for row in fitted.history)
    assert all(math.isfinite(loss) for row in fitted.history for loss in row["loss"])
    assert be.convergence(fitted, line_data()[0])["divergent"] == 30
    start = task.bind(10, line_data()[0]).new_members(3, 0).params
    assert all(torch.equal(fitted.state.members.params[name], leaf) for name, leaf in start.items())


def test_divergences_of_the_warm_up_are_nothing_to_worry_about():
    fitted = sample(line_task(noise=0.1), epochs=60, step_size=5.0, max_leapfrog=30)
    assert sum(sum(row["divergent"]) for row in fitted.history) > 0
    assert be.convergence(fitted, line_data()[0])["divergent"] == 0


def test_the_first_mass_is_the_variance_of_the_prior():
    prior = be.NormalPrior(std={"bias": 3.0, "*": 0.5})
    task = be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(noise="learned"), prior).bind(10, line_data()[0])
    inverse = be.HMC().init(task, 0).slots["mass"]["inverse"]
    assert inverse.tolist() == [9.0, 1.0, 0.25, 0.25]  # bias, the noise (without a prior), weights


def test_networks_of_single_precision():
    x, y = table()
    fitted = sample(be.Task(small_mlp, be.Categorical()), (x, y), epochs=6, step_size=0.01, max_leapfrog=5)
    assert fitted.draw().params["0.weight"].dtype == torch.float32
    assert fitted.predict(x).probs.isfinite().all()


def test_every_chain_may_have_data_of_its_own():
    x, y = line_data(12)
    data = be.PerMember(x.reshape(3, 4, 2), y.reshape(3, 4))
    apart = sample(data=data, epochs=30)
    assert apart.draw().num_members == 45


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_members": 0}, "num_members is a whole number from 1, got 0"),
        ({"num_draws": 2.5}, "num_draws is a whole number from 1, got 2.5"),
        ({"max_leapfrog": 0}, "max_leapfrog is a whole number from 1"),
        ({"trajectory": 0.0}, "trajectory is a number above 0, got 0.0"),
        ({"step_size": math.inf}, "step_size is a number above 0, got inf"),
        ({"warmup": 1.0}, r"warmup is a number in \[0, 1\), got 1.0"),
        ({"acceptance": 1.0}, r"acceptance is a number in \(0, 1\), got 1.0"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        be.HMC(**settings)


def test_batches_are_refused():
    x, y = table()
    task, options = be.Task(small_mlp, be.Categorical()), {"epochs": 2}
    with pytest.raises(
        be.SettingError, match=r"whole data in every step, but an epoch has 3 batches \(batch_size=16\)"
    ):
        be.fit(task, be.HMC(), (x, y), batch_size=16, **options)
    loader = DataLoader(TensorDataset(x, y), batch_size=40)
    with pytest.raises(be.SettingError, match="an epoch has 2 batches"):
        be.fit(task, be.HMC(), loader, **options)
    be.fit(task, be.HMC(num_members=2, max_leapfrog=1), (x, y), batch_size=48, executor="loop", **options)


def test_networks_that_are_random_in_training_are_refused():
    with pytest.raises(be.ModelError, match="draws random numbers in training, as dropout does"):
        sample(be.Task(dropout_mlp, be.Categorical()), table())


def test_the_comparison_gives_it_the_whole_data(tmp_path):
    methods = "hmc:max_leapfrog=2,deep_ensemble"
    comparison = compared("two_moons", methods, members=2, epochs=4, seeds=1, out=tmp_path)
    assert comparison.labels == ["hmc:max_leapfrog=2", "deep_ensemble"]


def test_after_the_warm_up_all_chains_take_the_averaged_step_size():
    """Not the last one, which is still searching."""
    seen = []

    def remember(state, _row):
        seen.append({name: leaf.clone() for name, leaf in state.slots["step_size"].items()})

    method = be.HMC(num_members=3, step_size=0.1, max_leapfrog=10)
    quick_fit(line_task(), line_data(), method, epochs=20, batch_size=None, executor="vmap", on_epoch=remember)
    averages = seen[9]["log_mean"]  # ten of twenty transitions are the warm-up
    assert averages.unique().numel() == 3
    torch.testing.assert_close(seen[9]["log"], averages.mean().expand(3).to(seen[9]["log"]))
    assert all(torch.equal(later["log"], seen[9]["log"]) for later in seen[10:])
    assert not torch.allclose(seen[6]["log"], seen[6]["log_mean"], rtol=0.01)


def test_the_number_of_leapfrog_steps_varies_around_the_trajectory_and_never_exceeds_the_most():
    def numbers(step_size: float, **settings) -> list[int]:
        clocks = [Clock(step, 400, 0) for step in range(400)]
        return [be.HMC(**settings)._num_leapfrog(torch.tensor([step_size]), clock) for clock in clocks]

    free = numbers(0.01, trajectory=1.0, max_leapfrog=1000)
    error = 100 / math.sqrt(12 * 400)  # of the mean of numbers that are uniform from 50 to 150
    assert sum(free) / 400 == pytest.approx(100, abs=4 * error)
    assert 50 <= min(free) < 53
    assert 147 < max(free) <= 150
    bounded = numbers(0.01, trajectory=1.0, max_leapfrog=50)
    assert max(bounded) == 50
    assert len(set(bounded)) > 10
    assert set(numbers(10.0)) == {1}
    several = [be.HMC(max_leapfrog=9)._num_leapfrog(torch.tensor([0.01, 4.0]), Clock(step, 9, 0)) for step in range(9)]
    alone = [be.HMC(max_leapfrog=9)._num_leapfrog(torch.tensor([0.2]), Clock(step, 9, 0)) for step in range(9)]
    assert several == alone, "the geometric mean of the steps of all chains counts"
