"""ONNX files; they need the extra `export`, without which these tests skip."""

import sys

import numpy as np
import pytest
from torch import nn

import bayesemble as be
from bayesemble.core.errors import MissingExtraError, ModelError
from bayesemble.training.outgoing.onnx_files import named_tensors
from helpers import calibrated, quick_fit, table

X, Y = table()


def test_inputs_have_names():
    assert list(named_tensors(X)) == ["inputs"]
    assert list(named_tensors((X, Y))) == ["inputs_0", "inputs_1"]
    assert list(named_tensors({"left": X})) == ["left"]


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), (X, Y))
    with pytest.raises(MissingExtraError, match=r"bayesemble\[export\]"):
        ensemble.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    task = be.Task(lambda: nn.Linear(4, 2), be.HeteroscedasticGaussian())
    ensemble, path = quick_fit(task, (X, X[:, 0])), tmp_path_factory.mktemp("files") / "model.onnx"
    names = ensemble.reweight([1, 0, 2]).export(path)
    return ensemble.reweight([1, 0, 2]), runtime.InferenceSession(str(path)), names, path


@pytest.mark.parametrize("num", [1, 7, 48])
def test_onnxruntime_says_what_predict_says(onnx_files, num):
    ensemble, session, names, _ = onnx_files
    assert [value.name for value in session.get_outputs()] == names
    found = dict(zip(names, session.run(None, {"inputs": X[:num].numpy()}), strict=True))
    predictive = ensemble.predict(X[:num])
    low, high = predictive.interval(0.9)
    expected = {"mean": predictive.mean, "std": predictive.std, "low": low, "high": high}
    expected |= {"aleatoric": predictive.aleatoric, "epistemic": predictive.epistemic}
    for name in names:
        np.testing.assert_allclose(found[name], expected[name].numpy(), rtol=1e-5, atol=1e-5)


def test_no_paths_of_this_machine_are_in_a_file(onnx_files):
    content = onnx_files[3].read_bytes()
    assert b"bayesemble" not in content
    assert b".py" not in content


def test_an_output_without_a_counterpart_is_refused(onnx_files, tmp_path):
    counts = quick_fit(be.Task(lambda: nn.Linear(4, 1), be.Poisson()), (X, Y.float()))
    with pytest.raises(ModelError, match=r"mean, low .*igammac.*of counts, all but low and high"):
        counts.export(tmp_path / "model.onnx", ["mean", "low"])
    counts.export(tmp_path / "model.onnx", ["mean", "epistemic"])
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_calibrated_ensemble_is_calibrated_in_the_file(tmp_path, kind):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    ensemble, x = calibrated(kind)
    names = ensemble.export(tmp_path / "model.onnx", None if kind == "classes" else ["std", "low"])
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    found, expected = session.run(names, {"inputs": x.numpy()}), ensemble.module()(x)
    for name, values in zip(names, found, strict=True):
        if values.dtype == bool:
            assert (values == expected[name].numpy()).mean() > 0.99
        else:
            np.testing.assert_allclose(values, expected[name].detach().numpy(), atol=1e-5)


@pytest.mark.usefixtures("onnx_files")
def test_a_student_of_classes_goes_into_a_file_with_its_doubt(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    teacher = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), (X, Y))
    student = be.distil(teacher, lambda: nn.Linear(4, 2), X, mixed=0, epochs=2, progress=False)
    student.export(tmp_path / "student.onnx")
    session = runtime.InferenceSession(str(tmp_path / "student.onnx"))
    (found,) = session.run(["epistemic"], {"inputs": X.numpy()})
    np.testing.assert_allclose(found, student.predict(X).epistemic, atol=1e-5)
