"""A network runs with the leaves of a member; in bfloat16 its weights and outputs stay in single precision."""

import pytest
import torch
from torch import nn

from bayesemble.core.seeds import scoped
from bayesemble.task.running import called_with, outputs_of
from helpers import norm_mlp, small_mlp, table

PLAIN = {"training": False, "dropout": False, "output": None, "recomputes": False, "precision": None}
without_onednn = torch.backends.mkldnn.flags


def leaves(network):
    return {name: leaf.detach() for name, leaf in network.named_parameters()}, {
        name: leaf.clone() for name, leaf in network.named_buffers()
    }


def two(make=small_mlp):
    with scoped(0):
        return make(), make()


def test_it_computes_what_the_network_with_these_weights_does():
    module, other = two()
    x = table()[0]
    assert torch.equal(outputs_of(module, *leaves(other), x, **PLAIN), other(x))
    assert torch.equal(called_with(module, leaves(other)[0], (x,)), other(x))
    assert torch.equal(called_with(module, leaves(other)[0], {"input": x}), other(x))


def test_statistics_of_the_member_move_in_training_and_those_of_the_network_stay():
    module, other = two(norm_mlp)
    params, buffers = leaves(other)
    before = module[1].running_mean.clone()
    outputs_of(module, params, buffers, table()[0], **(PLAIN | {"training": True}))
    assert torch.equal(module[1].running_mean, before)
    assert buffers["1.running_mean"].any()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_in_bfloat16_layers_compute_coarsely_and_outputs_are_single():
    module, other = two()
    x, seen = table()[0], []
    module[1].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0].dtype))
    options = PLAIN | {"training": True, "precision": "bf16"}
    params = leaves(other)[0]
    with without_onednn(enabled=False):
        found = outputs_of(module, params, {}, x, **options)
        assert seen == [torch.bfloat16]
        assert found.dtype == torch.float32
        coarse = (
            other[2].weight.bfloat16()
            @ nn.functional.relu(x.bfloat16() @ other[0].weight.bfloat16().T + other[0].bias.bfloat16()).T
        )
        torch.testing.assert_close(found, coarse.T.float() + other[2].bias, atol=0.02, rtol=0.02)
        assert not torch.equal(found, other(x))
        whole = outputs_of(module, params, {}, x, **(options | {"training": False}))
    torch.testing.assert_close(whole, other(x))


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_gradients_of_coarse_steps_are_single_and_near_those_of_fine_ones():
    module, other = two()
    x, y = table()
    options = PLAIN | {"training": True}

    def slopes(precision):
        params = {name: leaf.requires_grad_() for name, leaf in leaves(other)[0].items()}
        loss = nn.functional.cross_entropy(outputs_of(module, params, {}, x, **(options | {"precision": precision})), y)
        assert loss.dtype == torch.float32
        return torch.autograd.grad(loss, list(params.values()))

    with without_onednn(enabled=False):
        for fine, coarse in zip(slopes(None), slopes("bf16"), strict=True):
            assert coarse.dtype == torch.float32
            assert (coarse - fine).norm() < 0.03 * fine.norm()
