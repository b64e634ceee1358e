"""The commands for comparisons, methods and data sets. Torch is imported inside, so that help comes at once."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from bayesemble.apps.cli.printing import AsJson, err, note, out, print_table, resumable, say, say_json, show
from bayesemble.core.errors import MissingExtraError

if TYPE_CHECKING:
    from bayesemble.apps.compare.results import Comparison


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
    rows: Annotated[int | None, typer.Option(help="How many rows to train on; all by default.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; one for each processor by default.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Where runs go: loky (processes here), dask, ray or submitit (SLURM).")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="A running cluster of that backend; for submitit slurm or local.")
    ] = None,
    retries: Annotated[int, typer.Option(help="How often a run whose worker was lost is tried again.")] = 1,
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Train the seeds of a method as one run where it can be; seconds are then shares."
        ),
    ] = False,
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
    from bayesemble.apps.compare.compare import compare as run
    from bayesemble.apps.compare.engines import engine
    from bayesemble.apps.compare.request import Request, read_request

    names = [field.name for field in dataclasses.fields(Request)]
    asked = {name: context.params[name] for name in names if _given(context, name)}
    request = dataclasses.replace(Request() if config is None else read_request(config), **asked)
    tell = (lambda words: None) if err.is_terminal else note  # in a terminal a progress bar says more
    with resumable(), engine(backend, address, folder) as where:
        how: dict[str, Any] = {"jobs": jobs, "plugins": context.obj, "retries": retries, "engine": where}
        comparison = run(request, folder, together=together, say=tell, **how)
    if as_json:
        say_json(comparison.summary())
    else:
        out.print(comparison_table(comparison))
        said = [f"{one.label}: failed: {one.failure}" for one in comparison.results if one.failure]
        said += [f"{one.label}: {words}" for one in comparison.results for words in one.notes]
        shared = [(label, comparison.together(label)) for label in comparison.labels]
        said += [f"{label}: seconds are shares of {runs} runs trained together" for label, runs in shared if runs > 1]
        for line in dict.fromkeys(said):  # the same for several seeds is said once
            say(line)
        say(f"Results: {folder / 'results.json'}   Runs: {folder / 'runs'}")
        try:
            _write_report([folder], folder / "report.html", as_json=False)
        except MissingExtraError as error:
            note(f"no report: {error}")
    if any(result.failure for result in comparison.results):
        raise typer.Exit(1)


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
        say_json({"page": str(page)})
    else:
        say(f"{what}: {page}")


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
    from bayesemble.apps.report.landscape import Subject, examine, landscape_page
    from bayesemble.apps.report.page import write

    ensemble, split = open_run(run)
    subject = Subject(ensemble, (split.x_test, split.y_test), (split.x_train, split.y_train), resolution, epochs)
    show_progress = partial(track, description="landscape", console=err, transient=True, disable=not err.is_terminal)
    findings = examine(subject, show_progress)
    target = page or run / "landscape.html"
    write(target, landscape_page(subject, findings, f"The landscape of {run}"))
    _say_where("Page", target, as_json)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this method.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the settings of one.

    Example: bayesemble methods deep_ensemble
    """
    from bayesemble.core.settings import allowed
    from bayesemble.methods import METHODS, method_class

    if name is None:
        rows = [{"method": key, "class": method_class(key).__name__, "idea": METHODS[key].idea} for key in METHODS]
    else:
        values = allowed(method_class(name))
        rows = [
            {"setting": f.name, "default": str(f.default), "values": values[f.name], "meaning": f.metadata["help"]}
            for f in dataclasses.fields(method_class(name))
        ]
    show(rows, as_json)


def datasets(as_json: AsJson = False) -> None:
    """List the embedded data sets.

    Example: bayesemble datasets --json
    """
    from bayesemble.data import DATASETS

    show(
        [{"data set": d.name, "kind": d.kind, "description": d.description} for d in DATASETS.values()],
        as_json,
    )


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
        say_json(scores)
        return
    rows = [
        {"score": name, "value": f"{value:.4f}", "what it says": f"{SCORES[name].meaning}; {SCORES[name].direction}"}
        for name, value in scores.items()
    ]
    print_table(rows, title=f"{summary.num_rows} rows of {file.name}")


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
