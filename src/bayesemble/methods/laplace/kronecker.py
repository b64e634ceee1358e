"""The generalised Gauss-Newton matrix as a Kronecker product for each layer: of what leaves it and of what enters it.

The products are those of the package curvlinops-for-pytorch, an extra, which an output layer whose features tell its
curvature has no need of; they are exact for the last layer under a
likelihood whose curvature is the same at all rows, such as a normal with fixed noise, and otherwise an approximation.

Reference: Eschenhagen et al. (2023), "Kronecker-factored approximate curvature for modern neural network
architectures".
"""

import copy
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import MissingExtraError
from bayesemble.methods.laplace.gauss_newton import Network, Rows, output_roots
from bayesemble.methods.laplace.gaussian_blocks import Block, Layout
from bayesemble.task.per_thread import PerThread


def curvlinops(what: str) -> Any:
    """The package that knows products with curvature, which something needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what the package itself imports
        try:
            return importlib.import_module("curvlinops")
        except ImportError as error:
            raise MissingExtraError(
                f"{what} needs the package curvlinops-for-pytorch ({error}); pip install 'bayesemble[laplace]' and "
                "pip install --no-deps curvlinops-for-pytorch"
            ) from error


def operator() -> Any:
    """The class of the package that does the work."""
    return curvlinops("structure='kron', unlike 'full' and 'diag',").KFACLinearOperator


class Batches:
    """Batches that can be gone through more than once: the package looks at the first one before it starts."""

    def __init__(self, rows: Callable[[], Rows]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for inputs, targets in self.rows():
            assert isinstance(targets, Tensor), "rows with weights are refused before"
            yield {"inputs": inputs, "targets": targets}, targets.new_zeros(len(targets), 1)


def kronecker(network: Network, rows: Callable[[], Rows], plan: list[Layout], num_rows: int) -> list[Block]:
    """A block for each layer; the input side has a 1 for the bias as its last column."""
    readout = _Readout(network)
    with torch.enable_grad():
        found = operator()(
            readout,
            nn.MSELoss(reduction="sum"),
            [readout.network.get_parameter(name) for name in network.names],
            Batches(rows),
            check_deterministic=False,
            fisher_type="type-2",
            num_per_example_loss_terms=1,
            separate_weight_and_bias=False,
            num_data=num_rows,
            batch_size_fn=lambda row: len(row["targets"]),
        )
        found.compute_kronecker_factors()
    factors = found.state_dict()
    blocks = []
    for layout in plan:
        layer = f"network.{layout.names[0]}".rpartition(".")[0]
        left = factors["gradient_covariances"][layer].cpu().double()
        right = factors["input_covariances"].get(layer, torch.ones(1, 1))  # nothing enters a bias but a 1
        blocks.append(Block(layout, left, right.cpu().double()))
    return blocks


class _Readout(nn.Module):
    """The network with parameters of its own, and outputs R' f / sqrt(2).

    The square loss of these has the curvature of the log likelihood, so one loss that the package knows does for all.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = copy.deepcopy(network.task.module)
        values = network.params | network.buffers
        with torch.no_grad():
            for name, leaf in self.network.named_buffers():
                leaf.copy_(values[name])
            for name, parameter in self.network.named_parameters():
                parameter.copy_(values[name]).requires_grad_(name in network.names)
        # The task runs this copy, where the package can watch the layers.
        self.member, self.task = network, replace(network.task, network=PerThread(self.network))

    def forward(self, rows: dict[str, Any]) -> Tensor:
        outputs = self.task.forward({}, {}, rows["inputs"])
        roots = output_roots(self.task, outputs.detach(), rows["targets"], self.member.params)
        return torch.einsum("nok,no->nk", roots, outputs.reshape(len(outputs), -1)) / math.sqrt(2)
