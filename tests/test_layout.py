"""The shape of the house: rooms in layers, no cycle between modules, and a test file for every source file."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "bayesemble"
ARCHITECTURE = TESTS.parent / "docs" / "architecture.md"

# Each room may import only from the lines above its own.
LAYERS = [
    ["core"],
    ["predictive", "data", "models"],
    ["task", "metrics"],
    ["execute"],
    ["methods"],
    ["training"],
    ["diagnostics", "estimators"],
    ["diagnostics/plots", "apps/tables", "apps/compare"],
    ["apps/report", "apps/serve"],
    ["apps/cli"],
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}
ENTRANCES = {"bayesemble", "bayesemble.__main__"}  # they stand in front of the house
INSIDE = sorted(MODULES.keys() - ENTRANCES)


def room(module: str) -> str | None:
    """The innermost room that a module stands in; a bare `apps` is none."""
    parts = MODULES[module].relative_to(SOURCE).parts[:-1]
    names = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((name for name in names if name in RANK), None)


def imported(module: str) -> set[str]:
    """Modules of the package that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            modules = {path for path in names.values() if path in MODULES}
            found |= modules
            if len(modules) < len(names):
                found.add(node.module)
    return found - {module}


IMPORTS = {module: imported(module) for module in MODULES}


@pytest.mark.parametrize("module", INSIDE)
def test_imports_point_one_way(module):
    own = room(module)
    for other in IMPORTS[module] - ENTRANCES:
        if own != room(other):
            assert RANK[room(other)] < RANK[own], f"{module} imports {other}, which stands beside or above it"


def test_there_are_ten_layers_at_most():
    assert len(LAYERS) <= 10


def test_no_module_imports_itself_by_a_detour():
    try:
        TopologicalSorter({module: IMPORTS[module] for module in INSIDE}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_methods_do_not_know_of_other_methods_nor_of_torch_distributed():
    from bayesemble.methods import METHODS, method_class

    owners = {method_class(name).__module__ for name in METHODS}
    for module in owners:
        assert not IMPORTS[module] & (owners | {"bayesemble.methods"}), f"{module} leans on another method"
    for module, path in MODULES.items():
        if module.startswith("bayesemble.methods"):
            assert "torch.distributed" not in path.read_text(), module


def test_no_floor_is_crowded():
    assert len([path for path in SOURCE.iterdir() if path.name != "__pycache__"]) <= 15
    for folder in {path.parent for path in FILES}:
        files = [path for path in folder.iterdir() if path.suffix == ".py" and path.name != "__init__.py"]
        assert len(files) <= 12, f"{folder.relative_to(SOURCE)} has {len(files)} files"


def test_a_name_is_a_module_or_something_else_but_not_both():
    """`bayesemble.metrics.crps` must not be a function for some and a module for others."""
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            bound = {
                alias.asname or alias.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and node.module in MODULES
                for alias in node.names
                if f"{node.module}.{alias.name}" not in MODULES
            }
            assert not {name for name in bound if f"{module}.{name}" in MODULES}


ROOMS = sorted(
    path.parent.relative_to(SOURCE) for path in FILES if path.name == "__init__.py" and path.parent != SOURCE
)


@pytest.mark.parametrize("folder", ROOMS, ids=str)
def test_the_architecture_quotes_each_room(folder):
    sentence = (ast.get_docstring(ast.parse((SOURCE / folder / "__init__.py").read_text())) or "").splitlines()[0]
    assert sentence.endswith(".")
    assert f"`{folder}/` | {sentence} |" in ARCHITECTURE.read_text()


UNTESTED = {"core/errors.py", "__main__.py"}  # declarations, and one call
TESTED = [path for path in FILES if path.name != "__init__.py" and str(path.relative_to(SOURCE)) not in UNTESTED]


@pytest.mark.parametrize("path", TESTED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_source_file_has_its_own_test_file(path):
    relative = path.relative_to(SOURCE)
    assert (TESTS / relative.parent / f"test_{relative.name}").is_file()


def test_every_test_file_has_its_source_file():
    """But for whole folders that speak of no single file: what they prove stands in their names."""
    across = {"exact", "contract", "browser"}
    for path in TESTS.rglob("test_*.py"):
        relative = path.relative_to(TESTS)
        if len(relative.parts) > 1 and relative.parts[0] not in across:
            assert (SOURCE / relative.parent / relative.name.removeprefix("test_")).is_file(), relative


def test_files_stay_small():
    lengths = sorted(len(path.read_text().splitlines()) for path in FILES)
    assert lengths[-1] <= 400, "the largest file has grown beyond one role"
    assert lengths[len(lengths) // 2] <= 180, "the median file has grown"


def test_every_public_name_can_be_imported():
    import bayesemble

    for name in bayesemble.__all__:
        assert getattr(bayesemble, name) is not None
