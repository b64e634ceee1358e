"""Stein variational gradient descent: members share their scores through a kernel, which also pushes them apart.

    w_m <- w_m + learning rate * (1/M) sum_j [ k(w_j, w_m) grad log p(w_j, data) + grad_{w_j} k(w_j, w_m) ]

One member is the MAP estimate. With K_ij = k(w_i, w_j) and G_i = sum_j grad_1 k(w_i, w_j), members rest where
K gradients = G: they take K^-1 G for the score of their own density.

Calibrated, the default, they compare one another in units of their own covariance C,

    k(w, w') = kappa( |C^-1/2 (w - w')| ),      G_i = sum_j grad_1 k(w_i, w_j) = -sum_j l_ij C^-1 (w_i - w_j)

so that narrow and wide directions of the posterior count alike; and G is rescaled so that K^-1 G keeps Stein's
identity. C is never formed: all of it follows from products of members, as in `density_scores.py`. It is the
matrix-valued kernel C k of Wang, Tang, Bajaj & Liu (2019) without the factor C, which moves members faster and leaves
them where they rest.

Reference: Liu & Wang (2016), "Stein variational gradient descent"; Wang, Tang, Bajaj & Liu (2019), "Stein variational
gradient descent with matrix-valued kernels"; Wang, Ren, Zhu & Zhang (2019) for function space. The calibration is ours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.methods.repulsion.density_scores import (
    calibrate,
    effective_dimension,
    laplacian,
    principal_axes,
    whitened,
)
from bayesemble.methods.repulsion.in_space import MethodInSpace
from bayesemble.methods.repulsion.interacting import Forces
from bayesemble.methods.repulsion.kernels import Linear, distances_of_gram

_RIDGE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Stein(MethodInSpace):
    """Members moved together by a kernel: SVGD."""

    def forces(self, gram: Tensor, dim: int) -> Forces:
        """phi = (K gradients - G) / M, with G = L x, or calibrated G = c L (M B^+) x.

        L is the laplacian of the kernel, and M B^+ x, from the products B of centred members, are members times C^-1.
        """
        kernel, count = self.make_kernel(), len(gram)
        if isinstance(kernel, Linear):  # the gradient of k(w_j, w_i) in w_j is w_i
            return Forces(kernel.of_products(gram) / count, -torch.eye(count).to(gram))
        axes = principal_axes(gram, dim)
        inner, back = whitened(axes) if self.calibrate else (gram, None)
        even = self.calibrate and 1 < count <= dim + 1
        if even:  # n U U^T, of which U then has all directions but that of the vector of ones
            inner = count * torch.eye(count).to(gram) - 1
        squared = distances_of_gram(inner)
        between, coupling = kernel.couple(squared, kernel.length(squared))
        repelling = laplacian(coupling)
        if back is not None:
            ridged = between + _RIDGE * torch.eye(count, dtype=between.dtype, device=between.device)
            own_score = torch.linalg.solve(ridged, repelling @ back)
            repelling = between @ calibrate(own_score, gram, effective_dimension(axes, dim))
        return Forces(between / count, repelling / count, even)
