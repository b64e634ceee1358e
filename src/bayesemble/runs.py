"""Run folders of the command line: beside its checkpoints, a run knows its data and its network.

    RUN/source.json        name of the data set, seed of the split, dropout of the network

So a run can be opened again by its folder alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bayesemble.data import Split, load_split
from bayesemble.ensemble import Ensemble, load
from bayesemble.errors import CheckpointError
from bayesemble.likelihoods import Categorical, HeteroscedasticGaussian
from bayesemble.models import mlp
from bayesemble.task import Task

SOURCE = "source.json"


@dataclass(frozen=True)
class Source:
    """Where the rows of a run come from, and what its network needs to be made again."""

    data: str
    seed: int
    dropout: float = 0.0

    def split(self) -> Split:
        """The rows, the same each time."""
        return load_split(self.data, self.seed)

    def task(self, split: Split) -> Task:
        """A small network for the data, with the likelihood that its targets ask for."""
        network = partial(mlp, split.x_train.shape[1], [64, 64], split.num_classes or 2, dropout=self.dropout)
        return Task(network, HeteroscedasticGaussian() if split.num_classes is None else Categorical())

    def write(self, folder: Path) -> None:
        """Put it into a run folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SOURCE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Source:
        """Read it from a run folder."""
        path = folder / SOURCE
        if not path.is_file():
            raise CheckpointError(f"{folder} is not a run of the command line: it has no {SOURCE}")
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return Source(str(found["data"]), int(found["seed"]), float(found["dropout"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} does not say where the rows of the run come from: {error!r}") from error


def open_run(folder: str | Path) -> tuple[Ensemble, Split]:
    """The ensemble of a run folder, and its rows."""
    source = Source.read(Path(folder))
    split = source.split()
    return load(folder, source.task(split).model), split
