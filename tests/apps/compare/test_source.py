"""Run folders that know their data and network."""

from dataclasses import replace

import pytest
import torch

import bayesemble as be
from bayesemble.apps.compare.source import RunSource, open_run
from bayesemble.core import settings
from bayesemble.core.files import json_text, write_json
from comparisons import compared

MAP = {"class": "DeepEnsemble", "num_members": 1}


def test_a_run_is_opened_by_its_folder_alone(tmp_path):
    comparison = compared("two_moons", "mc_dropout,deep_ensemble", members=2, epochs=1, seeds=1, out=tmp_path)
    for result in comparison.results:
        ensemble, split = open_run(tmp_path / result.run)
        assert ensemble.evaluate((split.x_test, split.y_test))["nll"] == pytest.approx(result.scores["nll"], rel=1e-5)
    assert isinstance(ensemble.task.module, torch.nn.Sequential)


def test_it_is_written_and_read_back(tmp_path):
    source = RunSource(data="digits", seed=3, dropout=0.1, rows=50, ood="wine", method=MAP, epochs=4, record=True)
    source.write(tmp_path / "run")
    assert RunSource.read(tmp_path / "run") == source
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["source.json"]


def test_the_method_comes_back_with_its_settings():
    methods = (be.DeepEnsemble(num_members=3, schedule="cosine", clip=1.0), be.Laplace(num_members=2, select="all"))
    for method in methods:
        source = RunSource(data="digits", seed=0, method=settings.dump(method), epochs=1)
        assert source.make_method() == method


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": "digits"},
        {"data": "digits", "seed": 0, "method": {}},
        {"data": "digits", "seed": "x", "method": {}, "epochs": 1},
        {"data": 3, "seed": 0, "method": {}, "epochs": 1},
        {"data": "digits", "seed": True, "method": {}, "epochs": 1},
        {"data": "digits", "seed": 0, "method": {}, "epochs": -1},
        {"data": "digits", "seed": 0, "method": {}, "epochs": 1, "rows": 1.5},
        {"data": "digits", "seed": 0, "method": {}, "epochs": 1, "dropout": 1.5},
        {"data": "digits", "seed": 0, "method": "map", "epochs": 1},
        {"data": "digits", "seed": 0, "method": {}, "epochs": 1, "colour": "red"},
    ],
    ids=str,
)
def test_damaged_sources_are_refused(tmp_path, content):
    (tmp_path / "source.json").write_text(json_text(content))
    with pytest.raises(be.CheckpointError, match=r"source\.json is damaged or not of this library"):
        RunSource.read(tmp_path)
    write_json(tmp_path / "source.json", content)
    with pytest.raises(be.CheckpointError, match=r"does not say where the rows of the run come from"):
        RunSource.read(tmp_path)


def test_a_folder_with_a_run_of_other_settings_is_refused(tmp_path):
    source = RunSource(data="digits", seed=3, method=MAP, epochs=4)
    source.check(tmp_path)  # there is none yet
    source.write(tmp_path)
    source.check(tmp_path)
    with pytest.raises(be.CheckpointError, match=r"other settings: epochs was 4, now it is 5; choose another folder"):
        replace(source, epochs=5).check(tmp_path)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(be.CheckpointError, match=r"is not a run of the command line: it has no source\.json"):
        open_run(tmp_path)
