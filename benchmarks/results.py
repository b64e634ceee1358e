"""What the long benchmarks share: a line of JSON per run, written as it is done; means with errors; tables on pages."""

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """The runs that are there already."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Add a run, and give it back as it will be read."""
    line = json.dumps(row)
    with path.open("a") as file:
        file.write(line + "\n")
    return json.loads(line)


def mean_and_error(values: Sequence[float], digits: int = 3) -> str:
    """The mean over seeds or splits and, of more than one, its standard error."""
    error = f" +- {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{error}"


def renew(page: Path, name: str, rows: Callable[[str], list[str]]) -> None:
    """Put a table between the marks of a page that name it, made from what stands there."""
    marked = re.compile(rf"(<!-- {name}: begin -->\n)(.*?)(<!-- {name}: end -->)", re.DOTALL)
    text, count = marked.subn(
        lambda marks: marks[1] + "\n" + "\n".join(rows(marks[2])) + "\n\n" + marks[3], page.read_text()
    )
    assert count == 1, f"{page} has no marks for the table of {name}"
    page.write_text(text)
