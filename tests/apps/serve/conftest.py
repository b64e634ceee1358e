import pytest

from bayesemble.apps.serve.answers import open_model
from bayesemble.apps.serve.options import Options
from served_tables import make_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A run of numbers and one of classes."""
    folder = tmp_path_factory.mktemp("served")
    return {"price": make_run(folder, "price"), "kind": make_run(folder, "kind")}


@pytest.fixture(scope="session")
def models(runs):
    options = Options()
    return {name: open_model(str(run.folder), options, "1") for name, run in runs.items()}
