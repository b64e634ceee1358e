"""Whether a value is what an annotation says, and how that is said in words; for dataclasses see `settings.py`."""

import collections.abc
import math
from collections.abc import Iterable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

_MAPPINGS: dict[Any, str] = {dict: "dict", collections.abc.Mapping: "dict"}
_SEQUENCES: dict[Any, str] = {tuple: "tuple", list: "list", collections.abc.Sequence: "list"}
_NOUNS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    collections.abc.Callable: "function",
    Any: "value",
}


class Limits(NamedTuple):
    """What narrows an annotation down; it holds for each item of a tuple and each value of a dict too."""

    choices: tuple[str, ...] = ()
    """The texts that are allowed; all, if there are none."""
    within: str | None = None
    """Where numbers lie: "[0, 1)" has 0 in it, but not 1."""

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends of the interval."""
        return _ends(self.within or "(-inf, inf)")

    def hold(self, number: float) -> bool:
        """Whether a number lies within."""
        if self.within is None:
            return True
        low, high = self.ends
        at_an_end = (number == low and self.within[0] == "[") or (number == high and self.within[-1] == "]")
        return low < number < high or at_an_end


@cache
def _ends(within: str) -> tuple[float, float]:
    low, high = within[1:-1].split(",")
    return float(low), float(high)


def fits(value: Any, hint: Any, limits: Limits) -> bool:
    """Whether a value is what an annotation says, within its limits. A whole number is a number, a truth is none.

    A list and a tuple serve as one another.
    """
    if hint in (int, float):
        number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
        return number and limits.hold(value)
    if hint is str:
        return isinstance(value, str) and (not limits.choices or value in limits.choices)
    if hint in (bool, NoneType):
        return isinstance(value, hint)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, one, limits) for one in inner)
    if kind is type:
        return isinstance(value, type) and issubclass(value, inner)
    if kind in _MAPPINGS:
        of_key, of_item = inner or (Any, Any)
        return isinstance(value, kind) and all(
            fits(key, of_key, Limits()) and fits(item, of_item, limits) for key, item in value.items()
        )
    if kind in _SEQUENCES:
        return isinstance(value, tuple | list) and all(fits(item, inner[0] if inner else Any, limits) for item in value)
    try:
        return isinstance(value, kind) or _unsaved(value)
    except TypeError:  # no value can be held against it, as with Any
        return True


def words(hint: Any, limits: Limits) -> str:
    """What an annotation takes within its limits, such as "a whole number from 1 or None"."""
    return _joined(_kinds(hint, limits, many=False))


def _kinds(hint: Any, limits: Limits, many: bool) -> Iterator[str]:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        for one in inner:
            yield from _kinds(one, limits, many)
    elif kind is bool:
        yield from ("True", "False")
    elif kind is NoneType:
        yield "None"
    elif kind is str and limits.choices:
        yield from ["these"] if many else map(repr, limits.choices)
    elif inner and kind in _MAPPINGS | _SEQUENCES:
        items = _kinds(inner[1] if kind in _MAPPINGS else inner[0], limits, many=True)
        yield f"a {(_MAPPINGS | _SEQUENCES)[kind]} of {_joined(items)}"
    elif kind is type:
        yield f"{'classes' if many else 'a class'} of {inner[0].__name__}"
    else:
        noun = _NOUNS.get(kind, getattr(kind, "__name__", str(kind)))
        article = "an" if noun[0] in "AEIOU" else "a"
        yield (f"{noun}s" if many else f"{article} {noun}") + (_range(limits) if kind in (int, float) else "")


def _range(limits: Limits) -> str:
    within, (low, high) = limits.within, limits.ends
    if within is None:
        return ""
    if high < math.inf:
        return f" in {within}"
    return f" {'from' if within[0] == '[' else 'above'} {low:g}"


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _unsaved(value: Any) -> bool:
    """Whether this stands for a function that was named in JSON, but not saved."""
    return isinstance(value, dict) and value.keys() == {"function"} and isinstance(value["function"], str)
