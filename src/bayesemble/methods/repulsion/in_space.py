"""Methods whose members interact in a space of choice, which is named or given with its settings.

Repulsive(space=FunctionSpace(prior_every=4))
Repulsive(space="function", prior_every=4)      # the same; the command line has such names only
"""

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bayesemble.core.members import State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info, Leaves
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion.function_space import FunctionSpace
from bayesemble.methods.repulsion.interacting import InteractingMethod, Space
from bayesemble.methods.repulsion.samplers import Sampler
from bayesemble.methods.repulsion.weight_space import WeightSpace
from bayesemble.task.select import Wish
from bayesemble.task.task import BoundTask

SPACES: dict[str, type[Space]] = {"weight": WeightSpace, "function": FunctionSpace}
_SETTINGS = {name: {field.name: field for field in dataclasses.fields(kind)} for name, kind in SPACES.items()}


def _of_space(name: str) -> dict[str, Any]:
    """What a setting of a space says of itself, for the same setting of a method."""
    spaces = [space for space in SPACES if name in _SETTINGS[space]]
    own = _SETTINGS[spaces[0]][name]
    where = f"{' or '.join(spaces)} space" + ("" if own.default is None else f"; None: {own.default}")
    limits = own.metadata["limits"]
    return {"help": f"{own.metadata['help']} ({where})", "choices": limits.choices, "within": limits.within}


@dataclass(frozen=True, kw_only=True)
class MethodInSpace(InteractingMethod):
    """The space of choice, and its settings."""

    space: str | Space = setting(
        "weight", "where members repel one another: weight, or function (the outputs of the networks)", choices=SPACES
    )
    measure_every: int | None = setting(None, **_of_space("measure_every"))
    select: Wish | None = setting(None, **_of_space("select"))
    features: str | None = setting(None, **_of_space("features"))
    points: str | Sampler | None = setting(None, **_of_space("points"))
    noise: float | None = setting(None, **_of_space("noise"))
    function_prior: bool | None = setting(None, **_of_space("function_prior"))
    prior_draws: int | None = setting(None, **_of_space("prior_draws"))
    prior_points: int | None = setting(None, **_of_space("prior_points"))
    prior_every: int | None = setting(None, **_of_space("prior_every"))

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.own_space  # refuses settings of other spaces

    @cached_property
    def own_space(self) -> Space:
        """The space that the settings describe."""
        names = dict.fromkeys(name for known in _SETTINGS.values() for name in known)
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if isinstance(self.space, Space):
            inside = f"{type(self.space).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
            require(
                not given, f"{', '.join(given)} cannot be honoured beside a space with settings: use space={inside}"
            )
            return self.space
        known = _SETTINGS[self.space]
        for name, value in given.items():
            require(
                name in known,
                f"{name}={value!r} cannot be honoured in {self.space} space, whose settings are {', '.join(known)}; "
                "leave it out, or choose the space that has it",
            )
        return SPACES[self.space](**given)

    @property
    def apart(self) -> str | None:
        """Spaces ask the team."""
        return None

    def common_leaves(self, slot: str, leaves: Leaves) -> tuple[str, ...]:
        """What the space keeps for all members at once."""
        return self.own_space.common_leaves(slot, leaves)

    @property
    def training_slots(self) -> tuple[str, ...]:
        """Those of the optimiser, and what the space keeps from step to step."""
        return (*super().training_slots, *self.own_space.training_slots)

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members, with what their space needs."""
        return self.own_space.prepare(self, super().init(task, seed), task, seed)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move the members, all from the same snapshot."""
        return self.own_space.step(self, state, batch, context)

    def kind_of_step(self, context: Context) -> Hashable | None:
        """As the space says."""
        return self.own_space.kind_of_step(context)

    def draw_ahead(self, state: State, context: Context) -> None:
        """What the space draws."""
        self.own_space.draw_ahead(state, context)
