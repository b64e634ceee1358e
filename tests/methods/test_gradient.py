from functools import partial

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Clock
from bayesemble.methods.gradient import _adversarial
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table


def test_a_step_equals_torch_on_each_member_by_itself():
    """Ten Adam steps on -log joint / N, written out with modules."""
    x, y = table(32)
    task = be.Task(small_mlp, be.Categorical(), prior=be.NormalPrior(std=0.5))
    fitted = quick_fit(task, (x, y), be.DeepEnsemble(num_members=3, learning_rate=0.01), epochs=10, batch_size=None)
    start = task.new_members(3, seed=0)
    for index in range(3):
        with scoped(0):
            network = small_mlp()
        network.load_state_dict({name: leaf[index] for name, leaf in start.params.items()})
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
        for _ in range(10):
            optimiser.zero_grad()
            penalty = sum(parameter.square().sum() for parameter in network.parameters()) / (2 * 0.5**2)
            (nn.functional.cross_entropy(network(x), y) + penalty / 32).backward()
            optimiser.step()
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(fitted.state.members.params[name][index], parameter.detach(), atol=1e-5, rtol=0)


def test_the_schedule_scales_the_learning_rate():
    task, data = be.Task(small_mlp, be.Categorical()), table(32)
    frozen = be.schedules.Step(at=(0.5,), factor=0.0)
    half, whole = (
        quick_fit(task, data, be.DeepEnsemble(num_members=2, optimizer="sgd", schedule=schedule), epochs=epochs)
        for schedule, epochs in (("constant", 3), (frozen, 6))
    )
    assert largest_difference(half.state.members.params, whole.state.members.params) == 0


# --- optimisers of torch, and rates that differ ---


def plain_loop(task, optimizer, x, y, member, epochs):
    """One member in a loop of torch's own, on -log joint / N without a prior."""
    start = task.new_members(member + 1, seed=0)
    with scoped(0):
        network = small_mlp()
    network.load_state_dict({name: leaf[member] for name, leaf in start.params.items()})
    made = optimizer(network)
    for _ in range(epochs):
        made.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        made.step()
    return {name: leaf.detach() for name, leaf in network.named_parameters()}


@pytest.mark.parametrize("given", ["rmsprop", torch.optim.NAdam, partial(torch.optim.Adam, amsgrad=True)], ids=str)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_training_by_an_optimiser_of_torch_is_a_plain_loop_of_it(given, executor):
    task, (x, y) = be.Task(small_mlp, be.Categorical(), prior=None), table(32)
    method = be.DeepEnsemble(num_members=2, optimizer=given)
    fitted = quick_fit(task, (x, y), method, epochs=5, batch_size=None, executor=executor)
    factory = torch.optim.RMSprop if given == "rmsprop" else given
    for member in range(2):
        plain = plain_loop(task, lambda network: factory(network.parameters(), lr=1e-3), x, y, member, 5)
        for name, leaf in plain.items():
            torch.testing.assert_close(fitted.state.members.params[name][member], leaf, atol=1e-5, rtol=0)


@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(steps="eager"), be.Vmap()], ids=str)
def test_members_with_rates_of_their_own_train_as_those_of_other_runs_with_that_rate(executor):
    task, data = be.Task(small_mlp, be.Categorical()), table(32)
    settings = {"epochs": 30, "batch_size": 16, "executor": executor}
    rates = [1e-3, 1e-2]
    own = quick_fit(task, data, be.DeepEnsemble(num_members=2, learning_rate=rates), **settings)
    for member, rate in enumerate(rates):
        same = quick_fit(task, data, be.DeepEnsemble(num_members=2, learning_rate=rate), **settings)
        for name, leaf in same.state.members.params.items():
            torch.testing.assert_close(own.state.members.params[name][member], leaf[member], atol=1e-6, rtol=0)


def test_drawn_rates_are_known_by_the_seed_and_go_along_the_schedule():
    method = be.DeepEnsemble(num_members=3, learning_rate=(1e-4, 1e-2), schedule="cosine")
    drawn = method.member_rates(seed=5)
    assert len(set(drawn)) == 3
    assert all(1e-4 < rate < 1e-2 for rate in drawn)
    assert list(method.numbers(Clock(50, 100, 5)).values()) == pytest.approx([rate / 2 for rate in drawn])
    snapshots = be.Snapshot(num_members=3, learning_rate=(1e-4, 1e-2))
    half = snapshots.moment(Clock(50, 100, 5)).factor
    assert list(snapshots.numbers(Clock(50, 100, 5)).values()) == pytest.approx([rate * half for rate in drawn])


def test_leaves_have_the_rates_of_their_patterns():
    task, data = be.Task(small_mlp, be.Categorical(), prior=None), table(32)
    patterns, settings = {"0.*": 1e-2, "*": 1e-30}, {"epochs": 5, "batch_size": None}
    plain = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=patterns)
    fitted, start = quick_fit(task, data, plain, **settings), task.new_members(2, seed=0).params
    for name, leaf in fitted.state.members.params.items():
        assert torch.equal(leaf, start[name]) == (not name.startswith("0."))
    with pytest.raises(SettingError, match="a pattern 'heads' that no leaf matches"):
        quick_fit(task, data, be.DeepEnsemble(learning_rate={"heads": 0.1, "*": 0.1}))


def test_components_have_the_rate_of_their_leaf():
    task, data = be.Task(small_mlp, be.Categorical()), table(32)
    method = be.ECMP(num_members=1, components=2, select="output", learning_rate={"2.*": 1e-30, "*": 1e-2}, jitter=0.0)
    fitted = quick_fit(task, data, method, epochs=3)
    params, parts = fitted.state.members.params, fitted.state.slots["components"]
    assert all(torch.equal(leaf[:, 0], params[name.removeprefix("components.")]) for name, leaf in parts.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": [0.1, 0.2]}, "2 learning rates were given for 5 members"),
        ({"learning_rate": (0.2, 0.1)}, r"is a pair \(low, high\) to draw from, got \(0\.2, 0\.1\)"),
        ({"learning_rate": (0.1, 0.2), "rate_per_member": (1.0,) * 5}, "leave rate_per_member out"),
        ({"learning_rate": [0.1] * 5, "rate_per_member": (1.0,) * 5}, "says what rate_per_member says"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS searches along"),
        ({"optimizer": "rmsprop", "momentum": 0.5}, "momentum=0.5 is a setting that optimizer='rmsprop' has no use"),
        ({"optimizer": torch.optim.NAdam, "epsilon": 0.1}, "epsilon=0.1 is a setting that optimizer=NAdam has no use"),
        ({"optimizer": "sgd", "beta2": 0.5}, "beta2=0.5 is a setting that optimizer='sgd' has no use for"),
    ],
)
def test_rates_and_optimisers_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        be.DeepEnsemble(**settings)


def test_methods_that_cannot_have_a_rate_for_each_member_say_so():
    with pytest.raises(SettingError, match="sequential=True has one learning rate"):
        be.Repulsive(num_members=2, sequential=True, learning_rate=(1e-3, 1e-2))
    with pytest.raises(SettingError, match="give a single number"):
        be.Subspace(num_members=2, basis="curve", learning_rate=[1e-3, 1e-2])
    with pytest.raises(SettingError, match="learning_rate is a number above 0"):
        be.CyclicalSGMCMC(learning_rate=(1e-3, 1e-2))


def test_an_optimiser_that_decays_weights_by_itself_is_refused_beside_a_prior():
    with pytest.raises(SettingError, match=r"weight_decay=0\.01 and the prior .* would both shrink the weights"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(32), be.DeepEnsemble(optimizer=torch.optim.AdamW))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_run_by_an_optimiser_of_torch_goes_on_to_the_bits_of_an_undisturbed_one(executor, tmp_path):
    task, data = be.Task(small_mlp, be.Categorical(), be.NormalPrior()), table(32)
    method = be.DeepEnsemble(
        num_members=2, optimizer=partial(torch.optim.NAdam, betas=(0.8, 0.9)), learning_rate=(1e-3, 1e-2)
    )
    whole = quick_fit(task, data, method, epochs=4, executor=executor)
    quick_fit(task, data, method, epochs=2, executor=executor, checkpoint=tmp_path)
    resumed = quick_fit(task, data, method, epochs=4, executor=executor, checkpoint=tmp_path, resume=True)
    assert largest_difference(whole.state.members.params, resumed.state.members.params) == 0
    assert be.load(tmp_path, small_mlp).method == method


def test_clipping_bounds_the_step_of_each_member():
    task, data = be.Task(small_mlp, be.Categorical()), table(32)
    method = be.DeepEnsemble(num_members=3, optimizer="sgd", momentum=0.0, learning_rate=1.0, clip=0.01)
    start = task.new_members(3, seed=0).params
    moved = quick_fit(task, data, method, epochs=1, batch_size=None).state.members.params
    squares = sum((moved[name] - start[name]).flatten(1).square().sum(1) for name in start)
    torch.testing.assert_close(squares.sqrt(), torch.full((3,), 0.01), atol=1e-4, rtol=0)


class ScaledLinear(nn.Module):
    """A network with a parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.layer(x)


@pytest.mark.parametrize("prior", [be.NormalPrior(0.7), be.LaplacePrior(0.7)], ids=str)
def test_a_parameter_that_is_a_single_number_is_clipped_and_has_a_prior_as_any_other(prior):
    task, data = be.Task(ScaledLinear, be.Categorical(), prior, num_data=32), table(32)
    method = be.DeepEnsemble(num_members=3, optimizer="sgd", momentum=0.0, learning_rate=1.0, clip=0.01)
    start = task.new_members(3, seed=0).params
    loop, vmap = (quick_fit(task, data, method, epochs=1, batch_size=None, executor=e) for e in ("loop", "vmap"))
    assert largest_difference(loop.state.members.params, vmap.state.members.params) < 1e-6
    moved = loop.state.members.params
    assert (moved["scale"] != start["scale"]).all()
    squares = sum((moved[name] - start[name]).reshape(3, -1).square().sum(1) for name in start)
    torch.testing.assert_close(squares.sqrt(), torch.full((3,), 0.01), atol=1e-4, rtol=0)
    alone = [prior.log_prob({name: leaf}, task.scales) for name, leaf in start.items()]
    torch.testing.assert_close(loop.task.log_joint(torch.zeros(3), start), sum(alone))


def test_bootstrap_gives_each_member_its_own_rows_with_replacement():
    rows = be.DeepEnsemble(num_members=4, bootstrap=True).member_rows(1000, seed=0)
    assert rows.shape == (4, 1000)
    shares = [len(row.unique()) / 1000 for row in rows]
    assert all(0.59 < share < 0.67 for share in shares), "a bootstrap sees 1 - 1/e of the rows"
    assert torch.equal(rows[:2], be.DeepEnsemble(num_members=2, bootstrap=True).member_rows(1000, seed=0))


def test_a_bootstrap_member_trains_as_if_alone_on_its_rows():
    task, (x, y) = be.Task(small_mlp, be.Categorical()), table(32)
    method = be.DeepEnsemble(num_members=2, bootstrap=True)
    together = quick_fit(task, (x, y), method, batch_size=None, epochs=5, executor="vmap")
    own = method.member_rows(32, seed=0)[0]
    alone = quick_fit(task, (x[own], y[own]), be.DeepEnsemble(num_members=1), batch_size=None, epochs=5)
    assert largest_difference(together.state.members.params, alone.state.members.params, members=1) < 1e-6


@pytest.mark.parametrize("anchored", [False, True])
def test_booleans_and_whole_numbers_are_trained_on_as_the_real_numbers_they_are(anchored):
    task, (x, y) = be.Task(lambda: nn.Linear(4, 1), be.Gaussian()), table(32)
    method = be.DeepEnsemble(num_members=2, anchored=anchored)
    real, whole, boolean = (quick_fit(task, (x, given), method) for given in (y.float(), y, y.bool()))
    assert largest_difference(real.state.members.params, whole.state.members.params) == 0
    assert largest_difference(real.state.members.params, boolean.state.members.params) == 0
    assert real.evaluate((x, y.float())) == boolean.evaluate((x, y.bool()))


def test_data_per_member_trains_each_on_its_own():
    task, (x, y) = be.Task(small_mlp, be.Categorical()), table(32)
    data = be.PerMember(torch.stack([x[:16], x[16:]]), torch.stack([y[:16], y[16:]]))
    for executor in ("loop", "vmap"):
        fitted = quick_fit(task, data, be.DeepEnsemble(num_members=2), executor=executor, batch_size=8, validation=data)
        alone = quick_fit(task, (x[:16], y[:16]), be.DeepEnsemble(num_members=1), batch_size=8)
        assert largest_difference(fitted.state.members.params, alone.state.members.params, members=1) < 1e-6
        first = fitted.predict(be.PerMember(data.inputs)).member(0).probs
        torch.testing.assert_close(first, alone.predict(x[:16]).probs)


def test_the_adversarial_step_is_the_sign_of_the_input_gradient():
    """For one linear logit: x' = x - size * sign(grad log p), and the loss is the mean of both."""
    task = be.Task(lambda: nn.Linear(4, 1).double(), be.Bernoulli())
    x, y = table(16)
    x, y = x.double(), y[:, None].double()
    task = task.bind(16, x)
    params, buffers = task.new_member(seed=0)
    weight = params["weight"][0]
    slope = (y - torch.sigmoid(x @ weight[:, None] + params["bias"])) * weight
    moved = x - 0.1 * slope.sign()
    expected = (task.mean_log_likelihood(params, {}, x, y) + task.mean_log_likelihood(params, {}, moved, y)) / 2
    torch.testing.assert_close(_adversarial(task, 0.1)(params, buffers, x, y), expected)
    assert expected < task.mean_log_likelihood(params, {}, x, y)


def test_adversarial_training_agrees_between_executors_and_sees_both_halves_once():
    task, data = be.Task(norm_mlp, be.Categorical()), table(32)
    method = be.DeepEnsemble(num_members=2, adversarial=0.05)
    loop, vmap = (quick_fit(task, data, method, executor=executor, epochs=4) for executor in ("loop", "vmap"))
    assert largest_difference(all_leaves(loop), all_leaves(vmap)) < 1e-5
    # Four epochs of two batches; batch norm counts the clean and the adversarial pass.
    assert vmap.state.members.buffers["1.num_batches_tracked"].tolist() == [16, 16]


def test_adversarial_training_needs_real_inputs():
    tokens = torch.arange(20).reshape(10, 2) % 5
    task = be.Task(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), be.Categorical())
    with pytest.raises(be.SettingError, match="must be real numbers, not indices"):
        quick_fit(task, (tokens, tokens[:, 0] % 2), be.DeepEnsemble(num_members=1, adversarial=0.1))


def test_weight_decay_beside_a_prior_is_refused():
    with pytest.raises(be.SettingError, match=r"both shrink the weights.*prior=None"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(weight_decay=0.1))


def test_anchors_need_a_normal_prior_and_rows_by_index():
    task = be.Task(small_mlp, be.Categorical(), prior=be.LaplacePrior())
    with pytest.raises(be.SettingError, match="needs a NormalPrior"):
        quick_fit(task, table(), be.DeepEnsemble(anchored=True))
    x, _ = table(32)
    loader = torch.utils.data.DataLoader(list(zip(x, x[:, 0], strict=True)), batch_size=16)
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian())
    with pytest.raises(be.SettingError, match="pass arrays, tensors or a TensorDataset"):
        quick_fit(task, loader, be.DeepEnsemble(anchored=True), batch_size=None)


@pytest.mark.parametrize("num_data", [4, 1000])
def test_the_noise_of_targets_is_that_of_the_rows_whatever_the_likelihood_stands_for(num_data):
    x = table(16)[0]
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=0.5), num_data=num_data)
    fitted = quick_fit(task, (x, x[:, 0]), be.DeepEnsemble(num_members=2, anchored=True))
    assert fitted.task.num_data == num_data
    assert fitted.state.slots["target_noise"]["noise"].shape == (2, 16, 1)


def test_anchors_of_a_classifier_pull_towards_prior_draws():
    """With no data to speak of, each member ends at its own anchor."""
    x, _ = table(2)
    task = be.Task(small_mlp, be.Categorical(), prior=be.NormalPrior(std=0.01))
    method = be.DeepEnsemble(num_members=3, anchored=True, learning_rate=0.01, schedule="cosine")
    fitted = quick_fit(task, (x, torch.tensor([0, 1])), method, epochs=500)
    anchors = fitted.state.slots["anchor"]
    assert largest_difference(fitted.state.members.params, anchors) < 1e-3
    assert largest_difference(anchors, {name: 0 * leaf for name, leaf in anchors.items()}) > 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_members": 0}, "num_members is a whole number from 1, got 0"),
        ({"num_members": -3}, "num_members is a whole number from 1, got -3"),
        ({"learning_rate": 0.0}, "learning_rate is a number above 0, .* got 0.0"),
        ({"optimizer": "lbfgs"}, "optimizer is 'adam', 'adamw', 'sgd', 'lion', .* 'nadam', .* got 'lbfgs'"),
        (
            {"schedule": "linear"},
            "'cosine', 'step', 'exponential', 'cyclical', 'warmup', a Schedule or a function, got 'linear'",
        ),
        ({"clip": -1.0}, "clip is a number above 0 or None, got -1.0"),
        ({"adversarial": -0.1}, "adversarial is a number from 0, got -0.1"),
        ({"momentum": 1.0}, r"momentum is a number in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is a number from 0, got -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        be.DeepEnsemble(**settings)


# --- schedule-free ---


@pytest.mark.parametrize("name", ["schedule_free_sgd", "schedule_free_adamw"])
def test_a_schedule_free_run_is_resumed_and_recorded_to_the_same_bits(name, tmp_path):
    method = be.DeepEnsemble(
        num_members=2, optimizer=name, learning_rate=0.05, schedule=be.schedules.Warmup(0.25, then="constant")
    )
    data, task = table(32), be.Task(small_mlp, be.Categorical(), be.NormalPrior())
    options = {"epochs": 30, "batch_size": 16, "validation": data, "progress": False}
    whole, eager = (
        be.fit(task, method, data, executor=be.Vmap(steps=steps), **options) for steps in ("traced", "eager")
    )
    assert largest_difference(whole.state.members.params, eager.state.members.params) == 0
    folder = {"checkpoint": tmp_path, "executor": be.Vmap(steps="eager")}

    def cut_short(_, row):
        if row["epoch"] == 7:
            raise RuntimeError("cut short")

    with pytest.raises(RuntimeError, match="cut short"):
        be.fit(task, method, data, **options, **folder, on_epoch=cut_short)
    resumed = be.fit(task, method, data, **options, **folder, resume=True)
    assert largest_difference(resumed.state.members.params, eager.state.members.params) == 0
    assert largest_difference(resumed.state.slots["fast"], eager.state.slots["fast"]) == 0
    looped = be.fit(task, method, data, executor="loop", **options)
    assert largest_difference(looped.state.members.params, eager.state.members.params) < 1e-4
    # What is predicted, validated and saved is the average.
    assert largest_difference(eager.state.slots["fast"], eager.state.members.params) > 1e-4
    assert eager.history[-1]["validation_loss"] == pytest.approx(eager.evaluate(data)["nll"], rel=1e-5)


def test_where_schedule_free_weights_have_no_place_they_are_refused():
    with pytest.raises(SettingError, match="Repulsive gathers, draws or compares members on the way"):
        be.Repulsive(optimizer="schedule_free_adamw")
    normed = be.Task(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), be.Categorical())
    with pytest.raises(SettingError, match=r"batch norm .* statistics of others"):
        be.fit(normed, be.DeepEnsemble(optimizer="schedule_free_sgd"), table(32), epochs=1, progress=False)
