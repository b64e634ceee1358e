"""Monte Carlo dropout: a network with dropout layers, which act in prediction too.

    p(y | x) = mean over draws of p(y | f(x; w, mask)),    mask ~ the network's own nn.Dropout layers

Every row has a mask of its own, as in training. For masks that are the same for all rows, and for networks without such
layers, see `Dropout`.

Reference: Gal & Ghahramani (2016), "Dropout as a Bayesian approximation".
"""

from dataclasses import dataclass

import torch

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.executor import Executor
from bayesemble.methods import gradient
from bayesemble.methods.gradient import ParticleMethod
from bayesemble.task.networks import dropout_layers
from bayesemble.task.task import Task


@dataclass(frozen=True, kw_only=True)
class MCDropout(ParticleMethod):
    """The network's own dropout layers, on in prediction."""

    num_members: int = setting(1, "number of independently started networks; draws average over all", least=1)
    draws: int = setting(20, "passes for a prediction, unless told otherwise", least=1)

    keeps_dropout = True

    def init(self, task: Task, seed: int) -> State:
        """Start the members."""
        if not dropout_layers(task.module):
            raise SettingError(
                f"MCDropout needs a network with nn.Dropout layers, {type(task.module).__name__} has none; add some, "
                "or use be.Dropout(rate=...), which needs none"
            )
        return gradient.init(self, task, seed)

    def step(self, state: State, batch: Batch, task: Task, executor: Executor, clock: Clock) -> tuple[State, Info]:
        """Move each member uphill on its own log joint."""
        scores, info = gradient.scores(self, state, batch, task, executor, clock)
        return gradient.ascend(self, state, scores, task, clock), info

    def draw(self, state: State, num: int | None, generator: torch.Generator) -> Members:
        """Members, as often as there are draws; which units are dropped is drawn in the pass itself."""
        return self.make(state, range(self.draws if num is None else num), generator.initial_seed())

    def make(self, state: State, numbers: range, seed: int) -> Members:
        """Each member in turn; of a single one, a leaf that is not shared says how many passes there are."""
        return gradient.in_turn(state.members, numbers, own=list(state.members.params)[:1])
