"""The reference lists every public name, once."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import bayesemble

ROOT = Path(__file__).parents[1]
ENTRIES = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)


def file_of(name: str) -> Path | None:
    """The file of a module or package; None for any other name."""
    path = ROOT.joinpath("src", *name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def tree(module: str) -> ast.Module:
    return ast.parse(file_of(module).read_text())


@cache
def defined(module: str) -> set[str]:
    """The public names that a module makes itself."""
    names = set()
    for node in tree(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        names |= {node.name} if isinstance(node, ast.ClassDef | ast.FunctionDef) else set()
    return {f"{module}.{name}" for name in names if not name.startswith("_")}


@cache
def imported(module: str) -> dict[str, str]:
    """The public names that a package imports, and where they come from."""
    nodes = [node for node in ast.walk(tree(module)) if isinstance(node, ast.ImportFrom)]
    pairs = [(alias.asname, f"{node.module}.{alias.name}") for node in nodes for alias in node.names if alias.asname]
    return {name: origin(path) for name, path in pairs if path.startswith("bayesemble.")}


def origin(path: str) -> str:
    """Where a name is made that may have been imported several times on its way."""
    module, _, name = path.rpartition(".")
    return path if file_of(path) or path in defined(module) else imported(module)[name]


def listed(path: str) -> set[str]:
    return defined(path) if file_of(path) else {path}


def public() -> set[str]:
    """What is imported by the package itself and by its public packages, and what its public modules make."""
    names = set(imported("bayesemble").values())
    modules = {name for name in names if file_of(name)}
    packages = {name for name in modules if file_of(name).name == "__init__.py"}
    inside = [imported(name).values() if name in packages else defined(name) for name in modules]
    return (names - modules).union(*inside)


def test_every_public_name_is_listed():
    assert len(public()) > 150
    assert sorted(public() - set().union(*map(listed, ENTRIES))) == []


def test_no_name_is_listed_twice():
    names = [name for entry in ENTRIES for name in listed(entry)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_exists(entry):
    assert file_of(entry) or origin(entry) == entry


def test_all_that_the_package_promises_is_public():
    assert set(imported("bayesemble")) == set(bayesemble.__all__)
