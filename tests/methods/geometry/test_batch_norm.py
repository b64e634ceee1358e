import torch
from torch import nn

import bayesemble as be
from bayesemble.core.types import Batch
from bayesemble.methods.geometry.batch_norm import norm_buffers, refreshed
from helpers import norm_convnet, norm_mlp, small_mlp, table


def batches(x, sizes):
    return lambda: iter([Batch(part, torch.zeros(len(part))) for part in x.split(sizes)])


def test_statistics_are_those_of_all_rows_whatever_the_batches():
    """The mean is that of all rows exactly; the variance, the mean over batches, is it for a single batch."""
    task, x = be.Task(norm_mlp, be.Categorical()), table()[0]
    members = task.new_members(3, 0)
    whole = refreshed(task, members, batches(x, [48]), be.Loop())
    parts = refreshed(task, members, batches(x, [20, 20, 8]), be.Loop())
    hidden = torch.einsum("nd,mhd->mnh", x, members.params["0.weight"]) + members.params["0.bias"].unsqueeze(1)
    torch.testing.assert_close(whole.buffers["1.running_mean"], hidden.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.buffers["1.running_var"], hidden.var(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.buffers["1.running_mean"], hidden.mean(1), rtol=1e-5, atol=1e-6)
    assert (members.buffers["1.running_mean"] == 0).all(), "the members that were given stay as they are"


def test_executors_agree_and_shared_statistics_become_own():
    task = be.Task(norm_convnet, be.Categorical())
    x = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    members = task.new_members(2, 0)
    loop, vmap = (refreshed(task, members, batches(x, [8, 4]), kind) for kind in (be.Loop(), be.Vmap()))
    for name in norm_buffers(task.module):
        torch.testing.assert_close(loop.buffers[name], vmap.buffers[name], rtol=1e-5, atol=1e-6)


def test_it_is_what_a_plain_pass_in_training_mode_gives():
    task, x = be.Task(norm_mlp, be.Categorical()), table()[0]
    members = task.new_members(1, 0)
    found = refreshed(task, members, batches(x, [48]), be.Loop())
    network = task.module
    network.load_state_dict({n: leaf[0] for n, leaf in (members.params | members.buffers).items()})
    network[1].momentum = None  # torch's own cumulative average
    network.train()(x)
    assert torch.equal(found.buffers["1.running_mean"][0], network[1].running_mean)
    assert torch.equal(found.buffers["1.running_var"][0], network[1].running_var)


def test_momentum_and_mode_come_back_and_dropout_stays_off():
    def network() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 2))

    task, x = be.Task(network, be.Categorical()), table()[0]
    first, again = (refreshed(task, task.new_members(1, 0), batches(x, [48]), be.Loop()) for _ in range(2))
    assert torch.equal(first.buffers["2.running_mean"], again.buffers["2.running_mean"])
    assert task.module[2].momentum == 0.3
    assert not any(layer.training for layer in task.module.modules())


def test_without_batch_norm_nothing_is_done():
    task = be.Task(small_mlp, be.Categorical())
    members = task.new_members(2, 0)
    assert refreshed(task, members, batches(table()[0], [48]), be.Loop()) is members
