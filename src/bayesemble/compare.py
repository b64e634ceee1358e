"""Methods side by side on one data set: every method, every seed, one table.

Each run is kept in a folder of its own below `out`, so that the same command goes on where it was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesemble import checkpoint as checkpoints
from bayesemble.comparison import Comparison, Result
from bayesemble.data import Split, find_dataset
from bayesemble.ensemble import Ensemble
from bayesemble.errors import SettingError
from bayesemble.fit import fit
from bayesemble.methods import METHODS, Method, make_method
from bayesemble.methods.method import full_batch, keeps_dropout
from bayesemble.metrics import summarise
from bayesemble.predictive import NormalPredictive, Predictive
from bayesemble.runs import Source
from bayesemble.settings import require

_DROPOUT = 0.1  # rate of the dropout layers that a method asks for
DEFAULT_METHODS = (
    "map,deep_ensemble,deep_ensemble:bootstrap=true,deep_ensemble:anchored=true,deep_ensemble:adversarial=0.05"
)


@dataclass(frozen=True)
class Entry:
    """A method with the words that asked for it."""

    label: str
    method: Method


def compare(
    data: str = "digits",
    methods: str = DEFAULT_METHODS,
    *,
    members: int = 5,
    epochs: int | None = None,
    seeds: int = 3,
    batch_size: int = 64,
    out: str | Path = "comparison",
    record: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> Comparison:
    """Train every method with every seed and score it on held-out and on foreign data.

    Args:
        data: Name of an embedded data set.
        methods: Names separated by commas, with settings after a colon: `map,deep_ensemble:bootstrap=true`.
        members: Number of members of each ensemble.
        epochs: Passes over the data; None takes as many as suit the data set.
        seeds: How many times to repeat, each with its own split and start.
        batch_size: Rows per step; methods that need the whole data, such as hmc, take all.
        out: Folder for `results.json` and the runs.
        record: Keep the members after every epoch, for `bayesemble landscape`.
        progress: Show progress bars, if there is a terminal.
        say: Called with a line before each run.
    """
    require(seeds >= 1, f"at least one seed is needed, got {seeds}")
    entries, root, results = parse_methods(methods, members), Path(out), []
    epochs = find_dataset(data).epochs if epochs is None else epochs
    for seed in range(seeds):
        split = Source(data, seed).split()
        for entry in entries:
            say(f"{entry.label}, seed {seed + 1} of {seeds}")
            folder = root / "runs" / _folder_name(entry.label) / f"seed-{seed}"
            source = Source(data, seed, dropout=_DROPOUT if keeps_dropout(entry.method) else 0.0)
            source.write(folder)
            ensemble = fit(
                source.task(split),
                entry.method,
                (split.x_train, split.y_train),
                epochs=epochs,
                batch_size=None if full_batch(entry.method) else batch_size,
                seed=seed,
                checkpoint=folder,
                checkpoint_every=epochs,
                resume=checkpoints.exists(folder),
                record="epoch" if record else None,
                progress=progress,
            )
            cost = {"train_seconds": sum(row["seconds"] for row in ensemble.history)}
            relative = folder.relative_to(root).as_posix()
            results.append(Result(entry.label, seed, relative, score(ensemble, split), cost))
    command = {"data": data, "methods": methods, "members": members, "epochs": epochs, "seeds": seeds}
    described = {"name": data, "kind": split.kind, "num_classes": split.num_classes}
    comparison = Comparison(command | {"batch_size": batch_size}, described, results)
    comparison.write(root)
    return comparison


def score(ensemble: Ensemble, split: Split) -> dict[str, float]:
    """Scores on the test rows, in the original units of the target, and on foreign rows."""

    def predict(inputs: Any) -> Predictive:
        predictive = ensemble.predict(inputs)
        if isinstance(predictive, NormalPredictive):
            return predictive.rescale(split.target_shift, split.target_scale)
        return predictive

    targets = split.y_test
    if split.num_classes is None:
        targets = split.target_shift + split.target_scale * targets
    foreign = None if split.x_foreign is None else predict(split.x_foreign)
    return summarise(predict(split.x_test), targets, foreign)


def parse_methods(text: str, members: int) -> list[Entry]:
    """Read `name,name:key=value,key=value,name`; a part with `=` and no colon belongs to the name before it."""
    words: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part:
            if not words:
                raise SettingError(f"the setting {part!r} stands before any method; write name:{part}")
            words[-1] += ("," if ":" in words[-1] else ":") + part
        else:
            words.append(part)
    if not words:
        raise SettingError(f"no method was named; choose from {', '.join(METHODS)}")
    if len(set(words)) < len(words):
        raise SettingError(f"each method can be compared once, got {text!r}")
    return [_entry(word, members) for word in words]


def _entry(word: str, members: int) -> Entry:
    name, _, tail = word.partition(":")
    settings = {}
    for pair in filter(None, tail.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(f"a setting is written key=value, got {pair!r} in {word!r}")
        settings[key.strip()] = _value(value.strip())
    fixed = getattr(METHODS.get(name), "keywords", {})
    if "num_members" not in fixed:
        settings.setdefault("num_members", members)
    return Entry(word, make_method(name, **settings))


def _value(text: str) -> Any:
    """A number, true, false, none, or else a word."""
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _folder_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label)
