import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Batch
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
        ({"learning_rate": 0.0}, "learning_rate is a number above 0, got 0.0"),
        ({"optimizer": "lion"}, "optimizer is 'adam', 'adamw' or 'sgd', got 'lion'"),
        (
            {"schedule": "linear"},
            "'cosine', 'step', 'exponential', 'cyclical', a Schedule or a function, got 'linear'",
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


def test_a_batch_keeps_rows_and_noise_together():
    """The target noise of a row is the same in every epoch and batch."""
    from bayesemble.methods.gradient import _with_target_noise

    noise = {"noise": torch.arange(8.0).reshape(2, 4, 1)}
    batch = Batch(torch.zeros(2, 3), torch.zeros(2, 1), rows=torch.tensor([3, 1]))
    assert _with_target_noise(batch, noise).targets.squeeze(-1).tolist() == [[3, 1], [7, 5]]
