"""Write what follows from the registry of methods: the README's table, the public names and the reference.

python scripts/registry.py           # writes the lines between the marks
python scripts/registry.py --check   # writes nothing, and fails if something would change
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from bayesemble.methods import METHODS, Entry, Method  # noqa: E402  (the registry beside this script, not another)

Registry = Mapping[str, Entry]


def table(registry: Registry) -> list[str]:
    """The README's table of methods."""
    pages = {
        name: f": [docs/{entry.page}](docs/{entry.page})" if entry.page else "" for name, entry in registry.items()
    }
    rows = [f"| `{name}` | {entry.idea}{pages[name]} |" for name, entry in registry.items()]
    return ["| name | idea |", "| --- | --- |", *rows]


def imports(registry: Registry) -> list[str]:
    """The public names of the methods, in the order of the registry."""
    names = [f"    from {cls.__module__} import {cls.__name__} as {cls.__name__}" for cls in _classes(registry)]
    return ["    # isort: off", *names, "    # isort: on"]


def reference(registry: Registry) -> list[str]:
    """The methods in the reference."""
    return [f"::: {cls.__module__}.{cls.__name__}" for cls in _classes(registry)]


WRITTEN: dict[str, Callable[[Registry], list[str]]] = {
    "README.md": table,
    "src/bayesemble/__init__.py": imports,
    "docs/reference.md": reference,
}


def rewritten(text: str, lines: list[str]) -> str:
    """A file with other lines between its marks, which stay."""
    marked = re.compile(r"^([^\n]*\bmethods: begin\b[^\n]*\n).*?(^[^\n]*\bmethods: end\b)", re.DOTALL | re.MULTILINE)
    text, found = marked.subn(lambda marks: marks[1] + "\n".join(lines) + "\n" + marks[2], text)
    if found != 1:
        raise ValueError(f"one 'methods: begin' and one 'methods: end' are needed, found {found} such pairs")
    return text


def outdated(root: Path, registry: Registry) -> dict[Path, str]:
    """The files that are not what the registry says, and what they should be."""
    texts = {root / name: make(registry) for name, make in WRITTEN.items()}
    wanted = {path: rewritten(path.read_text(encoding="utf-8"), lines) for path, lines in texts.items()}
    return {path: text for path, text in wanted.items() if text != path.read_text(encoding="utf-8")}


def _classes(registry: Registry) -> list[type[Method]]:
    """Each class once, though it may have several names."""
    return list(dict.fromkeys(entry.cls for entry in registry.values()))


def main(words: list[str] | None = None) -> int:
    """Write the files that are out of date, or only name them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    check = parser.parse_args(words).check
    changed = outdated(ROOT, METHODS)
    for path, text in changed.items():
        print(f"{path.relative_to(ROOT)} {'is not what the registry says: run make registry' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
