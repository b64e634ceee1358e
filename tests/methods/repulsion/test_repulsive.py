import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.methods.repulsion.interacting import products
from helpers import quick_fit, small_mlp, table

GOLDEN = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)


def test_golden_values():
    """Particles -1, 0, 2 under a standard normal, whose score is -x: phi = score - kde."""
    forces = be.Repulsive(num_members=3, calibrate=False).forces(*products([GOLDEN]))
    assert forces.driving is None
    expected = torch.tensor([0.44545856, 0.53551558, -1.97839191], dtype=torch.float64)
    torch.testing.assert_close((-GOLDEN - forces.repelling @ GOLDEN).squeeze(1), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("count", "dim"), [(5, 300), (30, 4)])
def test_calibrated_repulsion_keeps_steins_identity(whiten, count, dim):
    x = torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram, _ = products([x])
    g = be.Repulsive(num_members=count, whiten=whiten).forces(gram, dim).repelling @ x
    held = -float(((x - x.mean(0)) * g).sum(1).mean())
    assert held == pytest.approx(
        float(be.scores.effective_dimension(be.scores.principal_axes(gram, dim), dim)), rel=1e-5
    )


def test_uncalibrated_repulsion_is_as_small_as_the_notes_say():
    """log(M + 1) / (2 d) of the true score: this is why the papers' form is a deep ensemble in many dimensions."""
    x = torch.randn(20, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g = be.Repulsive(num_members=20, calibrate=False).forces(*products([x])).repelling @ x
    slope = -float((g * (x - x.mean(0))).sum() / (x - x.mean(0)).square().sum())
    assert slope == pytest.approx(float(torch.tensor(21.0).log()) / (2 * 5000), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "parzen"}, "estimator is 'kde', 'sge' or 'ssge', got 'parzen'"),
        ({"eta": -1.0}, "eta is a number above 0, got -1.0"),
        ({"threshold": 1.5}, r"threshold is a number in \(0, 1\] or None, got 1.5"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        be.Repulsive(**settings)


def test_members_end_further_apart_than_a_deep_ensemble():
    def spread(method) -> float:
        task = be.Task(small_mlp, be.Categorical())
        return float(
            quick_fit(task, table(), method, epochs=60, batch_size=48).predict(4 * table()[0]).epistemic.mean()
        )

    settings = {"num_members": 8, "learning_rate": 0.02}
    assert spread(be.Repulsive(**settings)) > 1.2 * spread(be.DeepEnsemble(**settings))


@pytest.mark.parametrize(
    "method", [be.Repulsive(num_members=4), be.Stein(num_members=4)], ids=lambda m: type(m).__name__
)
def test_members_that_start_in_one_place_stay_finite(method, monkeypatch):
    monkeypatch.setattr(type(method), "moves_members_apart", True)  # otherwise they are refused

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    ensemble = quick_fit(be.Task(Constant, be.Categorical()), table(), method)
    assert ensemble.state.members.params["weight"].isfinite().all()
