"""What frozen parts of a network give for a row is the same for all members: it is found once, and then handed to each.

A part is a module of which nothing is trained. Where all that it is called with is the same for all members too, so is
what it gives. Such parts are found by running the network: with other trained leaves and other random numbers they must
give the same, to the bit. The network then runs with `Prepared` rows, which hold what these calls gave; its own code is
unchanged, but the calls are answered instead of being carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bayesemble.core.errors import ModelError
from bayesemble.core.types import Inputs, map_tensors, tensors_of
from bayesemble.task.adapters.still import is_still

_PLAIN = (bool, int, float, str, type(None))
_ROUNDING = 1e-4
"""By what share of its size a number may differ if other rows are beside it."""

Run = Callable[[int, Inputs, bool], Tensor]
"""Outputs of the network for a variant of its trained leaves and random numbers, rows, and whether in training."""


@dataclass(frozen=True)
class FrozenCalls:
    """Calls of frozen parts, in their order in a pass."""

    parts: tuple[str, ...]
    """Names of the modules that are answered for."""
    order: tuple[str, ...]
    """Of each call the name of the module."""
    needed: tuple[bool, ...]
    """Of each call whether anything but other frozen parts takes what it gives."""

    def __str__(self) -> str:
        return ", ".join(self.parts)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Rows, and what the frozen parts of a network gave for them."""

    inputs: Inputs
    features: tuple[Any, ...]
    """What each call that is needed gave."""
    calls: FrozenCalls


def _joined(children: Iterable[Any], calls: Any) -> Prepared:
    inputs, *features = children
    return Prepared(inputs, tuple(features), calls)


pytree.register_pytree_node(Prepared, lambda one: ([one.inputs, *one.features], one.calls), _joined)


class OtherCallsError(ModelError):
    """The network calls its frozen parts in another order for some rows than for those that it was tried on."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the frozen part {name!r} is not called for these rows as it was for those that the network was tried on, "
            "so it cannot run once for all members; Task(..., train_frozen=True) has each member run it"
        )


class _Enough(BaseException):
    """All calls that are needed were seen."""


def find_calls(module: nn.Module, rows: Inputs, run: Run) -> FrozenCalls | None:
    """The calls of frozen parts that are the same for all members, seen on a few rows; None if there are none."""
    count = len(tensors_of(rows)[0])
    if count < 2:
        return None
    fewer = map_tensors(lambda leaf: leaf[:-1], rows)
    parts = _candidates(module)
    _, plain = _seen(module, parts, lambda: run(0, rows, True))
    others = [_seen(module, parts, lambda: run(1, rows, True))[1], _seen(module, parts, lambda: run(0, rows, False))[1]]
    _, cut = _seen(module, parts, lambda: run(0, fewer, False))
    alike = [
        part
        for part in parts
        if plain.get(part)
        and all(_equal(plain[part], calls.get(part, [])) for calls in others)
        and _begins_with(plain[part], cut.get(part, []), count)
    ]
    return _needed(module, alike, rows, run) if alike else None


def features_of(module: nn.Module, calls: FrozenCalls, run: Callable[[], Any]) -> tuple[Any, ...]:
    """What the calls that are needed give in a run of the network, which is broken off after the last of them."""
    seen: list[Any] = []
    names = iter(calls.order)
    last = max(place for place, needed in enumerate(calls.needed) if needed)

    def see(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            if name != next(names):
                raise OtherCallsError(name)
            seen.append(original(*args, **options))
            if len(seen) > last:
                raise _Enough
            return seen[-1]

        return forward

    try:
        with _replaced(module, calls.parts, see):
            run()
        raise OtherCallsError(next(names))
    except _Enough:
        pass
    return tuple(given for given, needed in zip(seen, calls.needed, strict=False) if needed)


@contextmanager
def answered(module: nn.Module, rows: Prepared) -> Iterator[None]:
    """Inside the block, frozen parts of the network give what they gave before, once for each call."""
    features = iter(rows.features)
    given = [next(features, None) if needed else None for needed in rows.calls.needed]
    answers = iter(zip(rows.calls.order, given, strict=True))

    def answer(_: Callable[..., Any], name: str) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            expected, answer = next(answers, (None, None))
            if name != expected:
                raise OtherCallsError(name)
            return answer

        return forward

    with _replaced(module, rows.calls.parts, answer):
        yield


def _candidates(module: nn.Module) -> list[str]:
    """The outermost modules in which nothing is trained and nothing changes."""
    found: list[str] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        own = [*part.parameters(), *part.buffers()]
        if name and not inside and (is_still(part) or not own):
            found.append(name)
    return found


def _needed(module: nn.Module, parts: list[str], rows: Inputs, run: Run) -> FrozenCalls | None:
    """Find out which calls are needed, by leaving out one after the other."""
    seen: list[Any] = []
    names: list[str] = []

    def see(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            seen.append(original(*args, **options))
            names.append(name)
            return seen[-1]

        return forward

    with _replaced(module, parts, see):
        expected = run(0, rows, True)
    order, needed = tuple(names), [True] * len(seen)
    kept = [pytree.tree_map_only(Tensor, torch.clone, given) for given in seen]  # the network may write into them

    def works() -> bool:
        features = tuple(given for given, one in zip(kept, needed, strict=True) if one)
        own = pytree.tree_map_only(Tensor, torch.clone, features)
        try:
            found = run(0, Prepared(rows, own, FrozenCalls(tuple(parts), order, tuple(needed))), True)
        except Exception:  # whatever a network does with nothing in the place of a tensor
            return False
        return torch.equal(found, expected) and _equal(own, features)

    if not works():
        return None
    for place in range(len(needed)):
        needed[place] = False
        needed[place] = not (any(needed) and works())
    return FrozenCalls(tuple(parts), order, tuple(needed))


def _seen(module: nn.Module, parts: list[str], run: Callable[[], Tensor]) -> tuple[Tensor, dict[str, list[Any]]]:
    """Outputs of the network, and what each call of these parts gave."""
    calls: dict[str, list[Any]] = {}

    def see(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            given = original(*args, **options)
            calls.setdefault(name, []).append(pytree.tree_map_only(Tensor, torch.clone, given))
            return given

        return forward

    with _replaced(module, parts, see):
        return run(), calls


@contextmanager
def _replaced(
    module: nn.Module, parts: Iterable[str], instead: Callable[[Callable[..., Any], str], Callable[..., Any]]
) -> Iterator[None]:
    """Inside the block, other functions stand in the place of what modules do when they are called."""
    layers = [module.get_submodule(name) for name in parts]
    before = [vars(layer).get("forward") for layer in layers]
    try:
        for name, layer in zip(parts, layers, strict=True):
            layer.forward = instead(layer.forward, name)
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            vars(layer).pop("forward", None)
            if own is not None:
                layer.forward = own


def _equal(some: Any, others: Any) -> bool:
    """Whether nested values are the same, to the bit."""
    (ones, form), (twos, other_form) = pytree.tree_flatten(some), pytree.tree_flatten(others)
    return form == other_form and all(_same(one, two) for one, two in zip(ones, twos, strict=True))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)
    return isinstance(one, _PLAIN) and isinstance(two, _PLAIN) and one == two


def _begins_with(whole: list[Any], fewer: list[Any], count: int) -> bool:
    """Whether values have an axis of rows, the first, and are the same but for rounding without the last row."""
    (ones, form), (twos, other_form) = pytree.tree_flatten(whole), pytree.tree_flatten(fewer)
    if form != other_form:
        return False
    for one, two in zip(ones, twos, strict=True):
        if not isinstance(one, Tensor):
            if not _same(one, two):
                return False
        elif not one.dim() or len(one) != count or two.shape != one[:-1].shape or not close(two, one[:-1]):
            return False
    return True


def close(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same but for rounding."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = one[one.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING * size, equal_nan=True)
