"""What cyclical SG-MCMC promises beyond its moments: cycles, draws, statistics, refusals, runs that can be resumed."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.types import Batch, Clock
from bayesemble.diagnostics.convergence import rhat
from bayesemble.execute.loop import Loop
from bayesemble.methods.along_training.kept_networks import Moment
from bayesemble.methods.along_training.sgmcmc import CyclicalSGMCMC
from bayesemble.methods.base import Context
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table


def everything(ensemble: be.Ensemble) -> dict[str, Tensor]:
    """Every tensor of the state, by name."""
    state = ensemble.state
    leaves = state.members.params | state.members.buffers
    return leaves | {f"{slot}/{name}": leaf for slot, own in state.slots.items() for name, leaf in own.items()}


def sample(model=norm_mlp, **options) -> be.Ensemble:
    """Six epochs of three batches: three cycles of six steps."""
    settings = {"num_members": 2, "cycles": 3, "samples_per_cycle": 2, "exploration": 0.5} | options.pop("settings", {})
    method = CyclicalSGMCMC(**settings)
    return quick_fit(be.Task(model, be.Categorical()), table(), method, **({"epochs": 6} | options))


def moments(total: int, **settings: object) -> list[Moment]:
    method = CyclicalSGMCMC(**settings)
    return [method.moment(Clock(step, total, 0)) for step in range(total)]


def test_the_rate_is_the_cosine_of_the_paper():
    factors = [factor for factor, _, _ in moments(40, cycles=4)]
    expected = [(math.cos(math.pi * (step % 10) / 10) + 1) / 2 for step in range(40)]
    assert factors == pytest.approx(expected)
    assert [factor for factor, _, _ in moments(40, floor=1.0)] == [1.0] * 40
    halfway = [factor for factor, _, _ in moments(40, floor=0.2)]
    assert halfway == pytest.approx([0.2 + 0.8 * factor for factor in expected])


def test_networks_are_collected_at_evenly_spaced_steps_of_each_sampling_stage():
    """Cycles of 20 steps, the last 12 of them with noise; in the second half of these a network after every third."""
    found = moments(60, cycles=3, exploration=0.4, samples_per_cycle=2)
    assert [sampling for _, _, sampling in found] == 3 * ([False] * 8 + [True] * 12)
    places = {step: place for step, (_, place, _) in enumerate(found) if place is not None}
    assert places == {16: 0, 19: 1, 36: 2, 39: 3, 56: 4, 59: 5}


@pytest.mark.parametrize("total", [4, 6, 7, 30, 101])
@pytest.mark.parametrize("exploration", [0.0, 0.8, 0.99])
def test_every_cycle_ends_with_a_sample_however_short_it_is(total, exploration):
    found = moments(total, cycles=4, exploration=exploration, samples_per_cycle=3)
    begins = [-(-cycle * total // 4) for cycle in range(5)]
    for cycle, (begin, end) in enumerate(pairwise(begins)):
        assert found[begin].factor == 1.0
        assert found[end - 1].keep // 3 == cycle
        stage = [place for _, place, sampling in found[begin:end] if sampling]
        kept = [place for place in stage if place is not None]
        assert len(kept) == min(3, len(stage))
        assert kept == sorted(set(kept))


def test_draws_are_the_positions_at_those_steps_chain_after_chain():
    positions, statistics = [], []

    def remember(state, row):
        positions.append(state.members.params["0.weight"].clone())
        statistics.append(state.members.buffers["1.running_mean"].clone())

    fitted = sample(epochs=20, batch_size=None, on_epoch=remember, settings={"cycles": 2})
    kept = [8, 9, 18, 19]
    members = fitted.draw()
    assert torch.equal(members.params["0.weight"], torch.stack([positions[i] for i in kept], 1).flatten(0, 1))
    assert torch.equal(members.buffers["1.running_mean"], torch.stack([statistics[i] for i in kept], 1).flatten(0, 1))
    assert members.weights.tolist() == [1 / 8] * 8
    assert fitted.predict(table()[0]).num_members == 8
    drawn = fitted.draw(30).params["0.weight"]
    assert len(drawn) == 30
    assert {str(one) for one in drawn.tolist()} <= {str(one) for one in members.params["0.weight"].tolist()}


def test_before_any_sample_there_are_the_chains():
    task = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])
    method = CyclicalSGMCMC(num_members=3)
    state = method.init(task, 0)
    assert torch.equal(method.networks(state).params["0.weight"], state.members.params["0.weight"])


@pytest.mark.parametrize(("sampler", "momentum"), [("sgld", 0.0), ("sghmc", 0.9)])
def test_exploration_is_sgd(sampler, momentum):
    """Seven steps of torch's own optimiser on -log joint / N; the seventh is the first with noise."""
    x, y = table(32)
    task = be.Task(small_mlp, be.Categorical(), prior=be.NormalPrior(std=0.5)).bind(32, x)
    settings = {"cycles": 1, "exploration": 0.6, "floor": 1.0, "learning_rate": 0.02, "clip": None}
    method = CyclicalSGMCMC(num_members=2, sampler=sampler, **settings)
    state = method.init(task, 0)
    networks = []
    for index in range(2):
        with seeds.scoped(0):
            network = small_mlp()
        network.load_state_dict({name: leaf[index] for name, leaf in state.members.params.items()})
        networks.append((network, torch.optim.SGD(network.parameters(), lr=0.02, momentum=momentum)))

    def distance() -> float:
        leaves = [network.state_dict() for network, _ in networks]
        return max(
            float((state.members.params[name][index] - leaf).abs().max())
            for index, own in enumerate(leaves)
            for name, leaf in own.items()
        )

    for step in range(7):
        assert distance() < 1e-6
        state, _ = method.step(state, Batch(x, y), Context(task, be.Vmap(), Clock(step, 10, 0)))
        for network, optimiser in networks:
            optimiser.zero_grad()
            penalty = sum(parameter.square().sum() for parameter in network.parameters()) / (2 * 0.5**2)
            (nn.functional.cross_entropy(network(x), y) + penalty / 32).backward()
            optimiser.step()
    assert distance() > 1e-3


def test_full_friction_makes_sgld_of_sghmc():
    both = [sample(settings={"sampler": sampler, "alpha": 1.0}) for sampler in ("sgld", "sghmc")]
    assert largest_difference(*(all_leaves(one) for one in both)) < 1e-6
    assert "velocity" not in both[0].state.slots


def test_clipping_bounds_exploration_and_leaves_sampling_alone():
    x, y = table(32)
    task = be.Task(small_mlp, be.Categorical()).bind(32, x)

    def lengths(exploration: float, clip: float | None) -> Tensor:
        method = CyclicalSGMCMC(sampler="sgld", learning_rate=1.0, exploration=exploration, clip=clip, cycles=1)
        state = method.init(task, 0)
        start = state.clone().members.params
        method.step(state, Batch(x, y), Context(task, be.Vmap(), Clock(0, 10, 0)))
        moved = state.members.params
        return sum((moved[name] - start[name]).flatten(1).square().sum(1) for name in start).sqrt()

    torch.testing.assert_close(lengths(0.5, 0.01), torch.full((4,), 0.01), atol=1e-4, rtol=0)
    assert torch.equal(lengths(0.0, 0.01), lengths(0.0, None))


def test_noise_belongs_to_a_chain_whatever_runs_beside_it():
    alone, together = sample(settings={"num_members": 1}), sample(settings={"num_members": 3})
    assert largest_difference(all_leaves(alone), all_leaves(together), members=1) < 1e-6
    noise = sample(settings={"exploration": 0.0}), sample(settings={"exploration": 0.0}, seed=1)
    assert largest_difference(all_leaves(noise[0]), all_leaves(noise[1])) > 1e-2


def test_loop_and_vmap_agree_in_everything():
    loop, vmap = everything(sample(executor="loop")), everything(sample(executor="vmap"))
    assert loop.keys() == vmap.keys()
    assert all(torch.allclose(loop[name].double(), vmap[name].double(), atol=1e-5) for name in loop)


@pytest.mark.parametrize("interruption", [1, 2, 4])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(tmp_path, interruption):
    def interrupt(state, row):
        if row["epoch"] == interruption + 1:
            raise KeyboardInterrupt

    expected = sample(executor="vmap")
    with pytest.raises(KeyboardInterrupt):
        sample(executor="vmap", checkpoint=tmp_path / "run", on_epoch=interrupt)
    resumed = sample(executor="vmap", checkpoint=tmp_path / "run", resume=True)
    resumed.save(tmp_path / "saved")
    loaded = be.load(tmp_path / "saved", norm_mlp)
    x = table()[0]
    for other in (resumed, loaded):
        assert everything(other).keys() == everything(expected).keys()
        assert all(torch.equal(leaf, everything(other)[name]) for name, leaf in everything(expected).items())
        assert torch.equal(other.predict(x).probs, expected.predict(x).probs)
        assert torch.equal(other.predict(x, num_draws=3).probs, expected.predict(x, num_draws=3).probs)


def test_more_epochs_go_on_with_the_chains(tmp_path):
    """Cycles are those of the longer run from there on; what the shorter one collected is replaced in time."""
    short = sample(checkpoint=tmp_path).draw().params["0.weight"].unflatten(0, (2, 6))
    longer = sample(checkpoint=tmp_path, epochs=12, resume=True).draw().params["0.weight"].unflatten(0, (2, 6))
    assert torch.equal(longer[:, :2], short[:, :2])
    assert not (longer[:, 2:] == short[:, 2:]).any()


def test_members_on_disk_give_the_same_numbers(tmp_path):
    memory, disk = sample(), sample(offload=tmp_path, executor=Loop())
    assert all(torch.equal(leaf, everything(disk)[name]) for name, leaf in everything(memory).items())


def test_some_chains_can_be_kept_and_weighted():
    fitted = sample(settings={"num_members": 3})
    kept = fitted.keep([2, 0]).draw().params["0.weight"].unflatten(0, (2, 6))
    assert torch.equal(kept, fitted.draw().params["0.weight"].unflatten(0, (3, 6))[[2, 0]])
    weights = fitted.reweight([1.0, 0.0, 3.0]).draw().weights
    torch.testing.assert_close(weights, torch.tensor([1 / 24] * 6 + [0.0] * 6 + [3 / 24] * 6, dtype=torch.float64))


def test_chains_of_an_easy_posterior_agree():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"cycles": 1, "floor": 1.0, "exploration": 0.2, "samples_per_cycle": 100, "learning_rate": 0.05}
    task = be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(noise=0.5))
    options = {"epochs": 800, "batch_size": None, "executor": "vmap"}
    fitted = quick_fit(task, (x, x[:, 0] - x[:, 1]), CyclicalSGMCMC(**settings), **options)
    weights = fitted.draw().params["weight"].flatten(1).unflatten(0, (4, 100))
    assert rhat(weights).max() < 1.05


def test_batch_norm_dropout_and_learned_noise_go_along():
    fitted = sample(norm_mlp, settings={"num_members": 1})
    assert fitted.draw().num_members == 6
    assert fitted.draw().buffers["1.num_batches_tracked"].tolist() == [5, 6, 11, 12, 17, 18]
    loop, vmap = (sample(dropout_mlp, executor=executor) for executor in ("loop", "vmap"))
    assert largest_difference(all_leaves(loop), all_leaves(vmap)) < 1e-5
    x, _ = table()
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise="learned"))
    noisy = quick_fit(task, (x, x[:, 0]), CyclicalSGMCMC(cycles=1), epochs=10)
    assert noisy.draw().params["likelihood.log_noise"].unique().numel() > 4
    assert noisy.predict(x).mean.isfinite().all()


@pytest.mark.parametrize("steps", [1, 40])
def test_a_chain_that_flies_off_ends_training_with_a_sentence(steps):
    """In one step the loss has no time to show it; the network that is collected does."""
    x, _ = table()
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=1e-6))
    constant = {"cycles": 1, "exploration": 0.0, "floor": 1.0, "excess_variance": None}
    method = CyclicalSGMCMC(**constant, samples_per_cycle=1, learning_rate=1e30)
    with pytest.raises(be.TrainingError, match="lower the learning rate"):
        quick_fit(task, (x, x[:, 0]), method, epochs=steps, batch_size=None)


def test_more_cycles_than_steps_are_refused():
    with pytest.raises(be.SettingError, match="cycles=4 need at least as many steps, the run has 2; take more epochs"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), CyclicalSGMCMC(), epochs=2, batch_size=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_members": 0}, "num_members is a whole number from 1, got 0"),
        ({"cycles": 1.5}, "cycles is a whole number from 1, got 1.5"),
        ({"samples_per_cycle": 0}, "samples_per_cycle is a whole number from 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate is a number above 0, got 0.0"),
        ({"learning_rate": math.inf}, "learning_rate is a number above 0, got inf"),
        ({"sampler": "nuts"}, "sampler is 'sghmc' or 'sgld', got 'nuts'"),
        ({"alpha": 0.0}, r"alpha is a number in \(0, 1\], got 0.0"),
        ({"floor": 1.1}, r"floor is a number in \[0, 1\], got 1.1"),
        ({"exploration": 1.0}, r"exploration is a number in \[0, 1\), got 1.0"),
        ({"clip": 0.0}, "clip is a number above 0 or None, got 0.0"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        CyclicalSGMCMC(**settings)
