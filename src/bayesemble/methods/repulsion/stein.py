"""Stein variational gradient descent: members share their scores through a kernel, which also pushes them apart.

    w_m <- w_m + learning rate * (1/M) sum_j [ k(w_j, w_m) grad log p(w_j, data) + grad_{w_j} k(w_j, w_m) ]

One member is the MAP estimate.

Reference: Liu & Wang (2016), "Stein variational gradient descent"; Wang et al. (2019) for function space.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.methods.repulsion.density_scores import calibrate, effective_dimension, laplacian, principal_axes
from bayesemble.methods.repulsion.in_space import MethodInSpace
from bayesemble.methods.repulsion.interacting import Forces
from bayesemble.methods.repulsion.kernels import distances_of_gram

_RIDGE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Stein(MethodInSpace):
    """Members moved together by a kernel: SVGD."""

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
            effective = effective_dimension(principal_axes(gram, dim), dim)
            gradients = between @ calibrate(torch.linalg.solve(ridged, gradients), gram, effective)
        return Forces(between / count, self.repulsion * gradients / count)
