import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.types import Batch, Clock
from bayesemble.diagnostics.convergence import effective_sample_size
from bayesemble.methods.along_training.running_moments import MEAN
from bayesemble.methods.base import Context
from helpers import norm_mlp, quick_fit, small_mlp, table

SHORT = {"epochs": 12, "batch_size": 16}  # 36 steps


def task(model=small_mlp) -> be.Task:
    return be.Task(model, be.Categorical())


def small(**settings) -> be.Subspace:
    return be.Subspace(**({"dim": 2, "rank": 5, "draws": 6, "warmup": 2, "vi_epochs": 3} | settings))


class Linear:
    """Linear regression: in any subspace the posterior of the coordinates is a known Gaussian."""

    def __init__(self, num_data: int = 40) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
        noise = torch.randn(40, generator=generator, dtype=torch.float64)
        self.y = self.x @ torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64) + 0.5 * noise
        self.task = be.Task(lambda: nn.Linear(4, 1, bias=False).double(), be.Gaussian(0.5), num_data=num_data)

    def fitted(self, method: be.Subspace) -> be.Ensemble:
        return quick_fit(self.task, (self.x, self.y), method, epochs=60, batch_size=40, executor="vmap")

    def posterior(self, ensemble: be.Ensemble, member: int) -> tuple[torch.Tensor, torch.Tensor]:
        method, slots = ensemble.method, ensemble.state.slots
        basis = slots["subspace_basis"]["weight"][member].flatten(1)
        noise = 0.5 * (method.temperature * 40 / self.task.num_data) ** 0.5
        design = self.x @ basis.T / noise
        residual = (self.y - self.x @ slots[MEAN]["weight"][member].flatten()) / noise
        precision = design.T @ design + torch.eye(len(basis), dtype=torch.float64) / method.std**2
        covariance = torch.linalg.inv(precision)
        return covariance @ design.T @ residual, covariance


@pytest.mark.parametrize(
    ("basis", "temperature", "num_data"),
    [("pca", 1.0, 40), ("random", 20.0, 40), ("curve", 20.0, 40), ("pca", 20.0, 200)],
)
def test_slice_sampling_gives_the_posterior_in_the_subspace(basis, temperature, num_data):
    """Moments of both coordinates within 4 Monte Carlo standard errors."""
    problem = Linear(num_data)
    method = small(
        basis=basis, temperature=temperature, draws=400, warmup=20, num_members=2, std=30.0, learning_rate=0.05
    )
    ensemble = problem.fitted(method)
    for member in range(2):
        points = ensemble.state.slots["subspace_points"]["points"][member : member + 1]
        mean, covariance = problem.posterior(ensemble, member)
        for values, wanted in ((points, mean), ((points - mean) ** 2, covariance.diagonal())):
            error = values[0].std(0) / effective_sample_size(values).sqrt()
            assert ((values.mean((0, 1)) - wanted).abs() < 4 * error).all()


@pytest.mark.parametrize(("std", "temperature"), [({"weight": 1.0}, 1.0), ({"weight": 0.5}, 0.25)])
def test_in_the_whole_space_the_posterior_under_the_tasks_prior_is_the_exact_one(std, temperature):
    """Four directions of four weights of linear regression: mean and covariance, whatever training went through."""
    problem = Linear()
    prior = be.NormalPrior(std=std)
    problem.task = be.Task(problem.task.model, be.Gaussian(0.5), prior, temperature=temperature)
    method = small(prior="task", dim=4, rank=10, draws=400, warmup=30, num_members=2, learning_rate=0.05)
    ensemble = problem.fitted(method)
    precision = problem.x.T @ problem.x / 0.25 + torch.eye(4, dtype=torch.float64) / std["weight"] ** 2
    covariance = torch.linalg.inv(precision) * temperature
    mean = torch.linalg.solve(precision, problem.x.T @ problem.y / 0.25)
    drawn = ensemble.draw(400).params["weight"].reshape(200, 2, 4).transpose(0, 1)  # (chain, draw, weight)
    for values, wanted in ((drawn, mean), ((drawn - mean) ** 2, covariance.diagonal())):
        error = values.reshape(-1, 4).std(0) / effective_sample_size(values).sqrt()
        assert ((values.mean((0, 1)) - wanted).abs() < 4 * error).all()
    # The test can fail: the prior in units of the trajectory is narrower by far.
    narrow = problem.fitted(small(dim=4, rank=10, draws=100, learning_rate=0.05)).draw(100).params["weight"]
    assert (narrow.flatten(1).var(0) < 0.5 * covariance.diagonal()).any()


def test_a_task_without_a_normal_prior_has_none_to_cut_a_subspace_out_of():
    with pytest.raises(SettingError, match="cuts the subspace out of a NormalPrior, the task has LaplacePrior"):
        quick_fit(be.Task(small_mlp, be.Categorical(), be.LaplacePrior()), table(), small(prior="task"), **SHORT)
    with pytest.raises(SettingError, match=r"std=2\.0 is of the subspace's own prior"):
        small(prior="task", std=2.0)


def test_the_fitted_gaussian_has_the_mean_and_the_conditional_widths():
    """The best diagonal Gaussian for a Gaussian has its mean and the inverse of the diagonal of its precision."""
    problem = Linear(num_data=120)
    method = small(
        inference="vi", draws=3000, vi_epochs=600, vi_rate=0.05, std=30.0, temperature=20.0, learning_rate=0.05
    )
    ensemble = problem.fitted(method)
    points = ensemble.state.slots["subspace_points"]["points"][0]
    mean, covariance = problem.posterior(ensemble, 0)
    widths = torch.linalg.inv(covariance).diagonal().rsqrt()
    assert ((points.mean(0) - mean).abs() < 0.25 * widths).all()
    assert ((points.std(0) / widths - 1).abs() < 0.25).all()


@pytest.mark.parametrize(("rate", "width"), [(1e-9, 0.3), (0.1, 3.0)], ids=["before", "after"])
def test_the_gaussian_starts_at_a_tenth_of_the_prior_and_without_data_becomes_the_prior(rate, width):
    """At such a temperature the data say nothing, and the slope of the divergence is no random number."""
    method = small(inference="vi", draws=3000, vi_epochs=120, vi_rate=rate, std=3.0, temperature=1e12)
    points = Linear().fitted(method).state.slots["subspace_points"]["points"][0]
    assert (points.mean(0).abs() < 4 * width / 3000**0.5).all()
    assert ((points.std(0) / width - 1).abs() < 4 / 6000**0.5).all()


@pytest.mark.parametrize("inference", ["ess", "vi"])
@pytest.mark.parametrize("model", [small_mlp, norm_mlp])
@pytest.mark.parametrize("members", [1, 3])
def test_networks_lie_in_the_subspace_and_predict(inference, model, members):
    basis = "curve" if members == 3 else "pca"
    method = small(inference=inference, num_members=members, basis=basis, curve_epochs=2)
    ensemble = quick_fit(task(model), table(), method, **SHORT)
    slots, drawn = ensemble.state.slots, ensemble.draw(6)
    points = slots["subspace_points"]["points"]
    for number in range(6):
        member, turn = number % members, number // members
        for name, leaf in drawn.params.items():
            step = torch.einsum("r,r...->...", points[member, turn].float(), slots["subspace_basis"][name][member])
            torch.testing.assert_close(leaf[number], slots[MEAN][name][member] + step)
    x = table()[0]
    assert ensemble.predict(x).probs.isfinite().all()
    if model is norm_mlp:
        hidden = x @ drawn.params["0.weight"][4].T + drawn.params["0.bias"][4]
        torch.testing.assert_close(drawn.buffers["1.running_mean"][4], hidden.mean(0), rtol=1e-4, atol=1e-5)


def test_the_members_own_statistics_stay_and_executors_agree():
    plain = quick_fit(task(norm_mlp), table(), be.DeepEnsemble(num_members=2), **SHORT)
    loop, vmap = (
        quick_fit(task(norm_mlp), table(), small(num_members=2), **SHORT, executor=kind) for kind in ("loop", "vmap")
    )
    own, wanted = loop.state.members.buffers, plain.state.members.buffers
    assert all(torch.equal(own[name], leaf) for name, leaf in wanted.items())
    x = table()[0]
    torch.testing.assert_close(loop.predict(x).probs, vmap.predict(x).probs, rtol=0, atol=1e-3)


def test_a_run_too_short_is_refused_and_one_that_stops_early_keeps_its_members():
    with pytest.raises(SettingError, match="give 0 snapshots, 3 are needed"):
        quick_fit(task(), table(), small(), epochs=1)
    with pytest.warns(UserWarning, match="too few for 2 directions"):
        early = quick_fit(task(), table(), small(), **SHORT, on_epoch=lambda state, row: True)
    assert early.predict(table()[0]).probs.isfinite().all()


def test_the_centre_is_the_mean_of_the_snapshots_that_were_asked_for():
    """Three after the half of twelve steps: after the eighth, the tenth and the last."""
    seen = []

    def remember(state, _row):
        seen.append(state.members.params["0.weight"].clone())

    method = small(start=0.5, snapshots=3, learning_rate=0.01)
    ensemble = quick_fit(task(), table(), method, epochs=12, batch_size=None, on_epoch=remember)
    centre = ensemble.state.slots[MEAN]["0.weight"]
    torch.testing.assert_close(centre, torch.stack([seen[step] for step in (7, 9, 11)]).mean(0))


def test_as_many_snapshots_as_directions_are_too_few():
    method, options = small(start=0.5, snapshots=3), {"epochs": 12, "batch_size": None}
    with pytest.warns(UserWarning, match="stopped after 2 snapshots, too few for 2 directions"):
        early = quick_fit(task(), table(), method, **options, on_epoch=lambda state, row: row["epoch"] == 10)
    assert early.predict(table()[0]).num_members == 1
    assert small(dim=5).num_directions == 5, "as many as the rank are not too many"
    assert (be.Subspace().num_directions, be.Subspace(basis="curve", num_members=2).num_directions) == (5, 2)


@pytest.mark.parametrize("basis", ["pca", "curve"])
def test_saved_loaded_and_kept(tmp_path, basis):
    method = small(num_members=2, basis=basis, curve_epochs=2)
    ensemble, x = quick_fit(task(norm_mlp), table(), method, **SHORT), table()[0]
    assert ensemble.draw().num_members == ensemble.predict(x).num_members == 6, "as many as the setting says"
    ensemble.save(tmp_path)
    assert torch.equal(be.load(tmp_path, norm_mlp).predict(x).probs, ensemble.predict(x).probs)
    kept = ensemble.keep([1]).draw(2)
    assert torch.equal(kept.params["0.weight"][1], ensemble.draw(4).params["0.weight"][3])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"basis": "line"}, "basis is 'pca', 'random' or 'curve', got 'line'"),
        ({"basis": "curve", "dim": 3}, "the plane of a curve has two directions"),
        ({"dim": 0}, "dim is a whole number from 1 or None, got 0"),
        ({"inference": "mcmc"}, "inference is 'ess' or 'vi', got 'mcmc'"),
        ({"temperature": 0.0}, "temperature is a number above 0, got 0.0"),
        ({"dim": 9}, "9 directions cannot be found from rank=5"),
        ({"start": 1.0}, r"start is a number in \[0, 1\), got 1.0"),
        ({"draws": 0}, "draws is a whole number from 1, got 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        small(**settings)


def test_the_plane_of_a_curve_holds_the_member_and_the_next_one():
    """They are sqrt(3) apart along the first direction, and not at all along the second."""
    ensemble = quick_fit(task(), table(), small(num_members=3, basis="curve", curve_epochs=5), **SHORT)
    slots, params = ensemble.state.slots, ensemble.state.members.params
    own = torch.cat([leaf.flatten(1) for leaf in params.values()], 1).double()
    for member in range(3):
        basis = torch.cat([leaf[member].flatten(1) for leaf in slots["subspace_basis"].values()], 1).double()
        centre = torch.cat([leaf[member].flatten() for leaf in slots[MEAN].values()]).double()
        away = own[[member, (member + 1) % 3]] - centre
        found = torch.linalg.lstsq(basis.T, away.T).solution
        torch.testing.assert_close(basis.T @ found, away.T, rtol=0, atol=1e-5)
        torch.testing.assert_close(found[:, 1] - found[:, 0], found.new_tensor([3**0.5, 0.0]), rtol=0, atol=1e-4)


def test_a_curve_needs_another_member():
    with pytest.raises(SettingError, match="needs num_members=2"):
        quick_fit(task(), table(), small(basis="curve"), **SHORT)


def test_the_middle_of_a_curve_moves_at_the_learning_rate():
    """A first step of Adam is as long as its rate, and so is the first of all epochs."""
    x, y = table()
    bound = task().bind(len(x), x)
    members = bound.new_members(2, seed=0)
    found = []
    for rate in (0.01, 0.02):
        method = small(num_members=2, basis="curve", curve_epochs=1, learning_rate=rate)
        context = Context(bound, be.Vmap(), Clock(0, 10, 0))
        generators = [torch.Generator().manual_seed(member) for member in range(2)]
        points = method._curves(members, lambda: iter([Batch(x, y)]), context, generators)
        for name, leaf in members.params.items():
            torch.testing.assert_close(points[name][:, [0, 2]], torch.stack([leaf, leaf.roll(-1, 0)], 1))
        found.append(torch.cat([(leaf[:, 1] - (leaf[:, 0] + leaf[:, 2]) / 2).flatten() for leaf in points.values()]))
    torch.testing.assert_close(found[1], 2 * found[0], rtol=1e-3, atol=1e-6)
    assert found[0].abs().median() == pytest.approx(0.01, rel=1e-3)
