"""Repulsive deep ensembles: members climb the log posterior, and the score of their own density pushes them apart.

    w_m <- w_m + learning rate * ( grad log p(w_m, data) - grad log rho(w_m) ),   m = 1..M

where rho is the density of the members (Wasserstein gradient descent on KL(rho || posterior)). Without the second term
this is a deep ensemble, whose members may all sit on the same mode; with it, they settle like draws of the posterior.

Reference: D'Angelo & Fortuin (2021), "Repulsive deep ensembles are Bayesian". The calibration is ours.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.members import State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion import one_by_one
from bayesemble.methods.repulsion.density_scores import (
    ESTIMATORS,
    calibrate,
    effective_dimension,
    matrix_of,
    principal_axes,
    score_matrix,
    whitened,
)
from bayesemble.methods.repulsion.in_space import MethodInSpace
from bayesemble.methods.repulsion.interacting import Forces
from bayesemble.methods.repulsion.kernels import Linear, distances_of_gram
from bayesemble.task.task import BoundTask


@dataclass(frozen=True, kw_only=True)
class Repulsive(MethodInSpace):
    """Members pushed apart in weight or function space."""

    estimator: str = setting("kde", "how the density of the members is estimated", choices=ESTIMATORS)
    eta: float = setting(0.01, "ridge of sge and ssge", above=0)
    threshold: float | None = setting(None, "share of the eigenvalues that ssge keeps; None keeps all", within="(0, 1]")
    whiten: bool | None = setting(None, "measure distances in units of the members' own spread; None: if calibrated")
    sequential: bool = setting(False, "one member at a time, repelled by the finished ones; epochs are shared out")

    def __post_init__(self) -> None:
        super().__post_init__()
        mismatched = self.sequential and (self.bootstrap or self.anchored)
        require(self.centred or not self.whiten, "the linear kernel is no function of distances: leave whiten off")
        require(not mismatched, "sequential=True trains one member at a time: leave bootstrap and anchored off")
        require(not (self.sequential and self.rates_differ), "sequential=True has one learning rate for all members")

    @property
    def needs_every_epoch(self) -> bool:
        """Members that come in turn share out the epochs."""
        return self.sequential

    @property
    def gradients_per_step(self) -> int:
        """A member at a time takes its own gradients only."""
        return super().gradients_per_step // (self.num_members if self.sequential else 1)

    @property
    def apart(self) -> str | None:
        """Members that come in turn are one at a time."""
        return "sequential=True trains one member at a time" if self.sequential else super().apart

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members."""
        return one_by_one.init(self, task, seed) if self.sequential else super().init(task, seed)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move the members, all from the same snapshot."""
        if self.sequential:
            return one_by_one.step(self, state, batch, context)
        return super().step(state, batch, context)

    def kind_of_step(self, context: Context) -> Hashable | None:
        """As the space says; members that come in turn are on their own."""
        return None if self.sequential else super().kind_of_step(context)

    def forces(self, gram: Tensor, dim: int) -> Forces:
        """No exchange of scores; repulsion by the estimated score of the members' own density."""
        kernel = self.make_kernel()
        if isinstance(kernel, Linear):
            between = kernel.of_products(gram)
            matrix = matrix_of(between, torch.ones_like(between), self.estimator, self.eta, self.threshold)
            return Forces(None, matrix)
        whiten = self.calibrate if self.whiten is None else self.whiten
        own = principal_axes(gram, dim)
        inner, back = whitened(own) if whiten else (gram, None)
        matrix = score_matrix(distances_of_gram(inner), self.estimator, kernel, self.eta, self.threshold)
        if back is not None:
            matrix = matrix @ back
        if self.calibrate:
            matrix = calibrate(matrix, gram, effective_dimension(own, dim))
        return Forces(None, matrix)
