"""The shape of the code itself: imports point one way, and every source file (or small folder) has its test file."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "bayesemble"

# Each module may import only from lines above its own; a folder stands for all its files.
LAYERS = [
    ["errors", "seeds", "files"],
    ["settings", "types"],
    ["schedules", "arrays", "storage"],
    ["predictive"],
    ["likelihoods", "priors", "members", "initialise", "optimizers", "predictions", "kernels", "ends"],
    ["select", "patching"],
    ["metrics", "scores"],
    ["task"],
    ["batches", "execute"],
    ["particles", "mixing", "banks", "statistics", "trajectory", "subspaces", "collected", "curvature"],
    ["measured", "paths"],
    ["interaction"],
    ["function_space"],
    ["sequential"],
    ["methods"],
    ["checkpoint", "progress", "draws", "recording"],
    ["ensemble"],
    ["fit", "weighting", "distinct", "fidelity", "convergence", "counts", "prior_predictive"],
    ["diagnose"],
    ["landscape"],
    ["plots"],
    ["data", "models"],
    ["runs", "comparison", "budget"],
    ["jobs"],
    ["workers"],
    ["compare"],
    ["report"],
    ["table_training", "table_words"],
    ["estimators"],
    ["table_targets", "table_folder"],
    ["table_runs"],
    ["cli_tables"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> list[str]:
    """First names below the package of everything a file imports, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "bayesemble":
            found += [alias.name for alias in node.names if alias.name in RANK]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayesemble."):
            found.append(node.module.split(".")[1])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = layer(path)
    for name in imported(path):
        assert name == own or RANK[name] < RANK[own], f"{own} imports {name}, which stands beside or above it"


def test_methods_import_neither_one_another_nor_torch_distributed():
    for path in (SOURCE / "methods").glob("*.py"):
        text = path.read_text()
        assert "torch.distributed" not in text
        if path.name not in ("__init__.py", "method.py"):
            assert "bayesemble.methods" not in text, f"{path.name} leans on another method"


UNTESTED = {"errors.py", "__main__.py", "methods/method.py"}  # declarations, and one call


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "__init__.py"], ids=lambda path: path.name)
def test_every_source_file_has_its_test_file(path):
    relative = path.relative_to(SOURCE)
    if str(relative) not in UNTESTED:
        of_folder = TESTS / f"test_{relative.parts[0]}.py"
        assert (TESTS / relative.parent / f"test_{relative.name}").is_file() or of_folder.is_file()


def test_files_stay_small():
    lengths = sorted(len(path.read_text().splitlines()) for path in FILES)
    assert lengths[-1] <= 400, "the largest file has grown beyond one role"
    assert lengths[len(lengths) // 2] <= 180, "the median file has grown"


def test_every_public_name_can_be_imported():
    import bayesemble

    for name in bayesemble.__all__:
        assert getattr(bayesemble, name) is not None
