import shutil
import time

import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry, names_of
from bayesemble.core.errors import CheckpointError, SettingError


def test_names_are_those_of_folders_or_given(tmp_path):
    assert names_of(["runs/a", tmp_path / "b", "c=runs/a"]) == {
        "a": tmp_path.__class__("runs/a"),
        "b": tmp_path / "b",
        "c": tmp_path.__class__("runs/a"),
    }


@pytest.mark.parametrize("folders", [["x/run", "y/run"], ["a b"], ["=run"], ["ü"], ["a%2f=run"]])
def test_names_that_cannot_be_are_refused(folders):
    with pytest.raises(SettingError):
        names_of(folders)


def test_several_models_and_no_folder_of_another_kind(runs, tmp_path):
    registry = Registry([f"{name}={run.folder}" for name, run in runs.items()], Options())
    assert [one.name for one in registry] == ["price", "kind"]
    assert registry.only() is None
    assert registry.find("price").model.schema.task == "regression"
    assert registry.find("other") is None
    assert 'bayesemble_watched{model="kind"} 1' in registry.metrics_text()
    registry.close()
    with pytest.raises(CheckpointError):
        Registry([tmp_path], Options())


def test_a_tolerance_is_for_numbers(runs):
    asked = Options(max_risk=0.5, tolerance=5.0)
    with pytest.raises(SettingError, match="all targets here are classes"):
        Registry([runs["kind"].folder], asked)
    Registry([run.folder for run in runs.values()], asked).close()  # it says something of one of them


def test_folders_are_looked_at_in_time(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["price"].folder, folder)
    registry = Registry([folder], Options(reload_seconds=0.02))
    registry.start()
    (folder / "profile.json").touch()
    end = time.monotonic() + 20
    while registry.only().model.version == "1" and time.monotonic() < end:
        time.sleep(0.01)
    registry.close()
    assert int(registry.only().model.version) > 1
