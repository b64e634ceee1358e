"""The command line. Torch is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayesemble import __version__
from bayesemble.apps.cli import tables
from bayesemble.apps.cli.tables import AsJson
from bayesemble.core.errors import BayesembleError, MissingExtraError

if TYPE_CHECKING:
    from bayesemble.apps.compare.results import Comparison

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)


def main() -> None:
    """Run the command line; errors become one line, a traceback only comes with --debug, wherever it stands."""
    # Threads that spin while they wait make a step a hundred times slower beside another busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(words)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        ours = isinstance(error, BayesembleError)
        told = str(error) if ours else f"{type(error).__name__}: {error}; --debug shows where it comes from"
        err.print(f"[bold red]error:[/] {escape(told)}", highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; it may stand last, too.")] = False,
) -> None:
    """Turn any PyTorch network into a Bayesian ensemble.

    Example: bayesemble fit houses.csv --target price --out run
    """
    if version:
        out.print(f"bayesemble {__version__}", highlight=False)
        raise typer.Exit


@app.command()
def compare(
    context: typer.Context,
    data: Annotated[
        str, typer.Option(help="An embedded set (see `datasets`), table.csv:target, arrays.npz, or a folder of images.")
    ] = "digits",
    ood: Annotated[str | None, typer.Option(help="Foreign data, written like --data.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Names separated by commas, settings after a colon; see `bayesemble methods`."),
    ] = None,
    members: Annotated[int, typer.Option(help="Members of each ensemble.")] = 5,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; as many as suit it by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with its own split and start.")] = 3,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 64,
    budget: Annotated[
        str | None,
        typer.Option(help="Give all methods the same `steps` or `seconds`, instead of the same epochs per member."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Train on so many rows only.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; one for each processor by default.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Repeat the comparison of this results.json; other options given win.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where results and runs go.")] = Path("comparison"),
    record: Annotated[bool, typer.Option(help="Keep members along training, for `landscape`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train several methods on one data set and show them side by side.

    Example: bayesemble compare --data wine --methods map,deep_ensemble:bootstrap=true --members 10 --out wine
    """
    from bayesemble.apps.compare.compare import DEFAULT_METHODS, read_command
    from bayesemble.apps.compare.compare import compare as run

    options: dict[str, Any] = {
        "data": data,
        "ood": ood,
        "methods": methods or DEFAULT_METHODS,
        "members": members,
        "epochs": epochs,
        "seeds": seeds,
        "batch_size": batch_size,
        "budget": budget,
        "rows": rows,
        "record": record,
    }
    if config is not None:
        options |= {name: value for name, value in read_command(config).items() if not _given(context, name)}

    def say(words: str) -> None:
        if not err.is_terminal:  # there, a progress bar says more
            err.print(words, style="dim", highlight=False, soft_wrap=True)

    with tables.resumable():
        comparison = run(**options, jobs=jobs, out=folder, say=say)
    if as_json:
        print(json.dumps(comparison.summary(), indent=2))
    else:
        out.print(comparison_table(comparison))
        told = [(one.label, one.failure and f"failed: {one.failure}") for one in comparison.results]
        told += [(one.label, note) for one in comparison.results for note in one.notes]
        for label, words in dict.fromkeys(told):  # the same for several seeds is said once
            if words:
                out.print(f"{label}: {words}", highlight=False, soft_wrap=True, markup=False)
        out.print(f"Results: {folder / 'results.json'}   Runs: {folder / 'runs'}", highlight=False, soft_wrap=True)
        try:
            _write_report([folder], folder / "report.html", as_json=False)
        except MissingExtraError as error:
            err.print(f"no report: {error}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if all(result.failure for result in comparison.results):
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of comparisons on the same data, or runs of one.")],
    page: Annotated[Path | None, typer.Option("--out", help="The page; report.html in the first by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of a comparison: verdict, table, and figures in which methods can be switched on and off.

    Example: bayesemble report comparison
    """
    _write_report(folders, page or folders[0] / "report.html", as_json)


def _write_report(folders: list[Path], page: Path, as_json: bool) -> None:
    from bayesemble.apps.report.comparison import comparison_page
    from bayesemble.apps.report.page import write

    write(page, comparison_page(*folders))
    _say_where("Report", page, as_json)


def _say_where(what: str, page: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"page": str(page)}, indent=2))
    else:
        out.print(f"{what}: {page}", highlight=False, soft_wrap=True)


@app.command()
def landscape(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as comparison/runs/deep_ensemble/seed-0.")],
    page: Annotated[Path | None, typer.Option("--out", help="The page; RUN/landscape.html by default.")] = None,
    resolution: Annotated[int, typer.Option(help="Networks along each side of a plane.")] = 25,
    epochs: Annotated[int, typer.Option(help="Passes over the data that train a curve between two members.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Show where the members of a run lie and what lies between them, on one page.

    Example: bayesemble landscape comparison/runs/deep_ensemble/seed-0
    """
    from rich.progress import track

    from bayesemble.apps.compare.source import open_run
    from bayesemble.apps.report.landscape import LandscapePage
    from bayesemble.apps.report.page import write

    ensemble, split = open_run(run)
    test, train = (split.x_test, split.y_test), (split.x_train, split.y_train)
    made = LandscapePage(ensemble, test, train, resolution, epochs)
    parts = made.parts()
    for name in track(parts, "landscape", console=err, transient=True, disable=not err.is_terminal):
        parts[name]()
    target = page or run / "landscape.html"
    write(target, made.render(f"The landscape of {run}"))
    _say_where("Page", target, as_json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this method.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the settings of one.

    Example: bayesemble methods deep_ensemble
    """
    from bayesemble.methods import METHODS, method_class

    if name is None:
        rows = [{"method": key, "class": method_class(key).__name__, "idea": _idea(METHODS[key])} for key in METHODS]
    else:
        fields = dataclasses.fields(method_class(name))
        rows = [{"setting": f.name, "default": str(f.default), "meaning": f.metadata["help"]} for f in fields]
    _show(rows, as_json)


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the embedded data sets.

    Example: bayesemble datasets --json
    """
    from bayesemble.data import DATASETS

    _show(
        [{"data set": d.name, "kind": d.kind, "description": d.description} for d in DATASETS.values()],
        as_json,
    )


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="CSV with target and p_LABEL columns, or target, mean, std; or NPZ.")],
    ood: Annotated[
        Path | None, typer.Option(help="Predictions of foreign data in the same form; they need no target.")
    ] = None,
    target: Annotated[str, typer.Option(help="Name of the target column of a CSV.")] = "target",
    as_json: AsJson = False,
) -> None:
    """Score predictions that were made elsewhere.

    Example: bayesemble score predictions.csv --ood other.csv
    """
    from bayesemble.apps.tables.prediction_files import read_predictions
    from bayesemble.metrics import Summary
    from bayesemble.metrics.catalogue import SCORES

    summary = Summary(ood=ood is not None)
    for predictive, targets in read_predictions(file, target=target):
        summary.update(predictive, targets)
    if ood is not None:
        for predictive, _ in read_predictions(ood, target=None):
            summary.update_ood(predictive)
    scores = summary.compute()
    if as_json:
        print(json.dumps(scores, indent=2))
        return
    table = Table("score", "value", "what it says", title=f"{summary.num_rows} rows of {file.name}")
    for name, value in scores.items():
        table.add_row(name, f"{value:.4f}", f"{SCORES[name].meaning}; {SCORES[name].direction}")
    out.print(table)


def comparison_table(comparison: Comparison) -> Table:
    """The comparison as a table: mean and, over several seeds, the standard error."""
    from bayesemble.metrics.catalogue import SCORES

    rows, command = comparison.summary(), comparison.command
    scores = {name: score for name, score in SCORES.items() if score.in_terminal and any(name in row for row in rows)}
    seeds = command["seeds"]
    name, same = comparison.data.get("name", command["data"]), command.get("budget")
    title = f"{name}, {command['epochs']} epochs{f' or as many {same}' if same else ''}, "
    title += f"{seeds} seed{'s' if seeds > 1 else ''}"
    table = Table(
        title=title,
        caption="mean ± standard error over seeds" if seeds > 1 else None,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0, 0, 1),
    )
    table.add_column("method", overflow="fold", min_width=18)
    for score in scores.values():
        table.add_column(f"{score.heading} {score.arrow}".rstrip(), justify="right", no_wrap=True)
    table.add_column("sec", justify="right", no_wrap=True)
    for row in rows:
        label = row["method"].replace(":", "\n  ", 1).replace(",", "\n  ")
        cells = [_cell(row.get(name), score.digits) for name, score in scores.items()]
        table.add_row(label, *cells, f"{row['train_seconds']['mean']:.1f}" if "train_seconds" in row else "failed")
    return table


def _given(context: typer.Context, option: str) -> bool:
    """Whether an option was written on the command line, rather than left at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _cell(value: dict[str, float | None] | None, digits: int) -> str:
    if value is None:
        return "failed"
    return f"{value['mean']:.{digits}f}" + ("" if value["error"] is None else f"±{value['error']:.{digits}f}")


def _idea(maker: Any) -> str:
    """The first line of a method's documentation, and what its name fixes."""
    fixed = getattr(maker, "keywords", {})
    words = (getattr(maker, "func", maker).__doc__ or "").strip().splitlines()[0]
    return words + "".join(f" {key}={value}." for key, value in fixed.items())


def _show(rows: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    out.print(table)


tables.register(app)


if __name__ == "__main__":
    main()
