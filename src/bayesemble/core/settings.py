"""Settings are dataclasses whose fields say what they take: here they are declared, checked, and turned into JSON.

    rank: int = setting(20, "deviations in the low-rank part", least=2)
    start: float = setting(0.75, "share of training before snapshots", within="[0, 1)")

    def __post_init__(self) -> None:
        validate(self)

Methods, schedules, likelihoods, priors and executors are all written `{"class": name, field: value, ...}`.
"""

import dataclasses
import reprlib
from collections.abc import Iterable
from functools import cache
from numbers import Integral, Real
from typing import Any, get_type_hints

from bayesemble.core.annotations import Limits, fits, words
from bayesemble.core.errors import SettingError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    least: float | None = None,
    above: float | None = None,
    within: str | None = None,
    kw_only: bool = False,
) -> Any:
    """Declare a field with its default, the sentence that documents it everywhere, and what `validate` lets through.

    The annotation says whether it takes whole numbers, None, texts and so on. Choices and bounds hold for each item of
    a tuple and each value of a dict too.

    Args:
        default: Its value if none is given; `dataclasses.MISSING` if one is always needed.
        help: What it means.
        choices: The texts it may be.
        least: The smallest number it may be.
        above: A number that it has to be larger than.
        within: Both ends of its numbers: "[0, 1)" has 0 in it, but not 1.
        kw_only: Whether it can only be given by name.
    """
    bounds = [] if within is None else [within]
    bounds += [] if least is None else [f"[{least}, inf)"]
    bounds += [] if above is None else [f"({above}, inf)"]
    if len(bounds) > 1:
        raise TypeError(f"a setting takes one of least, above and within, got {' and '.join(bounds)}")
    limits = Limits(tuple(choices), bounds[0] if bounds else None)
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits}, kw_only=kw_only)


def validate(settings: Any) -> None:
    """Refuse a dataclass with a value that its field does not take; numbers of numpy become those of Python."""
    cls: type = type(settings)
    for name, hint, limits in _fields(cls):
        value = _plain(getattr(settings, name))
        if not fits(value, hint, limits):
            raise SettingError(f"{name} is {words(hint, limits)}, got {_SHORT.repr(value)}")
        object.__setattr__(settings, name, value)  # the dataclass may be frozen


def allowed(cls: type) -> dict[str, str]:
    """What each field of a dataclass takes, in words."""
    return {name: words(hint, limits) for name, hint, limits in _fields(cls)}


@cache
def _fields(cls: type) -> list[tuple[str, Any, Limits]]:
    """Name, annotation and limits of each field that is given, not derived."""
    hints = get_type_hints(cls)
    given = [field for field in dataclasses.fields(cls) if field.init]
    return [(field.name, hints[field.name], field.metadata.get("limits", Limits())) for field in given]


def _plain(value: Any) -> Any:
    """Numbers of any library as those of Python."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


def dump(value: Any) -> Any:
    """Turn settings into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {key: dump(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and not dataclasses.is_dataclass(value):
        return {"function": getattr(value, "__qualname__", type(value).__qualname__)}  # named, but not saved
    raise SettingError(f"settings are saved as JSON, which cannot hold {value!r}; use numbers, texts or names")


def parse(value: Any, kind: type, nested: Iterable[type] = ()) -> Any:
    """Turn the JSON of `dump` back into settings of a kind, whose fields may hold those of the nested kinds.

    The class is found by its name among all that derive from the kind, also those that a user has defined.
    """
    known = {kind.__name__: kind} | _subclasses(kind)
    name = value.get("class") if isinstance(value, dict) else None
    if name not in known:
        came = _SHORT.repr(value) if name is None else f"those of {name}"
        raise SettingError(
            f"settings of {', '.join(sorted(known))} were needed, got {came}; a class of your own has to be defined "
            "or imported first, on the command line by --plugin FILE"
        )
    fields = {key: _revived(item, nested) for key, item in value.items() if key != "class"}
    try:
        return known[name](**fields)
    except TypeError as error:
        raise SettingError(f"settings of {name} do not fit this version: {error}") from error


def _parse_nested(value: Any, kinds: Iterable[type]) -> Any:
    for kind in kinds:
        if value["class"] in {kind.__name__, *_subclasses(kind)}:
            return parse(value, kind, kinds)
    raise SettingError(f"settings hold {value['class']!r}, which is not known here")


def _subclasses(kind: type) -> dict[str, type]:
    """All classes that derive from one, by name; of two with the same name, the library's own, else the newer."""
    found: dict[str, type] = {}
    direct: list[type] = kind.__subclasses__()
    for one in direct:
        for name, cls in ({one.__name__: one} | _subclasses(one)).items():
            if name not in found or not found[name].__module__.startswith("bayesemble."):
                found[name] = cls
    return found


def _revived(value: Any, nested: Iterable[type]) -> Any:
    if isinstance(value, dict):
        plain = not isinstance(value.get("class"), str)
        return {key: _revived(item, nested) for key, item in value.items()} if plain else _parse_nested(value, nested)
    return tuple(_revived(item, nested) for item in value) if isinstance(value, list) else value


def parse_value(text: str) -> Any:
    """What a person wrote as a setting: a number, true, false, none, or else a word."""
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def whole(value: Any, message: str, least: int | None = 1) -> int:
    """A whole number of any library as one of Python; refuse anything else, or less, with a sentence."""
    number = int(value) if isinstance(value, Integral) else None
    if number is None or (least is not None and number < least):
        raise SettingError(message)
    return number


def require(holds: bool, message: str) -> None:
    """Refuse a setting with a sentence."""
    if not holds:
        raise SettingError(message)
