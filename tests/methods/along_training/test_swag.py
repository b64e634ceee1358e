import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Clock
from bayesemble.methods import numbered_draws
from bayesemble.methods.along_training import running_moments
from bayesemble.methods.base import Context
from helpers import norm_mlp, quick_fit, small_mlp, table

MANY = {"epochs": 12, "batch_size": 16}  # 36 steps


def task(model=small_mlp) -> be.Task:
    return be.Task(model, be.Categorical())


def along(method: be.SWAG, points: list[dict], model=small_mlp) -> State:
    """The state after snapshots of a given trajectory of stacked leaves."""
    bound = task(model).bind(48, table()[0])
    state = method.init(bound, 0)
    for point in points:
        for name, leaf in point.items():
            state.members.params[name].copy_(leaf)
        running_moments.collect(state)
    return method.finish(state, lambda: iter([]), Context(bound, be.Loop(), Clock(1, 1, 0)))


def random_trajectory(steps: int, members: int = 1) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    with scoped(0):
        shapes = {name: tuple(p.shape) for name, p in small_mlp().named_parameters()}
    factor = {name: torch.randn(members, 3, *shape, generator=generator) for name, shape in shapes.items()}
    points = []
    for _ in range(steps):
        common = torch.randn(members, 3, generator=generator)  # the same for all leaves: they are correlated
        points.append({n: torch.einsum("mk,mk...->m...", common, leaf) + 1 for n, leaf in factor.items()})
    return points


def flat(params: dict) -> torch.Tensor:
    return torch.cat([params[name].flatten(1) for name in sorted(params)], 1).double()


def test_a_trajectory_that_stands_still_has_no_variance():
    point = random_trajectory(1)[0]
    state = along(be.SWAG(rank=5), [point] * 8)
    drawn = flat(be.SWAG(rank=5).draw(state, range(6), 0).params)
    torch.testing.assert_close(drawn, flat(point).expand(6, -1), rtol=0, atol=1e-6)


def test_draws_have_mean_and_covariance_of_the_trajectory_also_between_leaves():
    """Covariance scale * (diag(var) + D^T D / (K - 1)), to within the noise of 4,000 draws."""
    steps, method = random_trajectory(30), be.SWAG(rank=30, scale=0.5)
    state = along(method, steps)
    points = torch.cat([flat(step) for step in steps])
    assert torch.allclose(flat(state.slots["path_mean"])[0], points.mean(0), atol=1e-5)
    variance = points.var(0, correction=0)
    torch.testing.assert_close(flat(state.slots["path_squares"])[0] / 30, variance, rtol=1e-3, atol=1e-5)
    means = points.cumsum(0) / torch.arange(1, 31).unsqueeze(1)
    deviations = points - means  # from the mean after the update
    expected = 0.5 * (torch.diag(variance) + deviations.T @ deviations / 29)
    drawn = flat(method.draw(state, range(4000), 1).params)
    standard = expected.diagonal().sqrt()
    assert ((drawn.mean(0) - points.mean(0)).abs() < 4.5 * standard / 4000**0.5).all()
    correlation = torch.cov(drawn.T) / torch.outer(standard, standard)
    wanted = expected / torch.outer(standard, standard)
    error = ((1 + wanted.square()) / 4000).sqrt()  # of an entry of the covariance of normal draws, scaled to 1
    assert ((correlation - wanted).abs() < 5 * error).all()
    first, second = slice(0, 8), slice(-16, None)
    assert wanted[first, second].abs().max() > 0.4, "leaves are correlated in this trajectory"


@pytest.mark.parametrize(("rank", "scale"), [(2, 0.5), (3, 2.0)])
def test_a_draw_is_a_fixed_linear_map_of_its_normal_numbers(rank, scale):
    """w = mean + sqrt(scale) (sqrt(var) z1 + D^T z2 / sqrt(K - 1)), with the numbers themselves."""
    method, steps = be.SWAG(rank=rank, scale=scale), random_trajectory(5)
    state = along(method, steps)
    points = torch.cat([flat(step) for step in steps])
    deviations = torch.empty(rank, points.shape[1], dtype=torch.float64)
    for place, point in enumerate(points):  # a ring: the newest takes the place of the oldest
        deviations[place % rank] = point - points[: place + 1].mean(0)
    for number in range(3):
        (own,) = numbered_draws.generators(range(number, number + 1), [7])
        common, single = torch.randn(rank + points.shape[1], generator=own).double().split([rank, points.shape[1]])
        spread = points.std(0, correction=0) * single + common @ deviations / (rank - 1) ** 0.5
        found = flat(method._networks(state, range(number, number + 1), [7]).params)[0]
        torch.testing.assert_close(found, points.mean(0) + scale**0.5 * spread, rtol=1e-4, atol=1e-5)


def test_the_diagonal_form_has_the_variance_alone():
    steps, method = random_trajectory(30), be.SWAG(diagonal=True, scale=1.0)
    drawn = flat(method.draw(along(method, steps), range(3000), 1).params)
    variance = torch.cat([flat(step) for step in steps]).var(0, correction=0)
    assert ((drawn.var(0) / variance - 1).abs() < 5 * (2 / 3000) ** 0.5).all()
    correlation = torch.corrcoef(drawn.T) - torch.eye(drawn.shape[1])
    assert correlation.abs().max() < 5 / 3000**0.5


def test_no_scale_is_the_average_of_the_weights():
    method = be.SWAG(scale=0.0)
    seen = []

    def remember(state, _row):
        seen.append({n: leaf.clone() for n, leaf in state.members.params.items()})

    ensemble = quick_fit(task(), table(), be.SWAG(scale=0.0, start=0.5, snapshots=6, rank=2), **MANY, on_epoch=remember)
    mean = {name: torch.stack([point[name] for point in seen[6:]]).mean(0) for name in seen[0]}
    drawn = ensemble.draw(2).params
    assert method.scale == 0
    for name, leaf in mean.items():
        torch.testing.assert_close(drawn[name][1], leaf[0], rtol=1e-5, atol=1e-6)


def test_the_rank_is_the_number_of_snapshots_if_that_is_smaller():
    with pytest.warns(UserWarning, match="took 9 snapshots, so that its rank is 9, not 20"):
        quick_fit(task(), table(), be.SWAG(), **MANY)


def test_too_few_snapshots_are_refused():
    """Before training, if it is known then; a run that stops early says so and keeps its members."""
    with pytest.raises(SettingError, match=r"6 steps with start=0\.9 and snapshots=40 give 0 snapshots, 2 are needed"):
        quick_fit(task(), table(), be.SWAG(start=0.9), epochs=1, batch_size=8)
    with pytest.warns(UserWarning, match="stopped after 0 snapshots"):
        early = quick_fit(task(), table(), be.SWAG(), **MANY, on_epoch=lambda state, row: True)
    assert early.predict(table()[0]).probs.isfinite().all()


@pytest.mark.filterwarnings("ignore:SWAG took")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_every_draw_of_a_network_with_batch_norm_has_statistics_of_its_own(members, executor):
    """Those that a plain pass over the data gives."""
    method = be.SWAG(num_members=members, draws=7, rank=3)
    ensemble = quick_fit(task(norm_mlp), table(), method, executor=executor, epochs=12, batch_size=None)
    drawn, x = ensemble.draw(7), table()[0]
    for number in range(7):
        weight, bias = drawn.params["0.weight"][number], drawn.params["0.bias"][number]
        hidden = x @ weight.T + bias
        torch.testing.assert_close(drawn.buffers["1.running_mean"][number], hidden.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(drawn.buffers["1.running_var"][number], hidden.var(0), rtol=1e-4, atol=1e-5)
    assert ensemble.predict(x).probs.isfinite().all()
    most = 7 if members == 1 else 9
    with pytest.raises(SettingError, match=f"measured for {most} networks, 50 were asked for"):
        ensemble.predict(x, num_draws=50)


@pytest.mark.filterwarnings("ignore:SWAG took")
@pytest.mark.parametrize("model", [small_mlp, norm_mlp])
def test_a_kept_member_draws_what_it_drew_before(model):
    ensemble = quick_fit(task(model), table(), be.SWAG(num_members=3, draws=6, rank=3), epochs=12, batch_size=None)
    kept = ensemble.keep([2])
    x = table()[0]
    assert kept.predict(x, num_draws=2).probs.isfinite().all()
    if model is norm_mlp:
        assert torch.equal(kept.draw(2).params["0.weight"][1], ensemble.draw(6).params["0.weight"][5])
        assert torch.equal(kept.draw(2).buffers["1.running_mean"][1], ensemble.draw(6).buffers["1.running_mean"][5])


@pytest.mark.filterwarnings("ignore:SWAG took")
def test_before_the_end_predictions_are_those_of_the_members_and_validation_changes_nothing():
    data, losses = table(), []

    def remember(state, row):
        losses.append((row["validation_loss"], state.members.buffers["1.running_mean"].clone()))

    watched = quick_fit(task(norm_mlp), data, be.SWAG(rank=3), validation=data, **MANY, on_epoch=remember)
    alone = quick_fit(task(norm_mlp), data, be.SWAG(rank=3), **MANY)
    plain = quick_fit(task(norm_mlp), data, be.DeepEnsemble(num_members=1), validation=data, **MANY)
    assert [loss for loss, _ in losses] == pytest.approx([row["validation_loss"] for row in plain.history])
    x = data[0]
    assert torch.equal(watched.predict(x).probs, alone.predict(x).probs)


@pytest.mark.filterwarnings("ignore:SWAG took")
@pytest.mark.parametrize("model", [small_mlp, norm_mlp])
def test_a_prediction_averages_over_as_many_networks_as_the_setting_says(model):
    ensemble = quick_fit(task(model), table(), be.SWAG(draws=7, rank=3), **MANY)
    assert ensemble.predict(table()[0]).num_members == 7


@pytest.mark.filterwarnings("ignore:SWAG took")
def test_resuming_after_the_end_gives_the_same_draws(tmp_path):
    method, x = be.SWAG(rank=3, draws=5), table()[0]
    whole = quick_fit(task(norm_mlp), table(), method, **MANY, checkpoint=tmp_path / "run")
    again = quick_fit(task(norm_mlp), table(), method, **MANY, checkpoint=tmp_path / "run", resume=True)
    loaded = be.load(tmp_path / "run", norm_mlp)
    assert torch.equal(whole.predict(x).probs, again.predict(x).probs)
    assert torch.equal(whole.predict(x).probs, loaded.predict(x).probs)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rank": 1}, "rank is a whole number from 2, got 1"),
        ({"scale": -1.0}, "scale is a number from 0, got -1.0"),
        ({"start": 1.0}, r"start is a number in \[0, 1\), got 1.0"),
        ({"snapshots": 1}, "snapshots is a whole number from 2, got 1"),
        ({"draws": 0}, "draws is a whole number from 1, got 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        be.SWAG(**settings)


def test_it_trains_what_a_deep_ensemble_trains():
    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    swag = quick_fit(task(wide), table(), be.SWAG(num_members=2, rank=2), epochs=4)
    plain = quick_fit(task(wide), table(), be.DeepEnsemble(num_members=2), epochs=4)
    for name, leaf in plain.state.members.params.items():
        assert torch.equal(leaf, swag.state.members.params[name])


@pytest.mark.filterwarnings("ignore:SWAG took")
@pytest.mark.parametrize("members", [3, 12])
def test_statistics_of_a_draw_are_those_of_the_data_of_its_member(members):
    x, y = table()
    own = be.PerMember(torch.stack([x + i for i in range(members)]), torch.stack([y] * members))
    method = be.SWAG(num_members=members, draws=2 * members, rank=3)
    drawn = quick_fit(task(norm_mlp), own, method, epochs=12, batch_size=None).draw(2 * members)
    for number in range(2 * members):
        hidden = own.inputs[number % members] @ drawn.params["0.weight"][number].T + drawn.params["0.bias"][number]
        torch.testing.assert_close(drawn.buffers["1.running_mean"][number], hidden.mean(0), rtol=1e-4, atol=1e-5)
