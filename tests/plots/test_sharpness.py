"""Sharpness against error: one numbered point for each member."""

import pytest
import torch

from bayesemble.landscape import Sharpness
from bayesemble.plots import plot_sharpness

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.parametrize(("classes", "words"), [(True, "share of wrong classes"), (False, "root mean squared error")])
def test_points_numbers_and_labels(classes, words):
    eigenvalues = torch.tensor([[3.0, 1.0], [5.0, 2.0], [4.0, 0.5]]).double()
    error, others = torch.tensor([0.1, 0.2, 0.3]).double(), torch.ones(3).double()
    _, ax = plt.subplots()
    assert plot_sharpness(Sharpness(eigenvalues, others, others, others, error, classes), ax) is ax
    points = torch.as_tensor(ax.collections[0].get_offsets().data)
    assert torch.equal(points, torch.stack([error, eigenvalues[:, 0]], 1))
    assert [text.get_text() for text in ax.texts] == ["0", "1", "2"]
    assert ax.get_xlabel() == words
    assert ax.get_ylabel() == "largest eigenvalue of the Hessian"
    plt.close("all")
