"""Puts single mistakes into the source at random, and tells whether the suite notices.

    python tests/executed_lines.py lines
    python tests/mutants.py --lines lines --seed 1 --count 60 --resume mutants.jsonl

Works on a copy of the tree. For each mistake the tests that execute its statement run, those of the file first and
quick ones before slow ones, up to the first failure; test files without a record run whole if they are near. A mistake
that survives is not always a gap: some change nothing that matters, so the table shows the line. The same seed gives
the same mistakes in the same source.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from executed_lines import PACKAGE, ROOT, Lines, copy_of_tree, own_tests
from forked import fork_tests, preload

FIRST = 40  # tests that are asked before the others
# Looks, words and declarations: a mistake there is for eyes to see.
SKIPPED = (
    "diagnostics/plots/",
    "apps/report/figures",
    "apps/report/page",
    "apps/report/landscape",
    "apps/cli/",
    "core/errors",
)
WEIGHTS = {
    "flip a sign": 4,
    "drop a factor": 4,
    "swap a comparison": 4,
    "off by one": 3,
    "ignore a setting": 4,
    "swap and, or": 2,
    "swap min, max": 2,
    "drop a not": 2,
    "drop a flush": 1,
}
SIGNS = {ast.Add: "-", ast.Sub: "+"}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in"}
EXTREMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "argmin": "argmax", "argmax": "argmin"}


class Mutant(NamedTuple):
    """One mistake: a piece of a file, by its first and last character, and what stands there instead."""

    path: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str


def settings_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names of settings and their defaults, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and isinstance(node.target, ast.Name):
            call = node.value
            if isinstance(call.func, ast.Name) and call.func.id == "setting":
                default = ast.unparse(call.args[0])
                if default != "MISSING":
                    yield node.target.id, default


def without_words(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below but types, decorators, declared settings, messages and what checks itself."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            called = getattr(getattr(child, "func", None), "id", getattr(getattr(child, "func", None), "attr", None))
            if called in ("setting", "require", "warn", "_check"):
                continue
            yield child
            yield from without_words(child)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def changes(node: ast.AST, defaults: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Kinds of mistakes that can be made at a node, and what stands there then."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not (is_text(left) or is_text(right)):
            yield "flip a sign", f"{ast.unparse(left)} {SIGNS[type(op)]} ({ast.unparse(right)})"
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Pow(), right=right) if not is_text(left):
            yield "drop a factor", f"({ast.unparse(left)})"
            if isinstance(node.op, ast.Mult) and not is_text(right):
                yield "drop a factor", f"({ast.unparse(right)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "flip a sign", f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "drop a not", f"({ast.unparse(operand)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield "swap a comparison", f"{ast.unparse(left)} {COMPARISONS[type(op)]} {ast.unparse(right)}"
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield "swap and, or", "(" + word.join(f"({ast.unparse(value)})" for value in values) + ")"
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and abs(value) < 10:
            yield "off by one", str(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            yield "swap min, max", EXTREMES[name] + ast.unparse(node).removeprefix(name)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args, keywords=keywords) if name in EXTREMES:
            given = ", ".join(map(ast.unparse, [*args, *keywords]))
            yield "swap min, max", f"({ast.unparse(value)}).{EXTREMES[name]}({given})"
        case ast.Call(func=ast.Attribute(attr="fsync") | ast.Name(id="flush" | "_flush")):
            yield "drop a flush", "None"
        case ast.Attribute(value=ast.Name(id="self" | "method"), attr=name, ctx=ast.Load()) if name in defaults:
            for default in sorted(defaults[name]):
                yield "ignore a setting", f"({default})"


def all_mutants(root: Path) -> list[Mutant]:
    """Every mistake that can be made, in a fixed order."""
    paths = [path for path in sorted((root / PACKAGE).rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
    of_methods = collect([path for path in paths if path.is_relative_to(root / PACKAGE / "methods")])
    found = []
    for path in paths:
        name = str(path.relative_to(root / PACKAGE))
        if not name.startswith(SKIPPED):
            found += list(in_file(path, name, (of_methods if name.startswith("methods/") else {}) | collect([path])))
    return found


def collect(paths: list[Path]) -> dict[str, set[str]]:
    """The defaults of settings by name; several where classes have several."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for name, default in settings_of(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(default)
    return found


def in_file(path: Path, name: str, defaults: dict[str, set[str]]) -> Iterator[Mutant]:
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    seen = set()
    for function in functions:
        if function.name in ("__repr__", "__str__", "_repr_html_"):
            continue
        for node in without_words(function):
            for kind, after in changes(node, defaults):
                start, end = (
                    starts[node.lineno - 1] + node.col_offset,
                    starts[node.end_lineno - 1] + node.end_col_offset,
                )
                before = text[start:end].decode()
                one = Mutant(name, node.lineno, start, end, kind, before, after)
                if one not in seen and " ".join(before.split()) != after:
                    seen.add(one)
                    yield one


def choose(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """Kinds by their weights, and any mistake of the kind; none twice."""
    chance, left = random.Random(seed), {kind: [one for one in mutants if one.kind == kind] for kind in WEIGHTS}
    chosen = []
    while len(chosen) < count and any(left.values()):
        kinds = [kind for kind in WEIGHTS if left[kind]]
        kind = chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        chosen.append(left[kind].pop(chance.randrange(len(left[kind]))))
    return chosen


def statement_lines(text: str, line: int) -> range:
    """The lines of the smallest statement around a line; of one with a body, those of its head."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) or (body and line >= body[0].lineno):
                continue
            best = range(node.lineno, (body[0].lineno if body else (node.end_lineno or 0) + 1))
    return best


class Asked:
    """A plugin that runs the given tests, or files of them, alone and in their order, up to the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        places = [self.order.get(one.nodeid, self.order.get(one.nodeid.partition("::")[0])) for one in items]
        asked = [(place, index) for index, place in enumerate(places) if place is not None]
        items[:] = [items[index] for _, index in sorted(asked)]


def noticed(tree: Path, mutant: Mutant, lines: Lines, seconds: float) -> str:
    """The first test that fails; "" if none does, "..." if the time was over before all had run."""
    path = tree / PACKAGE / mutant.path
    whole = path.read_bytes()
    tests = lines.asking(mutant.path, statement_lines(whole.decode(), mutant.line))
    path.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :])
    end = time.monotonic() + seconds
    try:
        compile(path.read_bytes(), str(path), "exec")
        own = [test for test in tests if test.partition("::")[0] == own_tests(mutant.path)]
        others = tests[len(own) :]
        for asked in (own, others[:FIRST], others[FIRST:], lines.near_unknown(mutant.path)):
            files = list(dict.fromkeys(test.partition("::")[0] for test in asked))
            if not files:
                continue
            code, said = fork_tests(tree, ["-x", *files], lambda asked=asked: Asked(asked), end - time.monotonic())
            if code == -1:
                return "..."
            if code:
                found = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return found[0].split(" - ")[0] if found else f"pytest ended with {code}: {said[-300:]}"
    except SyntaxError:
        return "it does not compile"
    finally:
        path.write_bytes(whole)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, required=True, help="what tests/executed_lines.py recorded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of source files that mistakes are made in")
    parser.add_argument("--resume", type=Path, help="results, a line each; those in it are not repeated")
    parser.add_argument("--seconds", type=float, default=1200, help="time for each mistake")
    parser.add_argument("--list", action="store_true", help="only show the mistakes")
    options = parser.parse_args()
    possible = [one for one in all_mutants(ROOT) if one.path.startswith(tuple(options.only))]
    chosen = choose(possible, options.seed, options.count)
    known = {}
    if options.resume and options.resume.exists():
        rows = map(json.loads, options.resume.read_text().splitlines())
        known = {tuple(row["mutant"]): row["noticed"] for row in rows}
    missed = 0
    lines = Lines(options.lines)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_tree(Path(folder))
        preload()
        for number, mutant in enumerate(chosen, start=1):
            if mutant not in known and not options.list:
                known[mutant] = noticed(tree, mutant, lines, options.seconds)
                if options.resume:
                    row = {"seed": options.seed, "mutant": mutant, "noticed": known[mutant]}
                    with options.resume.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            by = known.get(mutant, "not tried")
            missed += by in ("", "...")
            change = f"{' '.join(mutant.before.split())}  ->  {mutant.after}"
            place = f"{mutant.path}:{mutant.line}"
            print(f"{number:3} {by or 'SURVIVED':60.60} {mutant.kind:18} {place:45} {change}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed, seed {options.seed}")


if __name__ == "__main__":
    main()
