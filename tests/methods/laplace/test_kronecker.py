import importlib.util

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.methods.laplace.gauss_newton import Network
from bayesemble.methods.laplace.gaussian_blocks import layouts
from bayesemble.methods.laplace.kronecker import kronecker
from helpers import norm_convnet, one_network, smooth_mlp, table

needs_curvlinops = pytest.mark.skipif(
    importlib.util.find_spec("curvlinops") is None, reason="curvlinops-for-pytorch, the extra 'laplace', is missing"
)


def kfac_of(one: Network, x: Tensor, loss: nn.Module, y: Tensor) -> tuple[dict, dict]:
    """What the package gives for a loss that it knows, with its own second derivatives."""
    from curvlinops import KFACLinearOperator

    module = one.task.module
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(one.params[name])
    found = KFACLinearOperator(
        module.eval(), loss, [module.get_parameter(name) for name in one.names], [(x, y)],
        fisher_type="type-2", separate_weight_and_bias=False, check_deterministic=False,
    )  # fmt: skip
    found.compute_kronecker_factors()
    return found.state_dict()["gradient_covariances"], found.state_dict()["input_covariances"]


@needs_curvlinops
@pytest.mark.parametrize("model", [smooth_mlp, lambda: norm_convnet().double()], ids=["dense", "conv"])
def test_products_are_those_of_the_cross_entropy(model):
    x, y = table()
    if model is not smooth_mlp:
        with scoped(0):
            x = torch.rand(48, 3, 8, 8)
    x = x.double()
    module = be.Task(model, be.Categorical()).module
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    one = one_network(model, names=names, x=x)
    plan = layouts("kron", one.task.module, names)
    blocks = kronecker(one, lambda: iter([(x[:9], y[:9]), (x[9:], y[9:])]), plan, len(x))
    left, right = kfac_of(one, x, nn.CrossEntropyLoss(reduction="sum"), y)
    for block in blocks:
        layer = block.layout.names[0].rpartition(".")[0]
        torch.testing.assert_close(block.left, left[layer], rtol=0, atol=1e-10)
        torch.testing.assert_close(block.right, right[layer], rtol=0, atol=1e-10)


@needs_curvlinops
def test_the_products_leave_the_network_of_the_task_alone():
    one = one_network()
    before = {name: leaf.clone() for name, leaf in one.task.module.state_dict().items()}
    plan = layouts("kron", one.task.module, list(one.names))
    kronecker(one, lambda: iter([(table()[0].double(), table()[1])]), plan, 48)
    assert all(torch.equal(leaf, before[name]) for name, leaf in one.task.module.state_dict().items())
    assert all(parameter.requires_grad for parameter in one.task.module.parameters())
