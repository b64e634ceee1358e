"""Files that appear whole or not at all: written under another name, flushed to disk, and renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a text; a killed process leaves all of it or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON in the same way."""
    write_text(path, json.dumps(content, indent=2) + "\n")
