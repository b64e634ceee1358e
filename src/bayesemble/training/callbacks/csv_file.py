"""The history as a table, a line after every epoch."""

from __future__ import annotations

import csv
from pathlib import Path

from bayesemble.core.errors import SettingError
from bayesemble.core.files import replacing
from bayesemble.core.members import State
from bayesemble.training.callbacks.base import Callback, figures
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.run_folders.checkpoint import Row


class CSV(Callback):
    """Write a CSV file with a line for every epoch, as it ends.

    A run that is resumed writes the file anew, with the epochs in its history. Another file is not replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines: list[dict[str, float]] = []
        self._columns: list[str] = []

    def on_start(self, ensemble: Ensemble) -> None:
        """Write down what the run has behind it."""
        if self.path.exists() and not ensemble.history:
            raise SettingError(f"{self.path} exists, and a new run would replace it; choose another file, or remove it")
        self._lines, self._columns = [], []
        for row in ensemble.history:
            self._note(figures(row))
        self._write()

    def on_epoch(self, state: State, row: Row) -> None:
        """Add a line; a column that was not there before takes the whole file."""
        line = figures(row)
        if self._note(line):
            self._write()
        else:
            with self.path.open("a", newline="") as file:
                self._writer(file).writerow(line)

    def _note(self, line: dict[str, float]) -> bool:
        """Keep a line; whether there are new columns."""
        new = [name for name in line if name not in self._columns]
        self._lines.append(line)
        self._columns += new
        return bool(new)

    def _write(self) -> None:
        with replacing(self.path, SettingError) as temporary, temporary.open("w", newline="") as file:
            writer = self._writer(file)
            if self._columns:
                writer.writeheader()
            writer.writerows(self._lines)

    def _writer(self, file: object) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns)  # type: ignore[arg-type]
