"""Learning rates that differ: by member, as in hyper-deep ensembles, or by the name of a leaf."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.types import Leaves, is_named

Rate = float | Tensor
"""A learning rate; where a step is recorded, a tensor without axes."""

Patterns = dict[str, float]
"""Rates by patterns of names, such as `{"head.*": 1e-2, "*": 1e-4}`; the first match counts."""


class Part(NamedTuple):
    """What moves at one rate: some leaves, of all members or of one."""

    names: Sequence[str]
    member: int | None
    rate: Rate


def parts(names: Iterable[str], rate: Rate | Sequence[Rate], factors: dict[str, float] | None = None) -> list[Part]:
    """What moves at which rate, for leaves with a factor each, and one rate or one for each member."""
    groups: dict[float | None, list[str]] = {}
    for name in names:
        groups.setdefault(None if factors is None else factors[name], []).append(name)
    each = list(enumerate(rate)) if isinstance(rate, Sequence) else [(None, rate)]
    return [
        Part(group, member, one if factor is None else one * factor)
        for factor, group in groups.items()
        for member, one in each
    ]


def of_part(leaves: Leaves, part: Part, unbound: dict[str, Sequence[Tensor]]) -> list[Tensor]:
    """What a part has of leaves; members that are taken from one are kept in `unbound`, for the parts to come."""
    if part.member is None:
        return [leaves[name] for name in part.names]
    for name in part.names:
        if name not in unbound:
            unbound[name] = leaves[name].unbind(0)
    return [unbound[name][part.member] for name in part.names]


def factors_of(names: Iterable[str], patterns: Patterns, network: Collection[str]) -> dict[str, float]:
    """The rate of each leaf by the first pattern that matches it.

    What a method keeps of a leaf of the network, such as its components, is called after it and has its rate.
    """
    return _factors_of(tuple(names), tuple(patterns.items()), tuple(network))


@cache
def _factors_of(
    names: tuple[str, ...], patterns: tuple[tuple[str, float], ...], network: tuple[str, ...]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        owner = max((own for own in network if name == own or name.endswith(f".{own}")), key=len, default=name)
        rates = [rate for pattern, rate in patterns if is_named(owner, [pattern])]
        if not rates:
            raise SettingError(f'learning_rate has no pattern for the leaf {name!r}; add one such as "*"')
        found[name] = rates[0]
    return found


def check_patterns(patterns: Patterns, names: Collection[str]) -> None:
    """Refuse patterns that leave leaves without a rate, or that match none."""
    factors_of(names, patterns, names)
    for pattern in patterns:
        if not any(is_named(name, [pattern]) for name in names):
            known = ", ".join(sorted(names)[:8])
            raise SettingError(f"learning_rate has a pattern {pattern!r} that no leaf matches; leaves are {known}")


def log_uniform(low: float, high: float, num: int, seed: int) -> tuple[float, ...]:
    """Rates drawn log-uniformly between two, one for each member; the first ones are the same for any number."""
    numbers, whole = seeds.members_of(seed, num)
    return _log_uniform(low, high, whole, int(seed))[numbers.start : numbers.stop]


@cache
def _log_uniform(low: float, high: float, num: int, seed: int) -> tuple[float, ...]:
    generator, ends = seeds.generator(seed, "rates of members"), (math.log(low), math.log(high))
    drawn = ends[0] + (ends[1] - ends[0]) * torch.rand(num, generator=generator, dtype=torch.float64)
    return tuple(drawn.exp().tolist())
