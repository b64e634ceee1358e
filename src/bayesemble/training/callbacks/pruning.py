"""Pruning by Optuna: trials that do not promise much end early."""

from __future__ import annotations

from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.core.lazy import import_extra
from bayesemble.core.members import State
from bayesemble.training.callbacks.base import Callback, figures
from bayesemble.training.run_folders.checkpoint import Row


class OptunaPruning(Callback):
    """Report a figure of every epoch to an Optuna trial, and raise `optuna.TrialPruned` if its pruner says so.

    What Optuna minimises takes the trial:

        def objective(trial):
            method = be.DeepEnsemble(learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True))
            pruning = be.callbacks.OptunaPruning(trial)
            ensemble = be.fit(task, method, data, epochs=20, validation=held_out, callbacks=[pruning])
            return ensemble.history[-1]["validation_loss"]
    """

    def __init__(self, trial: Any, figure: str = "validation_loss") -> None:
        self._optuna = import_extra("optuna", "be.callbacks.OptunaPruning needs optuna", "optuna")
        self.trial, self.figure = trial, figure

    def on_epoch(self, state: State, row: Row) -> None:
        """Report the figure, and raise if the trial is to end."""
        found = figures(row)
        if self.figure not in found:
            hint = "; pass validation=(x, y) to fit" if self.figure == "validation_loss" else ""
            raise SettingError(f"epochs have no figure {self.figure!r}, but {', '.join(found)}{hint}")
        self.trial.report(found[self.figure], step=row["epoch"])
        if self.trial.should_prune():
            raise self._optuna.TrialPruned(f"epoch {row['epoch']}: {self.figure} {found[self.figure]:.4g}")
