"""Which tests execute which lines of the package, recorded with `coverage`, so that mistakes are asked of them alone.

    python tests/executed_lines.py lines

`coverage` is to be installed beside the test requirements. Each test file runs in a process of its own. What a fixture
of a whole file executes counts for all tests of the file, and what a process that a test starts executes for that test.
Files that are in the record already, unchanged, are not run again; lines that moved since are followed.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from forked import fork_tests, preload

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/bayesemble")
# What is drawn, how the house is laid out, and what only puts files of the repository beside one another.
SHAPE = ("browser", "test_layout.py", "test_docs.py", "test_contributing.py")
CHILDREN = """
import os, sys
if "PYTEST_CURRENT_TEST" in os.environ and "EXECUTED_LINES" in os.environ:
    import atexit, coverage
    folder, package = os.environ["EXECUTED_LINES"].split(os.pathsep)
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    child = coverage.Coverage(data_file=folder + "/child", data_suffix=True, source=[package], context=test)
    child.start()
    atexit.register(lambda: (child.stop(), child.save()))
"""


class Recorder:
    """A plugin that notes the lines, seconds and outcome of each test of one file."""

    def __init__(self, folder: Path, tree: Path) -> None:
        import coverage

        self.folder = folder
        package = str(tree / PACKAGE)
        self.coverage = coverage.Coverage(data_file=str(folder / "own"), source=[package], config_file=False)
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()
        (folder / "sitecustomize.py").write_text(CHILDREN)
        os.environ["EXECUTED_LINES"] = f"{folder}{os.pathsep}{package}"
        of_coverage = str(Path(coverage.__file__).parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ["PYTHONPATH"], of_coverage])
        self.coverage.start()
        self.coverage.switch_context("collection")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = round(time.process_time() - start, 3)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        self.coverage.switch_context(request._pyfuncitem.nodeid.partition("::")[0])
        result = yield
        self.coverage.switch_context(request._pyfuncitem.nodeid)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / "tests.json").write_text(json.dumps([self.seconds, sorted(self.failed)]))


def record(tree: Path, file: str) -> dict[str, Any]:
    """Lines by test, seconds by test and the tests that fail anyway, of one test file."""
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fork_tests(tree, [file], lambda: Recorder(folder, tree), 1200)
        lines: dict[str, dict[str, list[int]]] = {}
        for part in [*folder.glob("own*"), *folder.glob("child*")]:
            data = CoverageData(str(part))
            data.read()
            for measured in data.measured_files():
                source = str(Path(measured).relative_to(tree / PACKAGE))
                for line, contexts in data.contexts_by_lineno(measured).items():
                    for context in contexts:
                        lines.setdefault(context, {}).setdefault(source, []).append(line)
        seconds, failed = json.loads((folder / "tests.json").read_text())
    return {"lines": lines, "seconds": seconds, "failed": failed}


def test_files(tree: Path) -> list[str]:
    paths = [path for path in sorted((tree / "tests").rglob("test_*.py")) if not set(SHAPE) & set(path.parts)]
    return [str(path.relative_to(tree)) for path in paths]


def own_tests(source: str) -> str:
    """The test file that mirrors a source file."""
    return str(Path("tests") / Path(source).parent / f"test_{Path(source).name}")


def sources(tree: Path) -> dict[str, list[str]]:
    package = tree / PACKAGE
    return {str(path.relative_to(package)): path.read_text().splitlines() for path in package.rglob("*.py")}


@functools.cache
def snapshot(path: Path) -> dict[str, list[str]]:
    return json.loads(path.read_text())


def moved(before: list[str], now: list[str]) -> dict[int, int]:
    """Where the lines of a file are now; those that were changed or removed are at no place."""
    blocks = difflib.SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks()
    return {block.a + i + 1: block.b + i + 1 for block in blocks for i in range(block.size)}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def update(folder: Path, workers: int, files: Iterable[str]) -> None:
    """Brings the record up to date with the tree, a test file at a time, in several processes."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tree = copy_of_tree(Path(name))
        text = json.dumps(sources(tree))
        snapshot = "sources-" + hashlib.sha256(text.encode()).hexdigest()[:12]
        (folder / snapshot).write_text(text)
        todo = [file for file in files or test_files(tree) if not is_known(folder, tree / file, file)]
        preload()
        children = []
        for _ in range(workers):
            children.append(os.fork())
            if children[-1] == 0:
                for file in todo:
                    if claim(Path(name) / file.replace("/", "+")):
                        found = record(tree, file)
                        row = {"digest": digest(tree / file), "file": file, "sources": snapshot, **found}
                        part_of(folder, file).write_text(json.dumps(row))
                        print(f"{file}: {len(found['seconds'])} tests, failed {found['failed']}", flush=True)
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)


def part_of(folder: Path, file: str) -> Path:
    return folder / (file.replace("/", "+") + ".json")


def is_known(folder: Path, path: Path, file: str) -> bool:
    part = part_of(folder, file)
    return part.exists() and json.loads(part.read_text())["digest"] == digest(path)


def claim(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def copy_of_tree(folder: Path) -> Path:
    """A copy to make mistakes in; it finds the data beside it that the original finds."""
    tree = folder / "beside" / "tree"
    away = shutil.ignore_patterns(".git", ".venv", "__pycache__", "site", "demo", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=away)
    for parent in (ROOT.parent, ROOT.parent.parent):
        if (parent / "shared").exists():
            (folder / "beside" / "shared").symlink_to(parent / "shared")
            break
    return tree


class Lines:
    """What was recorded, for the tree as it is now."""

    def __init__(self, folder: Path) -> None:
        now = sources(ROOT)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.tests: dict[str, dict[int, set[str]]] = {}  # by source file and line: tests, and files as a whole
        self.by_file: dict[str, list[str]] = {}
        shifts: dict[tuple[str, str], dict[int, int]] = {}
        for path in sorted(folder.glob("*.json")):
            part = json.loads(path.read_text())
            if not (ROOT / part["file"]).exists():
                continue
            self.seconds |= part["seconds"]
            self.failed |= set(part["failed"])
            self.by_file[part["file"]] = list(part["seconds"])
            for context, by_source in part["lines"].items():
                for source, lines in by_source.items():
                    if source not in now:
                        continue
                    key = (source, part["sources"])
                    if key not in shifts:
                        shifts[key] = moved(snapshot(folder / part["sources"])[source], now[source])
                    shift = shifts[key]
                    of_source = self.tests.setdefault(source, {})
                    for line in lines:
                        if line in shift:
                            of_source.setdefault(shift[line], set()).add(context or part["file"])

    def asking(self, source: str, lines: Iterable[int]) -> list[str]:
        """Tests that execute one of these lines, quickest first, tests of the source file before all others."""
        contexts = set().union(*(self.tests.get(source, {}).get(line, set()) for line in lines))
        files = {context for context in contexts if "::" not in context}
        found = {test for test in contexts if test in self.seconds}
        found |= {test for file in files for test in self.by_file.get(file, ())}
        own = own_tests(source) + "::"
        return sorted(found - self.failed, key=lambda test: (not test.startswith(own), self.seconds[test]))

    def near_unknown(self, source: str) -> list[str]:
        """Test files beside that of the source file, or that name it, of which no record was made."""
        module = "bayesemble." + source.removesuffix(".py").replace("/", ".")
        beside = str(Path(own_tests(source)).parent) + "/"
        unknown = [file for file in test_files(ROOT) if file not in self.by_file]
        return [file for file in unknown if file.startswith(beside) or module in (ROOT / file).read_text()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the record is kept")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="test files; all unless given")
    options = parser.parse_args()
    update(options.folder, options.workers, options.only)


if __name__ == "__main__":
    main()
