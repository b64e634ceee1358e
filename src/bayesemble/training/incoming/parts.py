"""Some members of an ensemble, trained alone: by their numbers they are the same wherever they train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import PartSeed
from bayesemble.core.settings import require
from bayesemble.core.types import map_tensors
from bayesemble.execute.optimizers.of_torch import OfTorch
from bayesemble.execute.schedules import Schedule
from bayesemble.methods import Method
from bayesemble.methods.repulsion.interacting import Space
from bayesemble.methods.repulsion.kernels import Kernel, Linear
from bayesemble.training.batches import ArraySource, BatchSource


@dataclass(frozen=True)
class Part:
    """Which members of which method an ensemble has."""

    numbers: range
    method: Method
    """That of all members."""

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        return f"{first} to {last} of {self.method.num_members}"

    @property
    def own_method(self) -> Method:
        """The method for these members alone."""
        return self.method.part(self.numbers)

    def seed(self, seed: int) -> PartSeed:
        """The seed of a run of these members, by which they get the random numbers that they have among all."""
        return PartSeed(seed, self.numbers, self.method.num_members)

    def to_json(self) -> dict[str, Any]:
        """The numbers, from and up to, and the method of all."""
        return {"members": [self.numbers.start, self.numbers.stop], "method": settings.dump(self.method)}

    @staticmethod
    def from_json(saved: Mapping[str, Any] | None) -> Part | None:
        """What `to_json` gave."""
        return None if saved is None else Part(range(*saved["members"]), parse_method(saved["method"]))


def parse_method(saved: Any) -> Method:
    """A method with its settings, from what was saved of it."""
    return settings.parse(saved, Method, (Schedule, Space, Kernel, Linear, OfTorch))


def check_part(method: Method, members: Any, patience: int | None, keep_best: bool) -> Part:
    """The members that are meant; refuse them where training would depend on the others."""
    num, name = method.num_members, type(method).__name__
    sound = isinstance(members, range) and members.step == 1 and 0 <= members.start < members.stop <= num
    require(sound, f"members are numbers such as range(0, 2), within range(0, {num}) here; got {members!r}")
    if not method.independent:
        raise SettingError(
            f"members=... trains some members without the others, but those of {name} may depend on one another; "
            "train them together, or take a method whose members do not, such as DeepEnsemble"
        )
    require(
        patience is None and not keep_best,
        "patience and keep_best go by the validation loss of all members together, which members=... does not train; "
        "leave them out",
    )
    return Part(members, method)


def own_rows(source: BatchSource, part: Part | None) -> BatchSource:
    """The rows of these members, where each member has rows of its own."""
    if part is None or not (isinstance(source, ArraySource) and source.per_member):
        return source
    source.check_members(part.method.num_members)
    own = slice(part.numbers.start, part.numbers.stop)
    return replace(source, inputs=map_tensors(lambda leaf: leaf[own], source.inputs), targets=source.targets[own])
