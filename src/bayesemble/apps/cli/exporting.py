"""The command that writes a run as a model for other programs. Torch is imported inside, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesemble.apps.cli.printing import AsJson, say, say_json, say_notes


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `fit` or `compare` made it.")],
    target: Annotated[Path, typer.Option("--out", help="Folder to write, which must be new or empty.")] = Path("model"),
    level: Annotated[
        float | None,
        typer.Option(help="Probability of the interval from low to high; 0.9, or that of a calibration."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as an ONNX model, and for tables a scorer that needs numpy and onnxruntime alone.

    Example: bayesemble export run --out model, then: python model/score.py new.csv --out predictions.csv
    """
    from bayesemble.apps.compare.source import SOURCE

    _refuse_other_folders(run)
    outputs, notes = (_comparison if (run / SOURCE).is_file() else _table)(run, target, level)
    if as_json:
        say_json({"folder": str(target), "outputs": outputs, "notes": notes})
        return
    say_notes(notes)
    say(f"Model with the outputs {', '.join(outputs)}: {target}")
    if (target / "score.py").is_file():
        say(f"To score rows with it: python {target / 'score.py'} new.csv --out predictions.csv")


def _refuse_other_folders(run: Path) -> None:
    """Refuse a folder with several runs, and one whose network is not known here."""
    from bayesemble.apps.compare.source import SOURCE
    from bayesemble.apps.tables.description import TABLE
    from bayesemble.core.errors import SettingError
    from bayesemble.training.run_folders import checkpoint

    if (run / SOURCE).is_file() or (run / TABLE).is_file():
        return
    if inside := sorted(path.parent for path in (*run.glob(f"*/{SOURCE}"), *run.glob(f"*/*/*/{SOURCE}"))):
        raise SettingError(f"{run} holds {len(inside)} runs of a comparison; name one of them, such as {inside[0]}")
    if checkpoint.exists(run):
        raise SettingError(
            f"{run} holds an ensemble of a network that only your code knows; say in Python: "
            f"be.load({str(run)!r}, make_network).export('model.onnx')"
        )


def _table(run: Path, target: Path, level: float | None) -> tuple[list[str], list[str]]:
    from bayesemble.apps.tables.export import export_table
    from bayesemble.apps.tables.run import open_table

    written = export_table(open_table(run), target, level=level)
    return written.outputs, written.notes


def _comparison(run: Path, target: Path, level: float | None) -> tuple[list[str], list[str]]:
    """The model alone: the rows of a comparison are numbers already."""
    from bayesemble.apps.compare.source import open_run
    from bayesemble.apps.tables.export import check_new

    check_new(target)
    ensemble, split = open_run(run)
    notes = []
    if split.num_classes is None:
        units = f"{split.target_shift:g} + {split.target_scale:g} * y"
        notes.append(f"the model says standardised numbers y, which are {units} in the units of the target")
    return ensemble.export(target / "model.onnx", level=level), notes
