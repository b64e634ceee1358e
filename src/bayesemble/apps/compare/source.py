"""Run folders of the command line: beside its checkpoints, a run knows its data, its network and its settings.

    RUN/source.json        data and what their files held, seed, rows, foreign data, dropout, method, epochs, batch size

So a run can be opened again by its folder alone, and a comparison knows whether a run in its folder is one of its own.
Paths of data are kept whole: a run folder may be moved as long as its data stays.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import read_json, understood, write_json
from bayesemble.core.settings import setting, validate
from bayesemble.data import Split
from bayesemble.data.sources import data_fingerprint, data_stamp, load_data
from bayesemble.methods import Method
from bayesemble.models import mlp
from bayesemble.predictive import LocationScalePredictive, Predictive
from bayesemble.task.likelihoods import Categorical, HeteroscedasticGaussian
from bayesemble.task.task import Task
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.incoming.parts import parse_method
from bayesemble.training.run_folders.loading import load

SOURCE = "source.json"


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """Where the rows of a run come from, what its network needs to be made again, and how it is trained."""

    data: str
    """A text that `data.sources.load_data` takes."""
    seed: int
    dropout: float = setting(0.0, "rate of the dropout layers", within="[0, 1)", kw_only=True)
    rows: int | None = setting(None, "how many rows to train on; None takes all", least=1, kw_only=True)
    ood: str | None = None
    method: dict[str, Any]
    """Its settings, as `settings.dump` gives them."""
    epochs: int = setting(MISSING, "passes over the data", least=1, kw_only=True)
    batch_size: int | None = setting(None, "rows per step; None takes all", least=1, kw_only=True)
    record: bool = False
    contents: dict[str, Any] = field(default_factory=dict)
    """What tells the files of "data" and "ood" from others: see `contents_of`."""

    def __post_init__(self) -> None:
        validate(self)

    def split(self) -> Split:
        """The rows, the same each time; refused if they have changed."""
        if changed := _differing(self.contents, contents_of(self.data, self.ood)):
            raise CheckpointError(
                f"{getattr(self, changed)} is not what it was when the run was made; "
                "restore the file, or train again in another folder"
            )
        return load_split(self.data, self.seed, self.rows, self.ood)

    def make_method(self) -> Method:
        """The method with its settings; refused if nobody registered it."""
        return parse_method(self.method)

    def task(self, split: Split) -> Task:
        """A small network for the data, with the likelihood that its targets ask for."""
        network = partial(mlp, split.x_train.shape[1], [64, 64], split.num_classes or 2, dropout=self.dropout)
        return Task(network, HeteroscedasticGaussian() if split.num_classes is None else Categorical())

    def write(self, folder: Path) -> None:
        """Put it into a run folder."""
        write_json(folder / SOURCE, asdict(self))

    def check(self, folder: Path) -> None:
        """Refuse a folder that holds a run of other settings."""
        if not (folder / SOURCE).is_file():
            return
        here, there = asdict(self), asdict(RunSource.read(folder))
        contents = here.pop("contents")
        for name, value in here.items():
            if there[name] != value:
                raise CheckpointError(
                    f"{folder} holds a run of other settings: {name} was {there[name]}, now it is {value}; "
                    "choose another folder for the results, or delete this one"
                )
        if changed := _differing(there["contents"], contents):
            raise CheckpointError(
                f"{folder} holds a run on other rows: {here[changed]} has changed since; restore the file, choose "
                "another folder for the results (--out), or delete this one to train again"
            )

    @staticmethod
    def read(folder: Path) -> RunSource:
        """Read it from a run folder."""
        path = folder / SOURCE
        content = read_json(path, "a run of the command line")
        with understood(path, "does not say where the rows of the run come from"):
            return RunSource(**content)


def contents_of(data: str, ood: str | None) -> dict[str, Any]:
    """What tells the files of data and foreign data from others, by "data" and "ood"; embedded sets have none."""
    found = {"data": _fingerprint(data, data_stamp(data))}
    if ood is not None:
        found["ood"] = _fingerprint(ood, data_stamp(ood))
    return {name: fingerprint for name, fingerprint in found.items() if fingerprint is not None}


@lru_cache(maxsize=2)
def _fingerprint(text: str, _: int) -> str | None:
    return data_fingerprint(text)


def _differing(before: dict[str, Any], here: dict[str, Any]) -> str | None:
    """Which of data and foreign data is not what it was."""
    return next((name for name in ("data", "ood") if before.get(name) != here.get(name)), None)


def load_split(data: str, seed: int, rows: int | None, ood: str | None) -> Split:
    """The rows of a data set; the last ones are kept, as large sets take seconds to read and runs share them."""
    texts = (data,) if ood is None else (data, ood)
    return _load_split(data, seed, rows, ood, tuple(data_stamp(text) for text in texts))


@lru_cache(maxsize=1)
def _load_split(data: str, seed: int, rows: int | None, ood: str | None, _: tuple[int, ...]) -> Split:
    return load_data(data, seed, rows, ood)


def open_run(folder: str | Path) -> tuple[Ensemble, Split]:
    """The ensemble of a run folder, and its rows."""
    source = RunSource.read(Path(folder))
    split = source.split()
    return load(folder, source.task(split).model), split


def predict_in_units(ensemble: Ensemble, inputs: Any, split: Split, keep_members: bool = True) -> Predictive:
    """A prediction in the original units of the target."""
    predictive = ensemble.predict(inputs, keep_members=keep_members)
    if isinstance(predictive, LocationScalePredictive):
        return predictive.rescale(split.target_shift, split.target_scale)
    return predictive


def targets_of_test(split: Split) -> Tensor:
    """The targets of the test rows, in their original units."""
    targets = torch.as_tensor(split.y_test)
    return targets if split.num_classes is not None else split.target_shift + split.target_scale * targets
