"""The command line. Torch is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from bayesemble import __version__
from bayesemble.apps.cli.calibrating import calibrate
from bayesemble.apps.cli.comparisons import compare, datasets, landscape, methods, report, score
from bayesemble.apps.cli.exporting import export
from bayesemble.apps.cli.printing import err, say
from bayesemble.apps.cli.serving import serve, watch
from bayesemble.apps.cli.tables import WithMethodFlags, diagnose, evaluate, fit, predict
from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.core.errors import BayesembleError


class GlobalOptions(TyperGroup):
    """A program whose own options may stand after the command, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move --debug and --plugin to the front, where they belong to the program."""
        front: list[str] = []
        rest: list[str] = []
        takes_value = False
        for word in args:
            ours = takes_value or word in ("--debug", "--plugin") or word.startswith("--plugin=")
            (front if ours else rest).append(word)
            takes_value = word == "--plugin"
        return super().parse_args(ctx, front + rest)


app = typer.Typer(
    cls=GlobalOptions,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; errors become one line, a traceback only comes with --debug, wherever it stands."""
    # Threads that spin while they wait make a step a hundred times slower beside another busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a sign that a terminal does not know is no reason to say nothing
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        ours = isinstance(error, BayesembleError)
        told = str(error) if ours else f"{type(error).__name__}: {error}; --debug shows where it comes from"
        err.print(f"[bold red]error:[/] {escape(told)}", highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; it may stand last, too.")] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            "--plugin",
            envvar="BAYESEMBLE_PLUGINS",
            metavar="FILE_OR_MODULE",
            help="Python file or module to load first, which registers methods of your own; it may stand last, too.",
        ),
    ] = None,
) -> None:
    """Turn any PyTorch network into a Bayesian ensemble.

    Example: bayesemble fit houses.csv --target price --out run
    """
    if version:
        say(f"bayesemble {__version__}")
        raise typer.Exit
    context.obj = [str(name) for name in plugin or ()]
    load_plugins(context.obj)


COMMANDS = (
    *(compare, report, landscape, methods, datasets, score),
    *(fit, predict, evaluate, diagnose, calibrate, export, watch, serve),
)
for command in COMMANDS:
    app.command(cls=WithMethodFlags if command is fit else None)(command)


if __name__ == "__main__":
    main()
