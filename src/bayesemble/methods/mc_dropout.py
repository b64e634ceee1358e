"""Monte Carlo dropout: a network with dropout layers, which act in prediction too.

    p(y | x) = mean over draws of p(y | f(x; w, mask)),    mask ~ the network's own nn.Dropout layers

Every row has a mask of its own, as in training. For masks that are the same for all rows, and for networks without such
layers, see `Dropout`.

Reference: Gal & Ghahramani (2016), "Dropout as a Bayesian approximation".
"""

from dataclasses import dataclass

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Info
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.task.networks import dropout_layers
from bayesemble.task.task import BoundTask


@dataclass(frozen=True, kw_only=True)
class MCDropout(GradientMethod):
    """The network's own dropout layers, on in prediction."""

    num_members: int = setting(1, "number of independently started networks; draws average over all", least=1)
    draws: int = setting(20, "passes for a prediction, unless told otherwise", least=1)

    independent = True
    moves_by_gradient_alone = True
    keeps_dropout = True

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members."""
        if not dropout_layers(task.module):
            raise SettingError(
                f"MCDropout needs a network with nn.Dropout layers that act; {type(task.module).__name__} has none: "
                "add some, say Task(..., train_frozen=True) if they are in frozen parts, which stand still, or use "
                "be.Dropout(rate=...), which needs none"
            )
        return super().init(task, seed)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint."""
        gradients, info = self.uphill(state, batch, context)
        return self.ascend(state, gradients, context), info

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Each member in turn; which units are dropped is drawn in the pass itself."""
        return in_turn(state.members, numbers)
