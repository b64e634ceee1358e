import math

import pytest
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from helpers import all_leaves, images, largest_difference, norm_convnet, quick_fit, small_mlp, table


def test_draws_are_normal_around_each_member_with_its_own_widths():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.MeanField(num_members=2), epochs=5)
    num, drawn = 2000, ensemble.draw(4000).params
    for name, log_std in ensemble.state.slots["log_std"].items():
        mean = ensemble.state.members.params[name]
        for member in range(2):
            own, std = drawn[name][member::2], log_std[member].exp()
            assert (own.mean(0) - mean[member]).abs().lt(5 * std / num**0.5).all()
            assert (own.std(0) / std - 1).abs().max() < 5 / (2 * num) ** 0.5


def test_what_the_likelihood_learns_is_a_point():
    x = table()[0]
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise="learned"))
    ensemble = quick_fit(task, (x, x[:, :1]), be.MeanField())
    (name,) = (name for name in ensemble.state.members.params if name.startswith("likelihood."))
    assert name not in ensemble.state.slots["log_std"]
    assert ensemble.draw(5).params[name].unique().numel() == 1


@pytest.mark.parametrize("noise", ["local", "plain"])
def test_with_hardly_any_width_it_is_the_map_network(noise):
    """Noise of 1e-9 that cannot grow in a few steps: the path of a plain network."""
    method = be.MeanField(num_members=2, initial_std=1e-9, noise=noise)
    found = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method)
    plain = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=2))
    assert largest_difference(all_leaves(found), all_leaves(plain)) < 1e-5


@pytest.mark.parametrize("prior", [be.NormalPrior(std=0.5), be.LaplacePrior(scale=0.5)], ids=["normal", "laplace"])
def test_without_data_to_speak_of_it_comes_to_the_nearest_gaussian_of_the_prior(prior):
    """The normal prior itself; for w ~ Laplace(b), the std that minimises KL: E|w| = std sqrt(2 / pi) = b, mean 0."""
    task = be.Task(lambda: nn.Linear(4, 2), be.Categorical(), prior, num_data=1, temperature=1.0)
    x, y = table(8)
    method = be.MeanField(num_members=100, initial_std=0.3, learning_rate=0.1, schedule="cosine")
    ensemble = be.fit(task, method, (0 * x, y), epochs=150, executor="vmap", progress=False)
    expected = 0.5 if isinstance(prior, be.NormalPrior) else 0.5 * math.sqrt(math.pi / 2)
    std = ensemble.state.slots["log_std"]["weight"].exp()
    assert std.mean() == pytest.approx(expected, rel=0.04)
    assert ensemble.state.members.params["weight"].mean().abs() < 0.02
    if isinstance(prior, be.NormalPrior):  # no noise in its gradient
        assert (std - expected).abs().max() < 1e-3


def test_the_direction_is_the_slope_of_the_evidence_lower_bound():
    """Of a small network and many draws, against the mean log joint of as many networks and the exact entropy."""
    x, y = table(12)
    task, num = be.Task(small_mlp, be.Categorical(), temperature=0.5).bind(12, x), 1000
    found = {}
    for noise in ("local", "plain"):
        method = be.MeanField(num_members=num, initial_std=0.4, noise=noise, optimizer="sgd", momentum=0.0)
        state = method.init(task, 0)
        for leaf in state.members.params.values():
            leaf.copy_(leaf[:1].clone())
        widths = {name: leaf.clone() for name, leaf in state.slots["log_std"].items()}
        state, _ = method.step(state, Batch(x, y), Context(task, be.Vmap(), Clock(0, 1, 0)))
        scale = 12 / method.learning_rate
        found[noise] = {name: (state.slots["log_std"][name] - widths[name]) * scale for name in widths}
    networks = be.MeanField(num_members=1, initial_std=0.4)
    state = networks.init(task, 0)
    drawn = networks.draw(state, range(num), 1).unshared()
    _, gradients = be.Vmap().gradients(task.mean_log_likelihood, drawn, Batch(x, y))
    slopes = task.log_joint_gradient(gradients, drawn.params)
    for name, slope in slopes.items():
        exact = slope * (drawn.params[name] - state.members.params[name]) + 1  # d log std; the entropy gives the 1
        for noise in ("local", "plain"):
            error = ((exact.var(0) + found[noise][name].var(0)) / num).sqrt()
            assert (exact.mean(0) - found[noise][name].mean(0)).abs().lt(4.5 * error).all()


def test_noise_of_each_row_makes_gradients_quieter():
    x, y = table(48)
    task = be.Task(small_mlp, be.Categorical()).bind(48, x)
    variances = {}
    for noise in ("local", "plain"):
        method = be.MeanField(num_members=200, initial_std=0.1, noise=noise, optimizer="sgd", momentum=0.0)
        state = method.init(task, 0)
        for leaf in state.members.params.values():
            leaf.copy_(leaf[:1].clone())
        state, _ = method.step(state, Batch(x, y), Context(task, be.Vmap(), Clock(0, 1, 0)))
        variances[noise] = sum(float(leaf.var(0).sum()) for leaf in state.members.params.values())
    assert variances["local"] < 0.3 * variances["plain"]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_convolutions_learn(executor):
    ensemble = quick_fit(
        be.Task(norm_convnet, be.Categorical()), images(), be.MeanField(num_members=2), executor=executor
    )
    assert ensemble.predict(images()[0]).probs.isfinite().all()
    widths = ensemble.state.slots["log_std"]["0.weight"]
    assert (widths - math.log(0.05)).abs().min() > 0, "all of them have moved"


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(SettingError, match="needs a prior"):
        quick_fit(be.Task(small_mlp, be.Categorical(), prior=None), table(), be.MeanField())
    with pytest.raises(SettingError, match="weight_decay has no place"):
        be.MeanField(weight_decay=0.1)
    with pytest.raises(SettingError, match="initial_std is a number above 0, got 0"):
        be.MeanField(initial_std=0.0)
