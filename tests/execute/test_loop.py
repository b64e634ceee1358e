import torch

import bayesemble as be
from bayesemble.core.members import State
from helpers import norm_convnet


def test_channels_last_lays_out_every_slice_and_its_moments_alike():
    task = be.Task(norm_convnet, be.Categorical())
    members = task.new_members(3, seed=0)
    state = State(members, {"first_moment": {name: leaf.clone() for name, leaf in members.params.items()}})
    arranged = be.Loop(channels_last=True).arrange(state)
    kernel, moment = arranged.members.params["0.weight"], arranged.slots["first_moment"]["0.weight"]
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in kernel)
    assert kernel.stride() == moment.stride()
    assert torch.equal(kernel, members.params["0.weight"])


def test_the_plain_loop_undoes_any_layout():
    task = be.Task(norm_convnet, be.Categorical())
    state = be.Loop(channels_last=True).arrange(State(task.new_members(2, seed=0)))
    assert all(leaf.is_contiguous() for leaf in be.Loop().arrange(state).members.params.values())


def test_a_shared_kernel_becomes_channels_last_itself():
    task = be.Task(norm_convnet, be.Categorical())
    params, buffers = task.new_member(seed=0)
    members = be.Members.stack([params] * 2, [buffers] * 2, share=frozenset({"0.weight"}))
    kernel = be.Loop(channels_last=True).arrange(State(members)).members.params["0.weight"]
    assert kernel.is_contiguous(memory_format=torch.channels_last)


def test_images_are_reordered_if_asked_for_and_nothing_else_is():
    images, rows = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3)
    ordered = be.Loop(channels_last=True)._ordered({"images": images, "rows": rows})
    assert ordered["images"].is_contiguous(memory_format=torch.channels_last)
    assert ordered["rows"] is rows
    assert be.Loop()._ordered(images) is images


def test_it_says_how_it_runs():
    assert (be.Loop().details(), be.Loop().runs_few_members) == ([], True)
    loop = be.Loop(channels_last=True, draws_by_vmap=True)
    assert (loop.details(), loop.runs_few_members) == (["channels-last", "with draws by vmap"], False)
    assert be.Loop(draws_by_vmap=True).details() == ["with draws by vmap"]
