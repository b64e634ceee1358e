"""A run that further rows correct: what it predicts, writes and serves from then on is calibrated by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bayesemble.apps.tables.profile import make_profile, read_profile
from bayesemble.apps.tables.run import TableRun, inputs_of, open_table, rows_with_targets, taken
from bayesemble.core.errors import SettingError
from bayesemble.training.afterwards.calibration import parts
from bayesemble.training.run_folders.run_lock import locked


def calibrate_table(folder: str | Path, file: str | Path, *, level: float = 0.9, risk: float | None = None) -> TableRun:
    """Calibrate the run in a folder by rows that were not trained on, and keep that in the folder.

    What the run remembers of its doubt (`profile.json`) is that of the rows that thresholds are found by, which had no
    part in the temperature or the spread.

    Args:
        folder: Of a run that `fit` made.
        file: CSV or Parquet, with targets.
        level: How often intervals, or sets of classes, shall hold the target.
        risk: The largest acceptable error rate among answered rows, of classes.
    """
    with locked(folder):
        run = open_table(folder)
        if Path(file).resolve() == Path(run.description.request.file).resolve():
            raise SettingError(f"the run was trained on rows of {file}; calibrate it by rows that were not trained on")
        notes: list[str] = []
        rows = rows_with_targets(run.schema, file, notes)
        assert rows.targets is not None
        ensemble = run.ensemble.calibrate((inputs_of(rows), rows.targets), level=level, risk=risk)
        assert ensemble.calibration is not None
        calibrated = replace(run, ensemble=ensemble, notes=(*run.notes, *notes))
        corrected = ensemble.calibration.temperature is not None or ensemble.calibration.spread is not None
        apart = taken(rows, parts(len(rows.rows))[1].numpy()) if corrected else rows
        evaluation = calibrated.evaluate([apart], "calibration ")
        description = replace(run.description, calibration=ensemble.calibration, evaluation=evaluation)
        profile, _ = read_profile(run.folder, run.description)
        description.write(run.folder)
        if profile is not None:
            found = make_profile(run.schema, apart, [apart], calibrated.predict)
            replace(found, columns=profile.columns).write(run.folder, description)
        return replace(calibrated, description=description)
