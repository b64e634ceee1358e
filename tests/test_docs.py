"""What the pages name exists: files, folders, modules, public names, and the arguments that their code gives."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesemble
from bayesemble import predictive
from bayesemble.methods import Method

ROOT = Path(__file__).parents[1]
SHELVES = (ROOT, ROOT / "src" / "bayesemble", ROOT / "docs")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
READERS_OWN = re.compile(r"my_\w+|^methods\.py$|^examples?/")  # names that a reader would choose
INSTANCES = {
    "ensemble": [bayesemble.Ensemble],
    "predictive": [kind for kind in vars(predictive).values() if inspect.isclass(kind)],
}
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def exists(path: str) -> bool:
    return any((shelf / path).exists() for shelf in SHELVES)


def quoted(page: Path) -> list[str]:
    """What stands between single backticks."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def resolve(path: str) -> Any:
    """The object at a dotted path that begins with `be` or `bayesemble`."""
    value: Any = bayesemble
    for name in path.split(".")[1:]:
        try:
            value = getattr(value, name)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{name}")
    return value


def is_known(path: str) -> bool:
    first, *rest = path.split(".")
    if first in INSTANCES:
        return any(hasattr(kind, rest[0]) or rest[0] in fields(kind) for kind in INSTANCES[first])
    path = path if first in {"be", "bayesemble"} else f"be.{path}"
    parent, _, last = path.rpartition(".")
    try:
        owner = resolve(parent)
        return hasattr(owner, last) or last in fields(owner) or resolve(path) is not None
    except (AttributeError, ImportError):
        return False


def fields(owner: Any) -> dict[str, Any]:
    return getattr(owner, "__dataclass_fields__", {})


@pages
def test_files_and_folders_exist(page):
    paths = [word for word in quoted(page) if re.fullmatch(r"[\w.-]+(/[\w.-]+)*(/|\.py|\.md)", word)]
    paths += re.findall(r"\b(?:benchmarks|examples|scripts|tests|docs)/[\w/]+\.\w+", page.read_text())
    assert [path for path in paths if not exists(path) and not READERS_OWN.search(path)] == []


@pages
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pages
def test_dotted_names_exist(page):
    """Of the package, of a public name such as `Predictive.take`, of an ensemble or of a prediction."""
    begin = {"be", "bayesemble", *INSTANCES, *bayesemble.__all__}
    paths = [match[1] for word in quoted(page) if (match := re.match(r"([A-Za-z]\w*(?:\.[A-Za-z]\w*)+)", word))]
    files = re.compile(r"\.(py|md|csv|json|html|npz)$")
    named = [path for path in paths if path.split(".")[0] in begin and not files.search(path)]
    assert [path for path in named if not is_known(path)] == []


@pages
def test_classes_exist(page):
    """Of the package, or of torch."""
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    defined = set(re.findall(r"^(?:class )?([A-Z]\w+)(?:\(|:| =)", sources, flags=re.MULTILINE))
    named = {word for word in quoted(page) if re.fullmatch(r"[A-Z]+[a-z]\w*", word)}
    torchs = {word for word in named if hasattr(torch.utils.data, word) or hasattr(torch.nn, word)}
    assert sorted(named - torchs - defined) == []


def calls(tree: ast.AST) -> list[tuple[ast.Call, str]]:
    """The calls of names of the package, as `be.metrics.nll(...)`."""
    found = [(node, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(node, path) for node, path in found if path.startswith("be.")]


@pages
def test_python_blocks_use_what_there_is(page):
    """Imports are carried out, names and arguments looked up, and methods made where their settings are written out."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("bayesemble"):
                exec(ast.unparse(node), {})
            elif isinstance(node, ast.Attribute) and re.match(r"(be|ensemble|predictive)\.", ast.unparse(node)):
                path = re.match(r"[\w.]+", ast.unparse(node))[0]
                assert is_known(path), path
        for node, path in calls(tree):
            keywords = {word.arg: word.value for word in node.keywords}
            inspect.signature(resolve(path)).bind(*node.args, **keywords)
            plain = all(isinstance(value, ast.Constant) for value in keywords.values())
            if inspect.isclass(resolve(path)) and issubclass(resolve(path), Method) and plain:
                resolve(path)(**{name: value.value for name, value in keywords.items()})
