"""Renumbering hidden units: the function stays, and a renumbered copy is found to be the original."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.align import aligned
from bayesemble.models import mlp
from helpers import quick_fit, table


def deep(**options):
    return mlp(4, [9, 7], 2, **options)


@pytest.fixture(params=[{}, {"norm": True}, {"bias": False, "norm": True, "input_norm": True}])
def ensemble(request):
    options = request.param
    return quick_fit(be.Task(lambda: deep(**options), be.Categorical()), table(), be.DeepEnsemble(num_members=2))


def one(ensemble, member):
    return measure.members_of(ensemble).take(torch.tensor([member]))


def outputs(ensemble, network):
    return measure.as_ensemble(ensemble, network).predict(table(20, seed=5)[0]).member_probs[0]


def shuffled(network, module):
    """The same function with the units of both hidden layers in another order."""
    generator, found = torch.Generator().manual_seed(1), {}
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    leaves = network.params | network.buffers
    orders = [torch.randperm(len(leaves[f"{name}.weight"][0]), generator=generator) for name in linear[:-1]]
    for name, leaf in leaves.items():
        place = max((i for i, own in enumerate(linear) if int(own) <= int(name.split(".")[0])), default=-1)
        new = leaf.clone()
        if 0 <= place < 2 and leaf.dim() > 1:
            new = new[:, orders[place]]
        if name.endswith("weight") and name.split(".")[0] in linear[1:]:
            new = new[:, :, orders[linear.index(name.split(".")[0]) - 1]]
        found[name] = new
    split = ({n: found[n] for n in group} for group in (network.params, network.buffers))
    return type(network)(*split, network.weights)


def test_a_renumbered_copy_is_found_to_be_the_original(ensemble):
    original = one(ensemble, 0)
    copy = shuffled(original, ensemble.task.module)
    assert torch.allclose(outputs(ensemble, copy), outputs(ensemble, original), atol=1e-6)
    assert any(not torch.equal(leaf, original.params[name]) for name, leaf in copy.params.items())
    back = aligned(ensemble.task.module, copy, original)
    for name, leaf in (original.params | original.buffers).items():
        assert torch.equal((back.params | back.buffers)[name], leaf)


def test_the_function_of_another_member_stays_and_its_weights_come_nearer(ensemble):
    first, second = one(ensemble, 0), one(ensemble, 1)
    moved = aligned(ensemble.task.module, second, first)
    assert torch.allclose(outputs(ensemble, moved), outputs(ensemble, second), atol=1e-6)

    def product(other):
        return sum(float((first.params[name] * other.params[name]).sum()) for name in first.params)

    assert product(moved) >= product(second)


def test_networks_that_are_no_chains_are_refused():
    with scoped(0):
        images, single = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(be.ModelError, match="0 is Conv1d"):
        aligned(images, None, None)
    with pytest.raises(be.ModelError, match="no hidden layer"):
        aligned(single, None, None)
