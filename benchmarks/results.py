"""What the long benchmarks share: one line of JSON per run, written as it is done, and means with standard errors."""

import json
import math
import statistics
from collections.abc import Sequence
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
