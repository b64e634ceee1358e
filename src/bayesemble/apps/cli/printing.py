"""What all commands share: where they print, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bayesemble.core.files import json_text

out = Console()
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def say(words: str) -> None:
    """Print a result in words."""
    out.print(words, highlight=False, soft_wrap=True, markup=False)


def note(words: str) -> None:
    """Print on standard error what a person should know besides."""
    err.print(words, style="dim", highlight=False, soft_wrap=True, markup=False)


def say_notes(notes: Sequence[str]) -> None:
    """Print notes, a line each."""
    for words in notes:
        note(f"note: {words}")


def say_json(value: Any) -> None:
    """Print a result for machines."""
    print(json_text(value))


def show(rows: list[dict[str, str]], as_json: bool) -> None:
    """Print rows as a table, or for machines."""
    if as_json:
        say_json(rows)
    else:
        print_table(rows)


def print_table(rows: list[dict[str, str]], title: str | None = None) -> None:
    """Print rows, whose names head the columns."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*row.values())
    out.print(table)


@contextmanager
def resumable() -> Iterator[None]:
    """Say on Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        note("stopped; the same command goes on where this one was interrupted")
        raise typer.Exit(130) from None
