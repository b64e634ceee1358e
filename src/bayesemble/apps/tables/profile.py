"""What a run remembers of the rows it was made from, in `RUN/profile.json`: by it, others are known to be like them.

Each column, each kind of doubt and the surprise of the targets is kept as a histogram. The edges of ordered values are
quantiles, so the shares at or below each edge are those of the rows themselves, not estimates. Columns are those of the
training rows; doubt, surprise and errors are of rows that were not trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.apps.tables.description import Description
from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import json_text, read_json, understood, write_json
from bayesemble.core.settings import require
from bayesemble.data.schema import Encoded, Schema
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive

PROFILE = "profile.json"
_MOST_EDGES = 128
_MOST_NUMBERS = 200_000  # a wide table has fewer edges for each column
_MOST_PAIRS = 2_000
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """How often values fell between edges, or how often each category came.

    Ordered values are counted in (number of edges + 2) bins: missing, at most edge 0, between edge i - 1 and edge i
    (which is in it), and above the last edge. Categories, which have no edges, are counted by their numbers.
    """

    edges: npt.NDArray[np.float32] | None
    counts: Counts

    def __post_init__(self) -> None:
        whole = self.counts.ndim == 1 and bool((self.counts >= 0).all()) and self.counts.sum() > 0
        if self.edges is not None:
            rising = self.edges.ndim == 1 and bool((np.diff(self.edges) > 0).all())
            whole &= rising and len(self.counts) == len(self.edges) + 2
        require(whole, "a histogram of it is not whole")

    @staticmethod
    def of(values: npt.NDArray[Any], most_edges: int = _MOST_EDGES) -> Histogram:
        """The histogram of numbers, where NaN is missing, with edges at their quantiles."""
        present = np.sort(values[np.isfinite(values)].astype(np.float32))
        ranks = np.linspace(0, max(0, len(present) - 1), most_edges).round().astype(int)
        edges = np.unique(present[ranks] if len(present) else present)
        return Histogram(edges, _count(edges, values, len(edges) + 2))

    @staticmethod
    def of_codes(codes: npt.NDArray[np.int64], size: int) -> Histogram:
        """The histogram of categories that are numbered from 0 to size - 1."""
        return Histogram(None, np.bincount(codes, minlength=size).astype(np.int64))

    def count(self, values: npt.NDArray[Any]) -> Counts:
        """How many of some other values fall into each bin."""
        return _count(self.edges, values, len(self.counts))

    def quantile(self, counts: Counts, level: float) -> float:
        """The edge that a share of the present values lies at or below; NaN without values."""
        assert self.edges is not None
        upto = np.cumsum(counts[1:])
        if not len(self.edges) or upto[-1] == 0:
            return float("nan")
        found = int(np.searchsorted(upto, level * upto[-1]))
        return float(self.edges[min(found, len(self.edges) - 1)])

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold; each edge in the few digits that single precision needs."""
        edges = None if self.edges is None else [float(str(edge)) for edge in self.edges]
        return {"edges": edges, "counts": self.counts.tolist()}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Histogram:
        """The histogram back, with every part checked."""
        edges = values["edges"]
        return Histogram(None if edges is None else np.array(edges, np.float32), np.array(values["counts"], np.int64))


def _count(edges: npt.NDArray[np.float32] | None, values: npt.NDArray[Any], size: int) -> Counts:
    if edges is None:
        return np.bincount(values, minlength=size).astype(np.int64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    bins = np.where(np.isnan(single), 0, 1 + np.searchsorted(edges, single, side="left"))
    return np.bincount(bins, minlength=size).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Profile:
    """What rows of a run's own world are like."""

    columns: dict[str, Histogram]
    """Standardised numbers, or numbers of categories, by column."""
    doubt: dict[str, Histogram]
    """By name: see `doubts_of`. Empty if no row was held out."""
    surprise: Histogram | None
    """Of - log p(target)."""
    held_out: int
    """How many rows doubt and surprise are of."""
    unlike: int
    """How many of them are unlike the training data."""
    pairs: tuple[tuple[float, float], ...]
    """Doubt and loss (see `losses_of`) of some of them."""

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "columns": {name: one.to_json() for name, one in self.columns.items()},
            "doubt": {name: one.to_json() for name, one in self.doubt.items()},
            "surprise": None if self.surprise is None else self.surprise.to_json(),
            "held_out": self.held_out,
            "unlike": self.unlike,
            "pairs": [list(pair) for pair in self.pairs],
        }

    def write(self, folder: Path, description: Description) -> None:
        """Put it into the folder of the run with this description; it appears when it is complete."""
        write_json(folder / PROFILE, {"format": 1, "of": _digest(description), **self.to_json()})


def read_profile(folder: Path, description: Description) -> tuple[Profile | None, str]:
    """The profile of a run and "", or None and why there is none; a damaged one is refused."""
    path = folder / PROFILE
    if not path.is_file():
        return None, f"{folder} has no {PROFILE}, as runs of older versions: what comes in is not watched; fit again"
    values = read_json(path)
    if values.get("format") != 1:
        raise CheckpointError(f"{path} is of a version that this one cannot read")
    if values.get("of") != _digest(description):
        return None, f"{path} is of another state of the run: what comes in is not watched until `fit` has finished"
    with understood(path):
        surprise, pairs = values["surprise"], np.array(values["pairs"], dtype=np.float64).reshape(-1, 2)
        require(bool(np.isfinite(pairs).all()), "its doubts and losses are not numbers")
        profile = Profile(
            {name: Histogram.from_json(one) for name, one in values["columns"].items()},
            {name: Histogram.from_json(one) for name, one in values["doubt"].items()},
            None if surprise is None else Histogram.from_json(surprise),
            values["held_out"],
            values["unlike"],
            tuple((float(doubt), float(loss)) for doubt, loss in pairs),
        )
        names = [column.name for column in description.schema.columns]
        require(list(profile.columns) == names, "its columns are not those of the run")
        whole = all(isinstance(one, int) and one >= 0 for one in (profile.held_out, profile.unlike))
        require(whole and profile.unlike <= profile.held_out, "its numbers of rows make no sense")
    return profile, ""


def make_profile(
    schema: Schema, trained: Encoded, held_out: Sequence[Encoded], predict: Callable[[Encoded], Predictive]
) -> Profile:
    """The profile of rows that were trained on, and of rows with targets that were not."""
    edges = min(_MOST_EDGES, max(16, _MOST_NUMBERS // len(schema.columns)))
    sizes = iter(schema.category_sizes)
    columns = {}
    for name, values in column_values(schema, trained).items():
        codes = values.dtype == np.int64
        columns[name] = Histogram.of_codes(values, next(sizes) + 1) if codes else Histogram.of(values, edges)
    found = [_held_out(schema, rows, predict(rows)) for rows in held_out if len(rows.rows)]
    if not found:
        return Profile(columns, {}, None, 0, 0, ())
    joined = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    surprise, losses = joined.pop("surprise"), joined.pop("losses")
    first = next(iter(joined.values()))
    some = np.linspace(0, len(losses) - 1, min(len(losses), _MOST_PAIRS)).round().astype(int)
    usable = some[np.isfinite(first[some]) & np.isfinite(losses[some])]
    pairs = tuple((float(doubt), float(loss)) for doubt, loss in zip(first[usable], losses[usable], strict=True))
    return Profile(
        columns,
        {name: Histogram.of(values) for name, values in joined.items()},
        Histogram.of(surprise),
        len(losses),
        sum(int(rows.unlike.sum()) for rows in held_out),
        pairs,
    )


def column_values(schema: Schema, rows: Encoded) -> dict[str, npt.NDArray[Any]]:
    """The standardised numbers of each column, NaN where they are missing, or the numbers of its categories."""
    found: dict[str, npt.NDArray[Any]] = {}
    feature = category = 0
    for column in schema.columns:
        if column.kind == "category":
            found[column.name] = rows.categories[:, category]
            category += 1
            continue
        values, width = rows.numbers[:, feature], 5 if column.kind == "date" else 1
        found[column.name] = (
            np.where(rows.numbers[:, feature + width] > 0, np.nan, values) if column.missing else values
        )
        feature += width + column.missing
    return found


def doubts_of(predictive: Predictive) -> dict[str, npt.NDArray[Any]]:
    """How much each row is in doubt, in all and about what more data would settle; deviations of numbers."""
    if isinstance(predictive, ClassPredictive):
        return {"entropy": predictive.entropy.numpy(), "epistemic": predictive.epistemic.numpy()}
    assert isinstance(predictive, RealPredictive)
    return {"std": predictive.variance.sqrt().numpy(), "epistemic_std": predictive.epistemic.sqrt().numpy()}


def surprises_of(predictive: Predictive, targets: Any) -> npt.NDArray[Any]:
    """- log p(target) of each row."""
    return -predictive.log_prob(targets).numpy()


def losses_of(predictive: Predictive, targets: Any) -> npt.NDArray[Any]:
    """1 where the answer is the wrong class, 0 where it is right; of numbers, the absolute error of the mean."""
    losses = predictive.losses(targets).double()
    return (losses if isinstance(predictive, ClassPredictive) else losses.sqrt()).numpy()


def targets_of(schema: Schema, rows: Encoded) -> npt.NDArray[Any]:
    """Targets as predictions are scored with: numbers of classes, or numbers in their units."""
    assert rows.targets is not None
    return rows.targets if schema.task == "classification" else schema.decode_targets(rows.targets)


def _held_out(schema: Schema, rows: Encoded, predictive: Predictive) -> dict[str, npt.NDArray[Any]]:
    targets = targets_of(schema, rows)
    return {
        **doubts_of(predictive),
        "surprise": surprises_of(predictive, targets),
        "losses": losses_of(predictive, targets),
    }


def _digest(description: Description) -> str:
    return hashlib.sha256(json_text(description.to_json()).encode()).hexdigest()
