"""Deep ensembles: networks trained independently from different starts, their predictions averaged.

    w_m <- w_m + learning rate * grad log p(w_m, data),   m = 1..M

Options: a bootstrap (each member its own resample), anchoring (randomise-then-optimise), adversarial training. With
`HeteroscedasticGaussian` and `adversarial` it is the recipe of the paper. One member is the MAP estimate.

Reference: Lakshminarayanan, Pritzel & Blundell (2017), "Simple and scalable predictive uncertainty estimation using
deep ensembles".
"""

from collections.abc import Hashable
from dataclasses import dataclass

from bayesemble.core.members import State
from bayesemble.core.types import Batch, Info
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(GradientMethod):
    """Independently started members; no interaction."""

    independent = True
    moves_by_gradient_alone = True

    @property
    def steps_alike(self) -> bool:
        """Whatever the seed, unless rates are drawn by it, or the optimiser is one of torch's."""
        return not self.rates_differ and self.unrecorded is None

    def kind_of_step(self, context: Context) -> Hashable:
        """All steps are alike."""
        return ""

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint."""
        gradients, info = self.uphill(state, batch, context)
        return self.ascend(state, gradients, context), info
