"""Files that torch runs: what they say, for how many rows, and what is not written."""

import zipfile

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import BayesembleError, ModelError, SettingError
from bayesemble.training.outgoing import export as exporting
from helpers import calibrated, quick_fit, table

X, Y = table()
NAMES = ["probs", "entropy", "aleatoric", "epistemic"]


@pytest.fixture(scope="module")
def ensemble() -> be.Ensemble:
    return quick_fit(be.Task(lambda: nn.Linear(4, 3), be.Categorical()), (X, Y)).reweight([1, 0, 2])


@pytest.fixture(scope="module")
def written(ensemble, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "deeper" / "model.pt2"
    assert ensemble.export(path) == NAMES
    return path


@pytest.mark.parametrize("num", [1, 5, 48])
def test_a_file_of_torch_says_what_predict_says(ensemble, written, num):
    found = torch.export.load(written).module()(X[:num])
    predictive = ensemble.predict(X[:num])
    for name in NAMES:
        assert torch.allclose(found[name], getattr(predictive, name), atol=1e-6)


def test_no_training_rows_and_no_paths_are_in_it(written):
    with zipfile.ZipFile(written) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    assert not any(row.numpy().tobytes() in part for row in X for part in content.values())
    assert not any(__file__.encode() in part or b"bayesemble/" in part for part in content.values())
    assert [path.name for path in written.parent.iterdir()] == ["model.pt2"]


def test_the_end_of_an_interval_is_in_the_file_too(tmp_path):
    task = be.Task(lambda: nn.Linear(4, 2), be.HeteroscedasticGaussian())
    ensemble = quick_fit(task, (X, X[:, 0]))
    ensemble.export(tmp_path / "model.pt2", ["mean", "high"], level=0.5)
    found = torch.export.load(tmp_path / "model.pt2").module()(X)
    assert torch.allclose(found["high"], ensemble.predict(X).interval(0.5)[1], atol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_file_of_a_calibrated_ensemble_is_calibrated(tmp_path, kind):
    ensemble, x = calibrated(kind)
    ensemble.export(tmp_path / "model.pt2", inputs=x[-7:])  # rows that thresholds come from: rounding may decide
    found, expected = torch.export.load(tmp_path / "model.pt2").module()(x), ensemble.module()(x)
    assert found.keys() == expected.keys()
    for name in found:
        if found[name].dtype == torch.bool:
            assert (found[name] == expected[name]).double().mean() > 0.99
        else:
            assert torch.allclose(found[name], expected[name], atol=1e-5), name


def test_inputs_keep_their_names(tmp_path):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], dim=1))

    rows = {"left": X[:, :1], "right": X[:, 1:]}
    ensemble = quick_fit(be.Task(Named, be.Categorical()), (rows, Y))
    ensemble.export(tmp_path / "model.pt2", ["probs"])
    found = torch.export.load(tmp_path / "model.pt2").module()(**rows)
    assert torch.allclose(found["probs"], ensemble.predict(rows).probs, atol=1e-6)


def test_a_network_that_cannot_be_followed_is_refused_by_name(tmp_path):
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else self.layer(-x)

    ensemble = quick_fit(be.Task(Looks, be.Categorical()), (X, Y))
    with pytest.raises(ModelError, match="torch cannot export Looks"):
        ensemble.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_file_that_says_something_else_never_gets_its_name(ensemble, tmp_path, monkeypatch):
    (tmp_path / "model.pt2").write_text("the old one")
    monkeypatch.setattr(exporting, "predicted", lambda own, rows, draws: ensemble.reweight([2, 0, 1]).predict(rows))
    with pytest.raises(ModelError, match="probs differs by"):
        ensemble.export(tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_text() == "the old one"
    assert len(list(tmp_path.iterdir())) == 1


def test_wishes_that_cannot_be_honoured_are_refused(ensemble, tmp_path):
    with pytest.raises(SettingError, match=r"\.pt2 or \.onnx"):
        ensemble.export(tmp_path / "model.pth")
    without_rows = be.Ensemble.from_modules(ensemble.modules(), be.Categorical())
    with pytest.raises(SettingError, match="pass inputs=x"):
        without_rows.export(tmp_path / "model.pt2")
    without_rows.export(tmp_path / "model.pt2", inputs=X)
    assert (tmp_path / "model.pt2").exists()
    with pytest.raises(BayesembleError, match="cannot be written"):
        ensemble.export(tmp_path / "model.pt2" / "inside.pt2")
