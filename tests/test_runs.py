"""Run folders that know their data and network."""

import pytest
import torch

import bayesemble as be
from bayesemble.compare import compare
from bayesemble.runs import Source, open_run


def test_a_run_is_opened_by_its_folder_alone(tmp_path):
    comparison = compare("two_moons", "mc_dropout,deep_ensemble", members=2, epochs=1, seeds=1, out=tmp_path)
    for result in comparison.results:
        ensemble, split = open_run(tmp_path / result.run)
        assert ensemble.evaluate((split.x_test, split.y_test))["nll"] == pytest.approx(result.scores["nll"], rel=1e-5)
    assert isinstance(ensemble.task.module, torch.nn.Sequential)


def test_it_is_written_and_read_back(tmp_path):
    source = Source("digits", 3, dropout=0.1)
    source.write(tmp_path / "run")
    assert Source.read(tmp_path / "run") == source


@pytest.mark.parametrize("text", ["", "[]", '{"data": "digits"}', '{"data": "digits", "seed": "x", "dropout": 0}'])
def test_damaged_sources_are_refused(tmp_path, text):
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(be.CheckpointError, match=r"does not say where the rows of the run come from"):
        Source.read(tmp_path)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(be.CheckpointError, match=r"is not a run of the command line: it has no source\.json"):
        open_run(tmp_path)
