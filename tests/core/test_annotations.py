import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Union, runtime_checkable

import pytest
from torch import nn

from bayesemble.core.annotations import Limits, fits, words


@runtime_checkable
class Sampler(Protocol):
    def __call__(self) -> int: ...


class Unasked(Protocol):
    def __call__(self) -> int: ...


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


# --- limits ---


@pytest.mark.parametrize(
    ("within", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.0, 5e-324, 0.5, 1, 1 - 2**-53], [-5e-324, 1 + 2**-52, -1, 2]),
        ("[0, 1)", [0, 5e-324, 1 - 2**-53], [-5e-324, 1, 1.0]),
        ("(0, 1]", [5e-324, 1, 1 - 2**-53], [0, 0.0, -0.0, 1 + 2**-52]),
        ("(0, 1)", [5e-324, 1 - 2**-53], [0, 1]),
        ("[2, inf)", [2, 2.0, 10**400, 1.7e308], [1, 2 - 2**-51]),
        ("(-1.5, inf)", [-1.4999, 0], [-1.5, -2]),
        ("[-1e+300, 1e300]", [-1e300, 0, 1e300], [-1.1e300, 1.1e300]),
    ],
)
def test_an_interval_holds_what_lies_between_its_ends_and_the_ends_that_are_closed(within, inside, outside):
    limits = Limits(within=within)
    assert all(limits.hold(number) for number in inside)
    assert not any(limits.hold(number) for number in [*outside, math.nan, math.inf, -math.inf])


def test_without_an_interval_every_number_holds():
    assert all(Limits().hold(number) for number in (0, -1e308, math.inf, math.nan))
    assert Limits().ends == (-math.inf, math.inf)
    assert Limits(within="(-2, 0.5]").ends == (-2, 0.5)


# --- values ---


VALUES = {
    "none": None,
    "truth": False,
    "whole": -3,
    "real": 0.5,
    "nan": math.nan,
    "text": "a",
    "wholes": (1, 2),
    "reals": (0.5, 1),
    "texts": ("a", "b"),
    "list": ["a"],
    "numbers by name": {"a": 1},
    "texts by name": {"a": "b"},
    "numbers by number": {1: 2},
    "class of layer": nn.Linear,
    "other class": Odd,
    "layer": nn.Linear(1, 1),
    "object": Odd(),
    "function": len,
    "unsaved": {"function": "len"},
}
DICTS = {"numbers by name", "texts by name", "numbers by number", "unsaved"}
CALLABLES = {"class of layer", "other class", "layer", "function", "unsaved"}


@pytest.mark.parametrize(
    ("hint", "fitting"),
    [
        (int, {"whole"}),
        (float, {"whole", "real", "nan"}),
        (bool, {"truth"}),
        (str, {"text"}),
        (int | None, {"whole", "none"}),
        (Union[int, None], {"whole", "none"}),  # noqa: UP007
        (bool | str, {"truth", "text"}),
        (float | dict[str, float], {"whole", "real", "nan", "numbers by name"}),
        (tuple[int, ...], {"wholes"}),
        (tuple[float, ...], {"wholes", "reals"}),
        (Sequence[str], {"texts", "list"}),
        (list[str], {"texts", "list"}),
        (list, {"wholes", "reals", "texts", "list"}),
        (dict[str, int], {"numbers by name"}),
        (Mapping[str, Any], DICTS - {"numbers by number"}),
        (dict, DICTS),
        (nn.Module, {"layer", "unsaved"}),
        (Odd, {"object", "unsaved"}),
        (type[nn.Module], {"class of layer"}),
        (Callable[[int], int], CALLABLES),
        (Sampler, CALLABLES),
        (Any, VALUES.keys()),
        (Unasked, VALUES.keys()),
        (Literal["a"], VALUES.keys()),
    ],
    ids=lambda value: ", ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_value_is_of_the_type_that_is_annotated(hint, fitting):
    """Whole numbers serve as real ones and lists as tuples; truths are no numbers, and texts no sequences."""
    assert {name for name, value in VALUES.items() if fits(value, hint, Limits())} == set(fitting)


@pytest.mark.parametrize(
    ("hint", "inside", "outside"),
    [
        (int, [1, 5], [0, -1]),
        (float, [1, 1.5], [0.999, math.nan, math.inf]),
        (int | None, [1, None], [0]),
        (str | float, ["a", "b", 1.0], ["c", 0.0]),
        (bool | str, ["a", True, False], ["c"]),
        (tuple[float, ...], [(1, 2.5), ()], [(1, 0.5)]),
        (float | dict[str, float], [1, {"c": 1.0}], [{"a": 1.0, "c": 0.0}, {"function": 0.0}]),
        (str | dict[str, str], ["a", {"c": "a"}], [{"a": "c"}]),
        (str | Odd, ["a", Odd()], ["c"]),
    ],
    ids=str,
)
def test_texts_are_held_against_choices_and_numbers_against_bounds_wherever_they_stand(hint, inside, outside):
    limits = Limits(("a", "b"), "[1, inf)")
    assert all(fits(value, hint, limits) for value in inside)
    assert not any(fits(value, hint, limits) for value in outside)


# --- words ---


@pytest.mark.parametrize(
    ("hint", "limits", "sentence"),
    [
        (int, Limits(within="[1, inf)"), "a whole number from 1"),
        (float, Limits(within="(0, inf)"), "a number above 0"),
        (float, Limits(within="[0.5, inf)"), "a number from 0.5"),
        (float | None, Limits(within="(0, 1]"), "a number in (0, 1] or None"),
        (float, Limits(), "a number"),
        (str, Limits(("full", "kron", "diag")), "'full', 'kron' or 'diag'"),
        (str | float, Limits(("median",), "(0, inf)"), "'median' or a number above 0"),
        (bool | None, Limits(), "True, False or None"),
        (tuple[float, ...], Limits(within="(0, 1)"), "a tuple of numbers in (0, 1)"),
        (float | dict[str, float], Limits(within="(0, inf)"), "a number above 0 or a dict of numbers above 0"),
        (str | dict[str, str], Limits(("a", "b")), "'a', 'b' or a dict of these"),
        (Sequence[str] | type[nn.Module], Limits(), "a list of texts or a class of Module"),
        (tuple[type[nn.Module], ...], Limits(), "a tuple of classes of Module"),
        (Callable[[int], int] | Odd, Limits(), "a function or an Odd"),
        (Mapping[str, Any], Limits(), "a dict of values"),
        (dict, Limits(), "a dict"),
    ],
    ids=str,
)
def test_what_is_allowed_is_said_in_words(hint, limits, sentence):
    assert words(hint, limits) == sentence
