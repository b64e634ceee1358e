"""Deep ensembles: networks trained independently from different starts, their predictions averaged.

    w_m <- w_m + learning rate * grad log p(w_m, data),   m = 1..M

Options: a bootstrap (each member its own resample), anchoring (randomise-then-optimise), adversarial training. With
`HeteroscedasticGaussian` and `adversarial` it is the recipe of the paper. One member is the MAP estimate.

Reference: Lakshminarayanan, Pritzel & Blundell (2017), "Simple and scalable predictive uncertainty estimation using
deep ensembles".
"""

from dataclasses import dataclass

import torch

from bayesemble.core.members import Members, State
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.executor import Executor
from bayesemble.methods import gradient
from bayesemble.methods.gradient import ParticleMethod
from bayesemble.task.task import Task


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(ParticleMethod):
    """Independently started members; no interaction."""

    def init(self, task: Task, seed: int) -> State:
        """Start the members."""
        return gradient.init(self, task, seed)

    def step(self, state: State, batch: Batch, task: Task, executor: Executor, clock: Clock) -> tuple[State, Info]:
        """Move each member uphill on its own log joint."""
        scores, info = gradient.scores(self, state, batch, task, executor, clock)
        return gradient.ascend(self, state, scores, task, clock), info

    def draw(self, state: State, num: int | None, generator: torch.Generator) -> Members:
        """The members, or a sample of them."""
        return gradient.draw(state, num, generator)
