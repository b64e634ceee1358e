"""Trackers of experiments: the figures of every epoch go to TensorBoard, Weights & Biases or MLflow.

Each imports its package when it is made, and names what to install if it is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesemble.core.lazy import import_extra
from bayesemble.core.members import State
from bayesemble.training.callbacks.base import Callback, figures
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.run_folders.checkpoint import Row


class TensorBoard(Callback):
    """Figures of every epoch as event files, for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        self._tensorboard = import_extra(
            "torch.utils.tensorboard", "be.callbacks.TensorBoard needs tensorboard", "tensorboard"
        )
        self.folder = Path(folder)
        self._writer: Any = None

    def on_start(self, ensemble: Ensemble) -> None:
        """Begin a file; of a run that is resumed, later steps in older files are hidden."""
        done = len(ensemble.history)
        self._writer = self._tensorboard.SummaryWriter(str(self.folder), purge_step=done + 1 if done else None)

    def on_epoch(self, state: State, row: Row) -> None:
        """Write the figures, at the number of the epoch."""
        for name, value in _all_but_epoch(row).items():
            self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()

    def on_end(self, ensemble: Ensemble) -> None:
        """Close the file."""
        self._writer.close()


class WandB(Callback):
    """Figures of every epoch for Weights & Biases; settings go to `wandb.init`, unless a run is under way already.

    Task, method, executor and seed are the run's config, under "bayesemble".
    """

    def __init__(self, **settings: Any) -> None:
        self._wandb = import_extra("wandb", "be.callbacks.WandB needs wandb", "wandb")
        self.settings = settings
        self._run: Any = None
        self._own = False

    def on_start(self, ensemble: Ensemble) -> None:
        """Begin a run, or take the one that is under way."""
        self._own = self._wandb.run is None
        self._run = self._wandb.init(**self.settings) if self._own else self._wandb.run
        self._run.config.update({"bayesemble": ensemble.describe()}, allow_val_change=True)

    def on_epoch(self, state: State, row: Row) -> None:
        """Log the figures, at the number of the epoch."""
        self._run.log(figures(row), step=row["epoch"])

    def on_end(self, ensemble: Ensemble) -> None:
        """Finish the run, if it was begun here."""
        if self._own:
            self._run.finish()


class MLflow(Callback):
    """Figures of every epoch for MLflow; settings go to `mlflow.start_run`, unless a run is under way already.

    Settings of the method are the run's parameters.
    """

    def __init__(self, **settings: Any) -> None:
        self._mlflow = import_extra("mlflow", "be.callbacks.MLflow needs mlflow", "mlflow")
        self.settings = settings
        self._own = False

    def on_start(self, ensemble: Ensemble) -> None:
        """Begin a run, or take the one that is under way."""
        self._own = self._mlflow.active_run() is None
        if self._own:
            self._mlflow.start_run(**self.settings)
        method = {f"method.{name}": str(value)[:250] for name, value in ensemble.describe()["method"].items()}
        self._mlflow.log_params(method | {"seed": ensemble.seed, "executor": str(ensemble.executor)})

    def on_epoch(self, state: State, row: Row) -> None:
        """Log the figures, at the number of the epoch."""
        self._mlflow.log_metrics(_all_but_epoch(row), step=row["epoch"])

    def on_end(self, ensemble: Ensemble) -> None:
        """End the run, if it was begun here."""
        if self._own:
            self._mlflow.end_run()


def _all_but_epoch(row: Row) -> dict[str, float]:
    return {name: value for name, value in figures(row).items() if name != "epoch"}
