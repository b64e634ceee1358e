"""What a comparison is asked for: one data set, several methods with their settings, and how long to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesemble.apps.compare.budget import BUDGETS
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.compare.source import RunSource, contents_of, load_split
from bayesemble.core import settings
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.settings import parse_value, setting, validate
from bayesemble.data import Split
from bayesemble.methods import METHODS, Method, make_method

DEFAULT_METHODS = "map,deep_ensemble,repulsive,svgd,ecmp,mc_dropout,swag,subspace,csgmcmc,laplace"
_DROPOUT_RATE = 0.1


@dataclass(frozen=True)
class Request:
    """The settings of a comparison, which repeat it."""

    data: str = setting("digits", "an embedded data set, a file or a folder: see `bayesemble.data.sources`")
    ood: str | None = setting(None, "foreign data, like `data`; None takes that of an embedded set, if it has any")
    methods: str = setting(DEFAULT_METHODS, "names separated by commas, settings after a colon: map,swag:rank=5")
    members: int = setting(5, "members of each ensemble", least=1)
    epochs: int | None = setting(None, "passes over the data; None takes as many as suit the data set", least=1)
    seeds: int = setting(3, "how many times to repeat, each with its own split and start", least=1)
    batch_size: int = setting(64, "rows per step; methods that need all rows, such as hmc, take all", least=1)
    budget: str | None = setting(
        None,
        "what every method gets as much of as a deep ensemble takes; None gives every member the same epochs",
        choices=BUDGETS,
    )
    rows: int | None = setting(None, "how many rows to train on; None takes all", least=1)
    record: bool = setting(False, "whether members are kept after every epoch, for `bayesemble landscape`")

    def __post_init__(self) -> None:
        validate(self)

    def split(self) -> Split:
        """The rows of the first seed."""
        return load_split(self.data, 0, self.rows, self.ood)

    def source(self, method: Method, seed: int, epochs: int) -> RunSource:
        """What one run of a method is made of."""
        return RunSource(
            data=self.data,
            seed=seed,
            dropout=_DROPOUT_RATE if method.keeps_dropout else 0.0,
            rows=self.rows,
            ood=self.ood,
            method=settings.dump(method),
            epochs=epochs,
            batch_size=None if method.full_batch else self.batch_size,
            record=self.record,
            contents=contents_of(self.data, self.ood),
        )


def read_request(path: str | Path) -> Request:
    """What an earlier comparison was asked for, from its `results.json` or its folder."""
    command: Mapping[str, Any] = Comparison.read(path).command
    try:
        return Request(**command)
    except (TypeError, SettingError) as error:
        raise CheckpointError(f"{path} does not say how to repeat its comparison: {error}") from error


def parse_methods(text: str, members: int) -> dict[str, Method]:
    """Methods by the words that ask for them, from `name,name:key=value,key=value,name`.

    A part with `=` and no colon belongs to the name before it.
    """
    labels: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part:
            if not labels:
                raise SettingError(f"the setting {part!r} stands before any method; write name:{part}")
            labels[-1] += ("," if ":" in labels[-1] else ":") + part
        else:
            labels.append(part)
    if not labels:
        raise SettingError(f"no method was named; choose from {', '.join(METHODS)}")
    if len(set(labels)) < len(labels):
        raise SettingError(f"each method can be compared once, got {text!r}")
    return {label: _parse_method(label, members) for label in labels}


def _parse_method(label: str, members: int) -> Method:
    name, _, tail = label.partition(":")
    chosen = {}
    for pair in filter(None, tail.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(f"a setting is written key=value, got {pair!r} in {label!r}")
        chosen[key.strip()] = parse_value(value.strip())
    if name in METHODS and "num_members" not in METHODS[name].fixed:
        chosen.setdefault("num_members", members)
    return make_method(name, **chosen)
