"""What the folder of a run on a table says about it, in `table.json`: enough to open it, to go on, or to repeat it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.core import settings
from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import read_json, understood, write_json
from bayesemble.core.settings import require, setting, validate
from bayesemble.data.schema import TASKS, Schema
from bayesemble.estimators.recipe import Recipe
from bayesemble.training.afterwards.calibration import Calibration
from bayesemble.training.run_folders import checkpoint as checkpoints

TABLE = "table.json"
_LARGEST_NETWORK = 100_000  # units or blocks, beyond which the file must be damaged


@dataclass(frozen=True)
class TableRequest:
    """What `bayesemble fit` is asked for."""

    file: str = setting("", "CSV or Parquet file with the rows to learn from")
    target: str = setting("", "name of the column to predict")
    task: str | None = setting(None, "what the target is; None goes by its values", choices=TASKS)
    test: float = setting(
        0.2, "share of the rows that are held out and only used for the final scores", within="[0, 1)"
    )
    seed: int = setting(0, "seed that all randomness derives from")
    recipe: Recipe = field(default_factory=Recipe)
    weight_column: str | None = setting(None, "column with the weights of rows, which is none to predict from")

    def __post_init__(self) -> None:
        validate(self)
        require(self.file != "", "a file with rows to learn from is needed")
        require(self.target != "", "the name of the target column is needed")
        require(self.target != self.weight_column, f"{self.target!r} is the target, and cannot weigh the rows too")


@dataclass(frozen=True, eq=False)
class Description:
    """The contents of `table.json`."""

    request: TableRequest
    schema: Schema
    network: Mapping[str, Any]
    """Arguments of `table_network`."""
    baseline: float | str
    """What the simplest prediction says: the mean of the training targets, or their most frequent class."""
    rows: dict[str, Any]
    """What tells the rows of the file from others: see `KnownRows.stamp`."""
    evaluation: Evaluation | None = None
    """Scores on the held-out rows, once training is over."""
    stretch: float = 1.0
    """How much wider the noise was made than it had been learned."""
    calibration: Calibration | None = None
    """What further rows said of its predictions: see `calibrate_table`."""

    def __post_init__(self) -> None:
        network, schema = self.network, self.schema
        require(
            isinstance(network, dict) and {"width", "depth", "dropout"} <= network.keys(), "its network is not whole"
        )
        sizes = {"num_numbers": schema.num_numbers, "category_sizes": schema.category_sizes}
        for name, size in sizes.items():
            require(network.get(name) == size, f"{name} of its network do not fit its columns")
        possible = isinstance(self.stretch, float) and 1 <= self.stretch < math.inf
        require(possible, f"stretch must be a number of at least 1, got {self.stretch!r}")
        for name in ("width", "depth"):
            possible = type(network[name]) is int and 0 <= network[name] <= _LARGEST_NETWORK
            require(possible, f"{name} must be a whole number up to {_LARGEST_NETWORK:,}, got {network[name]!r}")
        told = isinstance(self.rows, dict) and self.rows.keys() == {"columns", "count", "sum"}
        require(told, "it does not say which rows the file had")
        if schema.task == "classification":
            require(self.baseline in schema.target.categories, "its baseline is no class")
        else:
            require(isinstance(self.baseline, float) and math.isfinite(self.baseline), "its baseline is no number")

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "format": 1,
            "job": settings.dump(self.request),
            "schema": self.schema.to_json(),
            "network": dict(self.network),
            "baseline": self.baseline,
            "rows": self.rows,
            "evaluation": None if self.evaluation is None else self.evaluation.to_json(),
            "stretch": self.stretch,
        } | ({} if self.calibration is None else {"calibration": settings.dump(self.calibration)})

    def write(self, folder: Path) -> None:
        """Put it into a run folder; it appears when it is complete."""
        write_json(folder / TABLE, self.to_json())


def read_request(path: Path) -> TableRequest:
    """What was asked for, of the `table.json` of a run, or of its folder."""
    file = path if path.is_file() else path / TABLE
    return _parse_request(_read(file), file)


def read_description(folder: Path) -> Description:
    """Read it from a run folder, with every part checked."""
    path = folder / TABLE
    values = _read(path)
    request = _parse_request(values, path)
    with understood(path):
        schema, evaluation = Schema.from_json(values["schema"]), values["evaluation"]
        known = values.get("calibration")
        return Description(
            request,
            schema,
            values["network"],
            values["baseline"],
            values["rows"],
            None if evaluation is None else Evaluation.from_json(evaluation),
            values["stretch"],
            None if known is None else settings.parse(known, Calibration),
        )


def begin(folder: Path, description: Description) -> None:
    """Write the description before training; if a run is there already, it has to be the same one.

    A folder with files of another kind is refused: a run has a folder of its own.
    """
    if checkpoints.exists(folder):
        if not (folder / TABLE).is_file():
            raise CheckpointError(f"{folder} holds a run that is not of a table; choose another folder")
        held, here = (one.to_json() for one in (read_description(folder), description))
        if "calibration" in held:
            raise CheckpointError(f"{folder} holds a calibrated run, which `fit` would undo; choose another folder")
        asked, before = _flat(here["job"]), _flat(held["job"])
        for name in before | asked:
            if name != "file" and asked.get(name) != before.get(name):
                raise CheckpointError(
                    f"{folder} holds a run with {name} {before.get(name)}, now it is {asked.get(name)}; "
                    "repeat the command of that run to go on with it, or choose another folder"
                )
        if any(held[part] != here[part] for part in ("schema", "network", "baseline", "rows")):
            raise CheckpointError(
                f"the rows of {description.request.file} are not those that the run in {folder} began with; "
                "choose another folder"
            )
    elif (folder / TABLE).is_file():
        _read(folder / TABLE)  # of a run that was interrupted early, and not a file of somebody else
    elif folder.is_dir() and (others := sorted(one.name for one in folder.iterdir() if one.name[0] != ".")):
        raise CheckpointError(
            f"{folder} holds other files, such as {others[0]}; a run needs a new folder or an empty one, "
            f"for example {folder / 'run'}"
        )
    description.write(folder)


def _flat(request: dict[str, Any]) -> dict[str, Any]:
    """All settings by name, those of the recipe and of the method too."""
    values = request | request["recipe"] | request["recipe"]["settings"]
    return {name: value for name, value in values.items() if name not in ("recipe", "settings")}


def _parse_request(values: dict[str, Any], path: Path) -> TableRequest:
    with understood(path, "does not say how the run was made"):
        request: TableRequest = settings.parse(values.get("job"), TableRequest, [Recipe])
        request.recipe.make_method()
        return request


def _read(path: Path) -> dict[str, Any]:
    values = read_json(path, "a run of `bayesemble fit`")
    if values.get("format") != 1:
        raise CheckpointError(f"{path} is not of `bayesemble fit`, or of a version that this one cannot read")
    return values
