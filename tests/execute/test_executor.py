import os

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.offload import Disk
from bayesemble.core.types import Batch
from bayesemble.execute.executor import slopes, thread_count
from helpers import dropout_mlp, images, norm_convnet, norm_mlp, small_mlp, table, with_dropout


def test_threads_are_set_inside_and_given_back():
    before = torch.get_num_threads()
    with thread_count(be.Loop(threads=before + 1)):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_machine_takes_four_threads_per_core_at_most():
    """A run may come from a larger machine, or from somebody who means harm."""
    before, most = torch.get_num_threads(), 4 * os.cpu_count()
    with thread_count(be.Loop(threads=most)):
        assert torch.get_num_threads() == most
    with (
        pytest.warns(UserWarning, match=f"1000000 threads were asked for; this machine takes {most}"),
        thread_count(be.Loop(threads=10**6)),
    ):
        assert torch.get_num_threads() == most
    assert torch.get_num_threads() == before


def test_an_unused_leaf_has_gradient_zero():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    gradients = slopes((used**2).sum(), [used, unused])
    assert gradients[0].tolist() == [2, 2]
    assert gradients[1].tolist() == [0, 0, 0]


# Gradients of a number that depends on all members


def partly_frozen():
    """A frozen first layer, the same in every member, before a norm layer."""
    network = norm_mlp()
    nn.init.orthogonal_(network[0].weight, generator=seeds.generator(0, "frozen"))
    network[0].weight.requires_grad_(False)
    return network


def two_norms():
    """Statistics of all members are updated before the first backward pass, which must not mind."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )


NETWORKS = {
    "mlp": small_mlp,
    "batch norm": norm_mlp,
    "two batch norms": two_norms,
    "dropout": dropout_mlp,
    "frozen layer": partly_frozen,
}
over_executors = pytest.mark.parametrize(
    "executor", [be.Loop(), be.Vmap(), be.Vmap(chunk=2), be.Vmap(chunk=1)], ids=repr
)


def double_task(make, x):
    return be.Task(lambda: make().double(), be.Categorical()).bind(len(x), x)


def member_outputs(task):
    def function(params, buffers, inputs, targets):
        outputs = task.forward(params, buffers, inputs, training=True)
        return {"outputs": outputs, "fit": task.log_likelihood(outputs, targets, params)}

    return function


def couple(outputs):
    """A number in which every pair of members counts, each in its own way."""
    rows = outputs["outputs"].flatten(1)
    return ((rows @ rows.T).tril() / 10).tanh().sum() + outputs["fit"].cumsum(0).square().sum()


def batch_for(x, y, num_members, per_member):
    if not per_member:
        return Batch(x, y)
    factors = torch.linspace(-1, 2, num_members, dtype=x.dtype).reshape(-1, 1, 1)
    return Batch(factors * x, torch.stack([y.roll(i) for i in range(num_members)]), None, True, True)


def naive(task, members, batch, own_seeds):
    """Plain modules one after the other, and autograd through all of them: gradients and buffers of each member."""
    networks, rows = [], []
    for index, (params, buffers) in enumerate(members.split()):
        with seeds.scoped(own_seeds[index]):
            networks.append(task.model().train())
            networks[-1].load_state_dict(params | buffers)
            torch.manual_seed(own_seeds[index])
            outputs = networks[-1](batch.inputs_of(index))
        rows.append({"outputs": outputs, "fit": -nn.functional.cross_entropy(outputs, batch.targets_of(index))})
    couple({name: torch.stack([row[name] for row in rows]) for name in rows[0]}).backward()
    gradients = {
        name: torch.stack([network.get_parameter(name).grad for network in networks]) for name in members.params
    }
    buffers = {name: torch.stack([network.get_buffer(name) for network in networks]) for name in running(members)}
    return gradients, buffers


def running(members):
    """Names of the buffers that each member has for itself."""
    return [name for name in members.buffers if name not in members.shared]


@pytest.mark.parametrize("per_member", [False, True], ids=["same rows", "own rows"])
@pytest.mark.parametrize("name", NETWORKS)
@over_executors
def test_coupled_gradients_and_buffers_are_those_of_plain_autograd(executor, name, per_member):
    x, y = table(12)
    x = x.double()
    task = double_task(NETWORKS[name], x)
    members, own_seeds = task.new_members(5, seed=0), [11, 22, 33, 44, 55]
    batch = batch_for(x, y, 5, per_member)
    gradients, buffers = naive(task, members, batch, own_seeds)
    assert members.shared == (frozenset({"0.weight"}) if name == "frozen layer" else frozenset())
    found = executor.coupled_gradients(
        member_outputs(task), couple, members, batch, own_seeds if task.stochastic else None
    )
    torch.testing.assert_close(found, gradients, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close({n: members.buffers[n] for n in running(members)}, buffers, atol=1e-12, rtol=1e-10)
    if "norm" in name:
        assert members.buffers["1.num_batches_tracked"].tolist() == [1] * 5


@over_executors
def test_a_shared_leaf_gets_the_sum_over_members_of_its_coupled_gradients_also_on_disk(executor, tmp_path):
    x, y = table(12)
    x = x.double()
    task = double_task(small_mlp, x)
    networks = [params for params, _ in task.new_members(5, seed=0).split()]
    shared = be.Members.stack(networks, [{}] * 5, share=frozenset({"0.weight"}))
    alike = be.Members.stack([params | {"0.weight": networks[0]["0.weight"]} for params in networks], [{}] * 5)
    expected = naive(task, alike, Batch(x, y), [0] * 5)[0]
    expected["0.weight"] = expected["0.weight"].sum(0)
    found = executor.coupled_gradients(member_outputs(task), couple, shared, Batch(x, y))
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)
    disk = Disk(tmp_path)
    for _ in range(2):
        stored = executor.coupled_gradients(member_outputs(task), couple, shared, Batch(x, y), allocator=disk)
        assert all(torch.equal(stored[name], leaf) for name, leaf in found.items())


@pytest.mark.parametrize("make", [norm_mlp, dropout_mlp])
@over_executors
def test_coupling_by_a_mere_sum_gives_the_gradients_of_each_member_under_the_same_masks(executor, make):
    x, y = table(12)
    x = x.double()
    task = double_task(make, x)
    members, own_seeds = task.new_members(5, seed=0), [11, 22, 33, 44, 55] if task.stochastic else None
    apart = executor.gradients(task.mean_log_likelihood, State(members).clone().members, Batch(x, y), own_seeds)[1]

    def together(some_seeds):
        copy = State(members).clone().members
        return executor.coupled_gradients(
            member_outputs(task), lambda outputs: outputs["fit"].sum(), copy, Batch(x, y), some_seeds
        )

    torch.testing.assert_close(together(own_seeds), apart, atol=1e-12, rtol=1e-10)
    if task.stochastic:
        assert not torch.allclose(together([1, 2, 3, 4, 5])["0.weight"], apart["0.weight"])


@over_executors
def test_members_that_do_not_count_get_coupled_gradients_of_zero(executor):
    x, y = table(12)
    task = be.Task(small_mlp, be.Categorical()).bind(12, x)
    members = task.new_members(5, seed=0)
    with torch.no_grad():
        found = executor.coupled_gradients(
            member_outputs(task), lambda outputs: outputs["outputs"][3].sum(), members, Batch(x, y)
        )
    for name, gradient in found.items():
        assert gradient.shape == members.params[name].shape
        assert not gradient.requires_grad
        assert [bool(own.any()) for own in gradient] == [False, False, False, True, False]


def test_channels_last_gives_the_same_coupled_gradients():
    x, y = images(6)
    x = x.double()
    task = double_task(norm_convnet, x)
    members = task.new_members(3, seed=0)
    expected = naive(task, members, Batch(x, y), [0] * 3)[0]
    executor = be.Loop(channels_last=True)
    arranged = executor.arrange(State(members)).members
    found = executor.coupled_gradients(member_outputs(task), couple, arranged, Batch(x, y))
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)


def dropout_convnet():
    return with_dropout(norm_convnet)


@pytest.mark.parametrize("make", [dropout_mlp, dropout_convnet])
@over_executors
def test_outputs_have_the_masks_of_each_members_seed(executor, make):
    """Against plain modules in training mode, each after its own seed."""
    x = (table(12) if make is dropout_mlp else images(12))[0].double()
    task = double_task(make, x)
    members, own_seeds = task.new_members(5, seed=0), [11, 22, 33, 44, 55]
    members = be.Members.stack([members.split()[0][0]] * 5, [members.split()[0][1]] * 5)  # only the masks differ
    expected = []
    for params, buffers, seed in zip(*zip(*members.split(), strict=True), own_seeds, strict=True):
        with seeds.scoped(0):
            network = task.model().eval()
            network.load_state_dict(params | buffers)
            for layer in network.modules():
                layer.training = isinstance(layer, nn.Dropout)
            torch.manual_seed(seed)
            expected.append(network(x).detach())

    def function(params, buffers, inputs, _):
        return task.forward(params, buffers, inputs, dropout=True)

    found = executor.outputs(function, members, x, False, own_seeds)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-10, rtol=1e-8)
    assert not torch.allclose(found[0], found[1])


@over_executors
@pytest.mark.parametrize("per_member", [False, True], ids=["same rows", "own rows"])
def test_gradients_flow_through_values_that_have_targets(executor, per_member):
    """The gradient of x . w against y in w, by hand: 2 (x . w - y) x, averaged over rows."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, generator=generator, dtype=torch.double, requires_grad=True)
    x, y = torch.randn(3, 5, 4, generator=generator).double(), torch.randn(3, 5, generator=generator).double()
    x, y = (x, y) if per_member else (x[0], y[0])
    members = Members({"weight": weights}, {}, torch.full((3,), 1 / 3))

    def squared_error(params, buffers, inputs, targets):
        return (inputs @ params["weight"] - targets).square().mean()

    found = executor.values(squared_error, members, Batch(x, y, None, per_member, per_member))
    errors = torch.einsum("...rk,mk->mr" if not per_member else "mrk,mk->mr", x, weights.detach()) - y
    torch.testing.assert_close(found, errors.square().mean(1))
    expected = 2 * (errors.unsqueeze(-1) * x).mean(1)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), weights)[0], expected)
