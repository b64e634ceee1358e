import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods.repulsion.interacting import products
from helpers import quick_fit, small_mlp, table

RELEASED = {
    "rbf": lambda x, y: torch.exp(-(torch.cdist(x, y) ** 2) / (2 * _median_of_squares(x) / (2 * math.log(len(x) + 1)))),
    "laplace": lambda x, y: torch.exp(-torch.cdist(x, y) / 100),
    "linear": lambda x, y: x @ y.T,
}
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


# --- the published loop ---


def _median_of_squares(x: Tensor) -> Tensor:
    return (torch.cdist(x, x) ** 2).detach().flatten().quantile(0.5)


def published(weights: Tensor, x: Tensor, y: Tensor, kernel: str, estimator: str, epsilon: float) -> Tensor:
    """Five epochs of three steps as the reproduction trains: Adam on the sum over rows, driving force times 0.01."""
    with scoped(0):
        module, rows = small_mlp().double(), len(x)
    shapes = {name: leaf.shape for name, leaf in module.named_parameters()}
    weights = weights.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights], 1e-2, eps=epsilon)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def loss(row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = row.split([shape.numel() for shape in shapes.values()])
        leaves = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        likelihood = rows * nn.functional.cross_entropy(functional_call(module, leaves, (inputs,)), targets)
        return likelihood - torch.distributions.Normal(0.0, 0.5).log_prob(row).sum()

    for _ in range(5):
        for start in range(0, rows, 16):
            w = weights.detach().requires_grad_()
            losses = torch.stack([loss(row, x[start : start + 16], y[start : start + 16]) for row in w])
            drift = torch.autograd.grad(losses.sum(), w)[0]
            between = RELEASED[kernel](w, w.detach())
            slopes = torch.autograd.grad(between.sum(), w)[0]
            if estimator == "kde":
                density = slopes / between.sum(1, keepdim=True)
            else:
                density = torch.linalg.solve(between + 0.01 * torch.eye(len(w)), slopes)
            weights.grad = 0.01 * drift + density.detach()
            optimizer.step()
        schedule.step()
    return weights.detach()


@pytest.mark.parametrize(
    ("kernel", "estimator"), [("rbf", "kde"), ("rbf", "sge"), ("laplace", "kde"), ("linear", "kde")]
)
def test_a_whole_run_is_that_of_the_published_loop_with_its_epsilon_divided_by_the_rows(kernel, estimator):
    x, y = table(48)
    x = x.double()
    task = be.Task(lambda: small_mlp().double(), be.Categorical(), be.NormalPrior(std=0.5))
    method = be.Repulsive(
        num_members=4,
        estimator=estimator,
        kernel=be.kernels.Laplace(100.0) if kernel == "laplace" else kernel,
        calibrate=False,
        driving=0.01,
        learning_rate=1e-2,
        schedule=be.schedules.Step(at=(0.2, 0.4, 0.6, 0.8), factor=0.8),
        epsilon=1e-8 / 48,
    )
    flat = [leaf.flatten(1) for leaf in method.init(task.bind(48, x), 0).members.params.values()]
    start, loader = torch.cat(flat, 1), DataLoader(TensorDataset(x, y), batch_size=16, generator=torch.Generator())
    ensemble = quick_fit(task, loader, method, epochs=5, batch_size=None, seed=0)
    end = torch.cat([leaf.flatten(1) for leaf in ensemble.state.members.params.values()], 1)
    size = float((end - start).abs().max())
    assert size > 0.05
    assert float((end - published(start, x, y, kernel, estimator, 1e-8)).abs().max()) < 1e-8 * size
    if kernel == "laplace":  # epsilon matters: where weights get no gradient but that of the prior and the others
        assert float((end - published(start, x, y, kernel, estimator, 1e-2)).abs().max()) > 1e-3 * size


@pytest.mark.parametrize("space", ["weight", "function"])
def test_a_prior_of_each_member_is_the_run_of_each_with_its_own(space):
    """Without repulsion, members under stds of their own are those of three runs with one std each."""
    common = {"num_members": 3, "repulsion": 0.0, "space": space}
    method = be.Repulsive(**common, **({"function_prior": False} if space == "function" else {}))
    stds, data = (0.05, 0.3, 2.0), table(48)

    def weights(std: float | list[float]) -> Tensor:
        task = be.Task(small_mlp, be.Categorical(), be.NormalPrior(std=std))
        return quick_fit(task, data, method).state.members.params["0.weight"]

    together = weights(list(stds))
    for member, std in enumerate(stds):
        torch.testing.assert_close(together[member], weights(std)[member])
    assert float((together[0] - weights(2.0)[0]).abs().max()) > 1e-3


def test_a_prior_of_each_member_is_refused_where_it_cannot_be_honoured():
    task = be.Task(small_mlp, be.Categorical(), be.NormalPrior(std=(0.1, 1.0)))
    for method in (be.Repulsive(num_members=2, space="function"), be.Laplace(), be.EMP(select="output"), be.HMC()):
        with pytest.raises(SettingError, match="a prior of its own, which this method or measure cannot honour"):
            quick_fit(task, table(48), method, batch_size=None)


def test_kernels_of_ones_own_serve_training_and_are_saved(tmp_path):
    def cauchy(s: Tensor) -> Tensor:
        return 1 / (1 + s)

    task, data = be.Task(small_mlp, be.Categorical()), table(48)
    for kernel, revived in ((be.kernels.RBF(0.5), be.kernels.RBF(0.5)), (be.kernels.Linear(), be.kernels.Linear())):
        method = be.Repulsive(num_members=3, kernel=kernel, calibrate=False)
        quick_fit(task, data, method).save(tmp_path / type(kernel).__name__)
        assert be.load(tmp_path / type(kernel).__name__, small_mlp).method.kernel == revived
    own = quick_fit(task, data, be.Repulsive(num_members=3, kernel=cauchy, whiten=False), executor="vmap")
    own.save(tmp_path / "own")
    loaded = be.load(tmp_path / "own", small_mlp)
    torch.testing.assert_close(loaded.predict(data[0]).probs, own.predict(data[0]).probs)
    rbf = quick_fit(task, data, be.Repulsive(num_members=3, kernel=lambda s: torch.exp(-s / 2), whiten=False))
    named = quick_fit(task, data, be.Repulsive(num_members=3, kernel="rbf", whiten=False))
    torch.testing.assert_close(rbf.predict(data[0]).probs, named.predict(data[0]).probs)
