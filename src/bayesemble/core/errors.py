"""The errors of the library. Each message says what was needed, what came, and what to do."""

from typing import Any


class BayesembleError(Exception):
    """Base of every error this library raises on purpose."""


class SettingError(BayesembleError, ValueError):
    """A setting has a value that cannot be honoured."""


class DataError(BayesembleError, ValueError):
    """The data cannot be trained on or predicted from."""


class ModelError(BayesembleError, ValueError):
    """The network cannot be turned into an ensemble as it is."""


class ExecutionError(BayesembleError, RuntimeError):
    """An executor cannot run this network."""


class TrainingError(BayesembleError, RuntimeError):
    """Training went wrong: a loss is no longer finite."""


class CheckpointError(BayesembleError, RuntimeError):
    """A run folder is missing, damaged, foreign, or belongs to another run."""


class MissingExtraError(BayesembleError, ImportError):
    """Something needs a package that is not installed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended training after a whole step; what there was then is not lost."""

    def __init__(self, message: str, ensemble: Any) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        """The ensemble as it was: it predicts and can be saved. None if its numbers were not finite."""
