"""Settings are frozen dataclasses: this turns them into JSON and back, and documents each field once.

Methods, schedules, likelihoods, priors and executors are all written `{"class": name, field: value, ...}`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from bayesemble.core.errors import SettingError


def setting(default: Any, help: str, *, kw_only: bool = False) -> Any:
    """Declare a field with its default and the one sentence that documents it everywhere."""
    return dataclasses.field(default=default, metadata={"help": help}, kw_only=kw_only)


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


def parse(value: Any, classes: Iterable[type], nested: Iterable[type] = ()) -> Any:
    """Turn the JSON of `dump` back into settings of one of the classes, whose fields may hold the nested ones."""
    known = {cls.__name__: cls for cls in classes}
    name = value.get("class") if isinstance(value, dict) else None
    if name not in known:
        raise SettingError(f"settings of {', '.join(sorted(known))} were needed, got {value!r}")
    fields = {key: _revived(item, nested) for key, item in value.items() if key != "class"}
    try:
        return known[name](**fields)
    except TypeError as error:
        raise SettingError(f"settings of {name} do not fit this version: {error}") from error


def _revived(value: Any, nested: Iterable[type]) -> Any:
    if isinstance(value, dict):
        plain = not isinstance(value.get("class"), str)
        return {key: _revived(item, nested) for key, item in value.items()} if plain else parse(value, nested)
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


def require(holds: bool, message: str) -> None:
    """Refuse a setting with a sentence."""
    if not holds:
        raise SettingError(message)
