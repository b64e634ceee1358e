import numpy as np
import pytest
import torch

from bayesemble.core.errors import MissingExtraError, SettingError
from bayesemble.predictive import ClassPredictive, Predictive
from helpers import oracle, weighted_normals


@pytest.fixture
def classes() -> ClassPredictive:
    probs = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Predictive.from_probs(probs / probs.sum(-1, keepdim=True), [0.5, 0.3, 0.2])


@pytest.fixture
def numbers():
    return weighted_normals(torch.Generator().manual_seed(0))[0]


def several_outputs():
    means = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))
    return Predictive.from_normal(means, 0.5)


def test_frame_of_classes(classes):
    pytest.importorskip("pandas")
    frame = classes.to_frame()
    columns = ["answer", "p_0", "p_1", "p_2", "p_3", "total", "aleatoric", "epistemic"]
    assert list(frame.columns) == columns
    np.testing.assert_array_equal(frame[[f"p_{label}" for label in range(4)]].to_numpy(), classes.probs.numpy())
    np.testing.assert_array_equal(frame["answer"], classes.probs.argmax(-1).numpy())
    np.testing.assert_allclose(frame["aleatoric"] + frame["epistemic"], frame["total"])


def test_classes_may_have_names(classes):
    pytest.importorskip("pandas")
    names = ["ant", "bee", "cat", "dog"]
    frame = classes.to_frame(names=names)
    assert [names.index(answer) for answer in frame["answer"]] == classes.answers.tolist()
    np.testing.assert_array_equal(frame["p_cat"], classes.probs[:, 2].numpy())
    with pytest.raises(SettingError, match="each of 4 classes"):
        classes.to_frame(names=["ant"])


def test_frame_of_numbers(numbers):
    pytest.importorskip("pandas")
    frame = numbers.to_frame(level=0.5)
    assert list(frame.columns) == ["mean", "std", "low", "high", "total", "aleatoric", "epistemic"]
    below = [numbers.cdf(torch.tensor(frame[name].to_numpy())) for name in ("low", "high")]
    torch.testing.assert_close(below[0], torch.full((12,), 0.25, dtype=torch.float64))
    torch.testing.assert_close(below[1], torch.full((12,), 0.75, dtype=torch.float64))
    np.testing.assert_allclose(frame["std"] ** 2, frame["total"])
    with pytest.raises(SettingError, match="numbers has not"):
        numbers.to_frame(names=["a"])


def test_several_outputs_have_a_column_each():
    pytest.importorskip("pandas")
    predictive = several_outputs()
    frame = predictive.to_frame()
    assert {"mean_0", "mean_1", "high_1", "epistemic_0"} < set(frame.columns)
    np.testing.assert_array_equal(frame["mean_1"], predictive.mean[:, 1].numpy())
    two = ClassPredictive(torch.ones(1), torch.rand(1, 3, 2, 4, generator=torch.Generator()).log_softmax(-1))
    np.testing.assert_array_equal(two.to_frame()["p_3_1"], two.probs[:, 1, 3].numpy())


def test_a_reduced_prediction_has_a_frame_too(numbers, classes):
    pytest.importorskip("pandas")
    for predictive in (numbers, classes):
        np.testing.assert_allclose(predictive.reduce().to_frame()["epistemic"], predictive.to_frame()["epistemic"])


def test_xarray_names_every_axis(classes, numbers):
    oracle("xarray")
    found = classes.to_xarray(names=["ant", "bee", "cat", "dog"])
    assert dict(found.sizes) == {"row": 5, "class": 4, "member": 3}
    averaged = (found["member_probs"] * found["weight"]).sum("member")
    np.testing.assert_allclose(averaged.transpose("row", "class"), found["probs"])
    np.testing.assert_array_equal(found["probs"].sel({"class": "bee"}), classes.probs[:, 1].numpy())
    found = numbers.to_xarray()
    np.testing.assert_allclose((found["member_mean"] * found["weight"]).sum("member"), found["mean"])
    assert "member_mean" not in numbers.reduce().to_xarray()
    assert several_outputs().to_xarray()["mean"].dims == ("row", "output")


def test_a_missing_package_is_named(numbers, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"bayesemble\[frames\]"):
        numbers.to_xarray()
