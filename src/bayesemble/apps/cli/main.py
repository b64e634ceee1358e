"""The command line. Torch is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.markup import escape

from bayesemble import __version__
from bayesemble.apps.cli.comparisons import compare, datasets, landscape, methods, report, score
from bayesemble.apps.cli.printing import err, say
from bayesemble.apps.cli.tables import WithMethodFlags, diagnose, evaluate, fit, predict
from bayesemble.core.errors import BayesembleError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        say(f"bayesemble {__version__}")
        raise typer.Exit


for command in (compare, report, landscape, methods, datasets, score, fit, predict, evaluate, diagnose):
    app.command(cls=WithMethodFlags if command is fit else None)(command)


if __name__ == "__main__":
    main()
