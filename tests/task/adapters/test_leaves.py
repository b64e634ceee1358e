"""Members of one frozen backbone take the memory of one: nothing of it is copied for them."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import bayesemble as be
from bayesemble.task.adapters.leaves import in_common, leaves_of, stands_still
from bayesemble.task.adapters.still import hold_still

SHAPE = (37, 41)


class Copies(TorchDispatchMode):
    """Counts tensors of the shape of the backbone that come about, other than views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not func.is_view and func not in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            self.count += sum(leaf.shape == SHAPE for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor))
        return found


def network():
    return nn.Sequential(nn.Linear(41, 37), nn.ReLU(), nn.Linear(37, 2))


def data(generator):
    return torch.randn(12, 41, generator=generator), torch.arange(12) % 2


def test_members_of_an_adapted_network_build_no_backbone(generator):
    given = network()
    with Copies() as copies:
        task = be.Task(be.adapt(given, "head"), be.Categorical())
        members = task.bind(12, data(generator)[0]).new_members(10, 0)
    assert copies.count == 0
    assert members.buffers["0.weight"].data_ptr() == given[0].weight.data_ptr()
    assert members.params["2.weight"].shape == (10, 2, 37)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_nor_does_a_whole_fit_with_validation(generator, executor):
    task = be.Task(be.adapt(network(), "head"), be.Categorical())
    with Copies() as copies:
        be.fit(
            task,
            be.DeepEnsemble(num_members=10),
            data(generator),
            epochs=2,
            validation=data(generator),
            keep_best=True,
            executor=executor,
            progress=False,
        )
    assert copies.count == 0


def test_members_of_a_network_with_frozen_layers_build_one(generator):
    """It is a copy, as the given network stays with whoever gave it."""
    given = network()
    given[0].requires_grad_(False)
    with Copies() as copies:
        task = be.Task(given, be.Categorical(), start="fresh")
        members = task.bind(12, data(generator)[0]).new_members(10, 0)
    assert copies.count == 1
    assert members.buffers["0.weight"].data_ptr() != given[0].weight.data_ptr()
    assert torch.equal(members.buffers["0.weight"], given[0].weight)


def test_members_of_a_factory_hold_one_backbone():
    given = network()

    def factory():
        module = network()
        module.load_state_dict({**module.state_dict(), "0.weight": given[0].weight.detach().clone()})
        module[0].weight.requires_grad_(False)
        return module

    task = be.Task(factory, be.Categorical())
    drawn = [task.new_member(seed)[1]["0.weight"] for seed in range(3)]
    assert len({leaf.data_ptr() for leaf in drawn}) == 1


def test_leaves_are_copies_but_for_what_stands_still():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).requires_grad_(False), nn.BatchNorm1d(3))
    hold_still(module)
    params, buffers = leaves_of(module, module)
    assert set(params) == {"1.weight", "1.bias"}
    there = dict(module.named_parameters()) | dict(module.named_buffers())
    same = {name for name, leaf in (params | buffers).items() if leaf.data_ptr() == there[name].data_ptr()}
    assert same == stands_still(module) == {name for name in there if name.startswith("0.")}


def test_what_differs_is_not_in_common():
    one, two = torch.zeros(2), torch.ones(2)
    assert in_common({"a", "b"}, {"a": one, "b": one, "c": one}, [{"a": one.clone(), "b": two}]) == {"a"}
