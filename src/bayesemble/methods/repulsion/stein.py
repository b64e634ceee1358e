"""Stein variational gradient descent: members share their scores through a kernel, which also pushes them apart.

    w_m <- w_m + learning rate * (1/M) sum_j [ k(w_j, w_m) grad log p(w_j, data) + grad_{w_j} k(w_j, w_m) ]

One member is the MAP estimate.

Reference: Liu & Wang (2016), "Stein variational gradient descent"; Wang et al. (2019) for function space.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.members import State
from bayesemble.core.types import Batch, Info
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion import function_space, weight_space
from bayesemble.methods.repulsion.density_scores import calibrate, effective_dimension, laplacian, spread
from bayesemble.methods.repulsion.interacting import Forces, InteractingMethod
from bayesemble.methods.repulsion.kernels import distances_of_gram
from bayesemble.task.task import BoundTask

_RIDGE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Stein(InteractingMethod):
    """Members moved together by a kernel: SVGD."""

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members."""
        state = super().init(task, seed)
        return function_space.prepare(self, state, task, seed) if self.space == "function" else state

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move the members, all from the same snapshot."""
        move = weight_space.step if self.space == "weight" else function_space.step
        return move(self, state, batch, context)

    def forces(self, gram: Tensor, dim: int) -> Forces:
        """phi = (K scores - G) / M.

        SVGD rests where K scores = G: it takes K^-1 G for the members' own score. Calibrated, that estimate is
        rescaled to keep Stein's identity, and G with it.
        """
        squared, kernel = distances_of_gram(gram), self.make_kernel()
        between, coupling = kernel.couple(squared, kernel.length(squared))
        gradients, count = laplacian(coupling), len(gram)
        if self.calibrate:
            ridged = between + _RIDGE * torch.eye(count, dtype=between.dtype, device=between.device)
            effective = effective_dimension(spread(gram, dim), dim)
            gradients = between @ calibrate(torch.linalg.solve(ridged, gradients), gram, effective)
        return Forces(between / count, self.repulsion * gradients / count)
