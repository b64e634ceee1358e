"""The commands for tables: fit, predict, evaluate, diagnose. Torch is imported inside, so that help comes at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperCommand

from bayesemble.apps.cli.printing import AsJson, err, note, print_table, resumable, say, say_json, say_notes

if TYPE_CHECKING:
    from bayesemble.apps.tables.description import TableRequest
    from bayesemble.diagnostics.diagnose import Diagnosis

_FLAGS_KEY = "method flags"
_NUMBER = re.compile(r"-[0-9.].*")
_TRAINING = "Training"

Run = Annotated[Path, typer.Argument(help="Folder of a run, as `fit` made it.")]
Scored = Annotated[
    Path | None, typer.Argument(help="CSV or Parquet file with targets; by default the rows that `fit` held out.")
]


class WithMethodFlags(TyperCommand):
    """A command that takes every other flag for a setting of the method: `--repulsion 0.5`, or `--bootstrap` alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the flags that the command does not have aside, with their values, before it sees the rest."""
        known = {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)}
        known |= set(self.get_help_option_names(ctx))
        flags: dict[str, str] = {}
        rest, left = [], list(args)
        while left:
            word = left.pop(0)
            name, equals, value = word.partition("=")
            if not name.startswith("--") or name == "--" or name in known:
                rest.append(word)
            elif equals:
                flags[name] = value
            else:
                takes = left and (not left[0].startswith("-") or _NUMBER.fullmatch(left[0]))
                flags[name] = left.pop(0) if takes else "true"
        ctx.meta[_FLAGS_KEY] = flags
        return super().parse_args(ctx, rest)


def _training(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_TRAINING)


def fit(
    ctx: typer.Context,
    file: Annotated[
        str | None, typer.Argument(help="CSV or Parquet file with the rows to learn from; also an address, s3://...")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Name of the column to predict.")] = None,
    weight_column: Annotated[
        str | None,
        typer.Option(help="Name of a column with what each row counts for, from 0; none to predict from."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Name of a method, see `bayesemble methods`; deep_ensemble by default.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="The run folder; an interrupted run there goes on.")] = Path(
        "run"
    ),
    task: Annotated[
        str | None, typer.Option(help="regression, classification or count; by default what suits the target.")
    ] = None,
    test: Annotated[float | None, typer.Option(help="Share of the rows held out for the final scores; 0.2.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed that all randomness derives from; 0.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="table.json of another run, whose settings are repeated; flags win.")
    ] = None,
    epochs: Annotated[int | None, _training("Passes over the rows, at most.")] = None,
    batch_size: Annotated[int | None, _training("Rows of each step.")] = None,
    width: Annotated[int | None, _training("Units of each layer.")] = None,
    depth: Annotated[int | None, _training("Residual blocks of the network; 1.")] = None,
    embedding: Annotated[str | None, _training("What numbers become: periodic, piecewise or none.")] = None,
    dropout: Annotated[float | None, _training("Rate of dropout layers in training; 0.")] = None,
    prior_std: Annotated[
        float | None, _training("Standard deviation of a normal prior of the weights; vague without it.")
    ] = None,
    noise: Annotated[str | None, _training("Noise of a real target: student (heavy tails) or normal.")] = None,
    counts: Annotated[
        str | None, _training("Distribution of counts: poisson, negative_binomial or zero_inflated.")
    ] = None,
    early_stopping: Annotated[bool | None, _training("Stop by the loss on further held-out rows.")] = None,
    validation_fraction: Annotated[float | None, _training("Share of the rows for early stopping; 0.1.")] = None,
    patience: Annotated[int | None, _training("Epochs without a better loss before it stops.")] = None,
    device: Annotated[str | None, _training("Where to train, such as cuda or mps; the CPU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn from the rows of a table, and say how good and how calibrated the result is.

    Column types, missing values, scales and the likelihood are found in the file. Every setting of the method is a
    flag too, such as --num-members 10; `bayesemble methods repulsive` lists them. Ctrl-C leaves a run that the same
    command goes on with.

    Example: bayesemble fit houses.csv --target price --method repulsive --repulsion 0.5 --out run
    """
    given = {name: value for name, value in ctx.params.items() if value is not None}
    request = _request(given, ctx.meta[_FLAGS_KEY], config)

    from bayesemble.apps.tables.run import fit_table

    with resumable():
        run = fit_table(request, folder, progress=True, say=note)
    evaluation = run.description.evaluation
    assert evaluation is not None
    if as_json:
        result = {
            "run": str(folder),
            "task": run.schema.task,
            "train_rows": run.schema.num_rows,
            "epochs": len(run.ensemble.history),
        }
        say_json(result | {"evaluation": evaluation.to_json(), "notes": list(run.notes)})
    else:
        say(evaluation.words)
        say(f"Run: {folder}")


def predict(
    run: Run,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with rows to predict, columns in any order.")],
    target: Annotated[Path, typer.Option("--out", help="CSV or Parquet file to write.")] = Path("predictions.csv"),
    level: Annotated[
        float | None,
        typer.Option(help="Probability of the interval from low to high; 0.9, or that of a calibration."),
    ] = None,
    keep: Annotated[str, typer.Option(help="Columns of the file to copy, separated by commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a table, with both parts of the doubt, an interval, and rows unlike the training data.

    Example: bayesemble predict run new.csv --out predictions.csv --level 0.9 --keep id
    """
    from bayesemble.apps.tables.run import open_table, predict_table

    opened = open_table(run)
    with _bar(file) as advance:
        names = [name.strip() for name in keep.split(",") if name.strip()]
        predicted = predict_table(opened, file, target, level=level, keep=names, on_rows=advance)
    if as_json:
        say_json(asdict(predicted))
        return
    say_notes(predicted.notes)
    say(f"Predictions of {predicted.rows:,} rows: {target}")
    if predicted.unlike:
        say(f"{predicted.unlike:,} of them are unlike the training data; the columns `unlike` and `why` say more.")


def evaluate(run: Run, file: Scored = None, as_json: AsJson = False) -> None:
    """Score a run on rows with targets, in numbers and in words.

    Example: bayesemble evaluate run houses-2025.csv
    """
    from bayesemble.apps.tables.run import evaluate_table, open_table

    evaluation = evaluate_table(open_table(run), file)
    if as_json:
        say_json(evaluation.to_json())
        return
    say_notes(evaluation.notes or ())
    if evaluation.scores:
        print_table([{"score": name, "value": f"{value:.4f}"} for name, value in evaluation.scores.items()])
    say(evaluation.words)


def diagnose(run: Run, file: Scored = None, as_json: AsJson = False) -> None:
    """Examine a run: do its members differ, which does the data prefer, how calibrated is it.

    Example: bayesemble diagnose run
    """
    from bayesemble.apps.tables.run import diagnose_table, open_table

    diagnosis, evaluation = diagnose_table(open_table(run), file)
    if as_json:
        say_json({"members": _members(diagnosis), "evaluation": evaluation.to_json()})
        return
    say_notes(evaluation.notes or ())
    say("\n".join([*diagnosis.about_members(), evaluation.words]))


def _request(given: dict[str, Any], flags: dict[str, str], config: Path | None) -> TableRequest:
    """What was asked for: what another run had, then what the flags say."""
    from bayesemble.apps.tables.description import TableRequest, read_request
    from bayesemble.core.settings import parse_value
    from bayesemble.estimators.recipe import Recipe
    from bayesemble.methods import method_class

    before = None if config is None else read_request(config)
    recipe = Recipe() if before is None else before.recipe
    if given.get("method", recipe.method) != recipe.method:
        recipe = replace(recipe, method=given["method"], settings={})
    known = [field.name for field in fields(method_class(recipe.method))]
    chosen = {flag[2:].replace("-", "_"): parse_value(text) for flag, text in flags.items()}
    if unknown := [name for name in chosen if name not in known]:
        listed = ", ".join("--" + name.replace("_", "-") for name in known)
        raise typer.BadParameter(
            f"--{unknown[0].replace('_', '-')} is no setting of {recipe.method}, which has {listed}."
        )
    parts = {field.name: given[field.name] for field in fields(Recipe) if field.name in given}
    recipe = replace(recipe, **parts, settings={**recipe.settings, **chosen})
    if before is None and not {"file", "target"} <= given.keys():
        raise typer.BadParameter("FILE and --target are needed, unless a --config has them.")
    parts = {name: given[name] for name in ("target", "weight_column", "task", "test", "seed") if name in given}
    parts |= {"file": str(given["file"])} if "file" in given else {}
    return TableRequest(**parts, recipe=recipe) if before is None else replace(before, **parts, recipe=recipe)


def _members(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "members": diagnosis.num_members,
        "distinct_functions": len(diagnosis.distinct.by_function),
        "distinct_weights": len(diagnosis.distinct.by_weights),
        "gap": float(diagnosis.evidence.gap),
        "effective_members": float(diagnosis.evidence.effective_members),
        "likelihood_range": float(diagnosis.evidence.likelihood_range),
        "stacking_gain": diagnosis.stacking_gain,
    }


@contextmanager
def _bar(file: Path) -> Iterator[Callable[[int], None]]:
    """A bar of the rows that are done; silent where there is no terminal."""
    columns = (TextColumn("{task.completed:,} rows"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        line = bar.add_task("", total=_lines(file) if err.is_terminal else None)
        yield lambda count: bar.update(line, advance=count)


def _lines(file: Path) -> int | None:
    """About how many rows a plain CSV file has; None if that is not known at once."""
    if file.suffix.lower() not in (".csv", ".tsv", ".txt") or not file.is_file():
        return None
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))
