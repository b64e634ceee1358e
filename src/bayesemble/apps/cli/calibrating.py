"""The command that corrects a run by further rows. Torch is imported inside, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesemble.apps.cli.printing import AsJson, say, say_json, say_notes


def calibrate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `fit` made it.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with targets, of rows that were not trained on.")],
    level: Annotated[float, typer.Option(help="How often intervals, or sets of classes, shall hold the target.")] = 0.9,
    risk: Annotated[
        float | None, typer.Option(help="Abstain, so that at most this share of the answers is wrong; of classes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Correct a run by rows that were not trained on: `predict`, `export` and `serve` follow it from then on.

    Example: bayesemble calibrate run houses-2025.csv --level 0.9
    """
    from bayesemble.apps.tables.calibration import calibrate_table
    from bayesemble.core import settings

    found = calibrate_table(run, file, level=level, risk=risk)
    calibration, evaluation = found.description.calibration, found.description.evaluation
    assert evaluation is not None
    if as_json:
        told = settings.dump(calibration)
        say_json({"calibration": told, "evaluation": evaluation.to_json(), "notes": list(found.notes)})
        return
    say_notes(found.notes)
    say(f"Calibrated: {calibration}.")
    say(evaluation.words)
