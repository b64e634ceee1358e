"""The commands that put a run to use: watch and serve. Torch is imported inside, so that help comes at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesemble.apps.cli.printing import AsJson, note, say, say_json, say_notes
from bayesemble.core.files import json_text

if TYPE_CHECKING:
    from bayesemble.apps.serve.registry import Registry

ALARM = 3
"""Exit code of `watch` where something has changed."""


def watch(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `fit` made it.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with rows as they came in; labels may be there.")],
    as_json: AsJson = False,
) -> None:
    """Compare rows that came in with those that a run was made from: does the model still know its world?

    The exit code is 0 if nothing has changed, 3 if something has, and 1 if the question could not be answered.

    Example: bayesemble watch run new.csv
    """
    from bayesemble.apps.serve.watch.table import watch_table
    from bayesemble.apps.tables.run import open_table

    found = watch_table(open_table(run), file)
    if as_json:
        evaluation = None if found.evaluation is None else found.evaluation.to_json()
        say_json(asdict(found) | {"evaluation": evaluation})
    else:
        say_notes(found.notes)
        say(found.words)
        for words in found.alarms:
            say(f"- {words}")
        if found.unlike:
            by_column = ", ".join(f"{name!r} {count:,}" for name, count in found.unlike_by_column.items())
            say(f"{found.unlike:,} of {found.rows:,} rows are unlike the training data: {by_column}.")
        if found.evaluation is not None:
            say(found.evaluation.words)
    if found.alarms:
        raise typer.Exit(ALARM)


def _limit(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Limits")


def serve(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, as `fit` made them: FOLDER, or NAME=FOLDER.")],
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes one that is free.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    level: Annotated[
        float | None,
        typer.Option(help="Probability of intervals, and of sets of classes; 0.9, or that of a calibration."),
    ] = None,
    max_risk: Annotated[
        float | None, typer.Option(help="Abstain, so that at most this share of the answers is wrong.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Error from which the answer of a number counts as wrong, for --max-risk.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="BAYESEMBLE_TOKEN", help="Bearer token that requests have to bring; better by environment."
        ),
    ] = None,
    max_rows: Annotated[int, _limit("Rows of a request, at most.")] = 1_000,
    max_bytes: Annotated[int, _limit("Bytes of a request, at most.")] = 2_000_000,
    queue_rows: Annotated[int, _limit("Rows that may wait; beyond, requests get 503 and Retry-After.")] = 4_000,
    seconds: Annotated[float, _limit("Seconds that a request may take.")] = 10.0,
    linger: Annotated[float, _limit("Seconds that a batch waits for further rows.")] = 0.0,
    reload_seconds: Annotated[float, _limit("Seconds between looks at the run folders; 0 never looks.")] = 2.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log trouble alone, not each request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve runs over HTTP: JSON, the Open Inference Protocol, metrics, and a live page.

    Example: bayesemble serve run --port 8000 --max-risk 0.05
    """
    from bayesemble.apps.serve.options import Options
    from bayesemble.apps.serve.web.server import serve as run

    options = Options(
        host=host,
        port=port,
        level=level,
        max_risk=max_risk,
        tolerance=tolerance,
        token=token,
        max_rows=max_rows,
        max_bytes=max_bytes,
        queue_rows=queue_rows,
        seconds=seconds,
        linger=linger,
        reload_seconds=reload_seconds,
    )

    def told(address: str, registry: Registry) -> None:
        if as_json:
            print(json_text({"address": address, "models": [one.name for one in registry]}, indent=None), flush=True)
            return
        for one in registry:
            say_notes([f"{one.name}: {words}" for words in one.model.notes])
        say(f"Serving {', '.join(one.name for one in registry)} at {address}")

    if host not in ("127.0.0.1", "::1", "localhost") and token is None:
        note("note: whoever reaches this machine can ask; a token and a proxy with TLS keep others out")
    run(runs, options, log_requests=not quiet, on_ready=told)
