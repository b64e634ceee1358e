"""Planes: orthonormal directions, members at their corners, and points that a plain loop gives too."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.diagnostics.landscape import measure, plane, radial_plane
from bayesemble.diagnostics.landscape.planes import _grid, at, through_members, through_origin
from helpers import norm_mlp, quick_fit, small_mlp, table

DATA = table(40, seed=1)


@pytest.fixture(scope="module")
def classes():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=4))


@pytest.fixture(scope="module")
def numbers():
    x, _ = table()
    return quick_fit(be.Task(small_mlp, be.Gaussian(noise="learned")), (x, x[:, :2] + 0.1))


def flat(leaves, place):
    return torch.cat([leaf[place].double().flatten() for leaf in leaves.values()])


def test_directions_are_orthonormal_and_corners_are_distances(classes):
    members = measure.members_of(classes).part(0, 3)
    basis = through_members(members)
    u, v = flat(basis.directions, 0), flat(basis.directions, 1)
    assert torch.allclose(torch.stack([u @ u, v @ v, u @ v]), torch.tensor([1.0, 1.0, 0.0]).double(), atol=1e-12)
    weights = torch.stack([flat(members.params, place) for place in range(3)])
    assert torch.allclose(torch.cdist(basis.corners, basis.corners), torch.cdist(weights, weights), atol=1e-6)
    assert torch.equal(basis.corners[0], torch.zeros(2).double())
    assert float(basis.corners[1, 1]) == 0


@pytest.mark.parametrize(("through", "num"), [(through_members, 3), (through_origin, 2)])
def test_at_the_corners_are_the_members(classes, through, num):
    members = measure.members_of(classes).part(1, 1 + num)
    basis = through(members)
    found = measure.measure(classes, [at(basis, basis.corners)], DATA)
    assert torch.allclose(found.loss, measure.measure(classes, [members], DATA).loss, rtol=0, atol=1e-6)
    for name, leaf in at(basis, basis.corners).params.items():
        assert leaf.dtype == members.params[name].dtype
        assert torch.allclose(leaf, members.params[name], atol=1e-7)


def test_a_grid_against_a_plain_loop(classes):
    found = plane(classes, DATA, (3, 0, 1), resolution=5)
    members, (x, y) = measure.members_of(classes), DATA
    w1, w2, w3 = (flat(members.params, place) for place in (3, 0, 1))
    u = (w2 - w1) / (w2 - w1).norm()
    v = (w3 - w1) - ((w3 - w1) @ u) * u
    v = v / v.norm()
    with scoped(0):
        module = small_mlp()
    choices = classes.predict(x).member_probs.argmax(-1)
    for row, column in ((0, 0), (1, 3), (4, 2)):
        point = (w1 + found.x[column] * u + found.y[row] * v).float()
        pieces = point.split([leaf[0].numel() for leaf in members.params.values()])
        own = {n: piece.reshape(members.params[n][0].shape) for n, piece in zip(members.params, pieces, strict=True)}
        outputs = functional_call(module, own, (x,)).detach()
        assert float(found.loss[row, column]) == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-5)
        assert float(found.error[row, column]) == pytest.approx(float((outputs.argmax(1) != y).double().mean()))
        for reference, place in enumerate((3, 0, 1)):
            apart = (outputs.argmax(1) != choices[place]).double().mean()
            assert float(found.difference[row, column, reference]) == pytest.approx(float(apart))


def test_the_margin_is_a_share_of_the_width_on_each_side():
    corners = torch.tensor([[-1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
    x, y = _grid(SimpleNamespace(corners=corners), 3, 0.5)
    assert (x.tolist(), y.tolist()) == ([-3, 1, 5], [-5, 1, 7])


def test_the_grid_goes_around_the_members(classes):
    found = plane(classes, DATA, resolution=4, margin=0.5)
    for side, coordinates in zip((found.x, found.y), found.corners.T, strict=True):
        low, high = float(coordinates.min()), float(coordinates.max())
        assert float(side[0]) == pytest.approx(low - 0.5 * (high - low))
        assert float(side[-1]) == pytest.approx(high + 0.5 * (high - low))
    assert found.loss.shape == found.error.shape == (4, 4)
    assert found.difference.shape == (4, 4, 3)
    own = measure.measure(classes, [measure.members_of(classes).part(0, 3)], DATA)
    assert torch.equal(found.at_corners.loss, own.loss)
    assert torch.equal(found.at_corners.error, own.error)
    assert torch.equal(found.at_corners.difference.diagonal(), torch.zeros(3).double())


def test_parts_and_progress(classes, monkeypatch):
    whole, told = plane(classes, DATA, resolution=3), []
    monkeypatch.setattr(measure, "at_once", lambda _: 4)
    parts = plane(classes, DATA, resolution=3, progress=lambda done, total: told.append((done, total)))
    assert told == [(4, 9), (8, 9), (9, 9)]
    assert torch.allclose(whole.loss, parts.loss)
    assert torch.equal(whole.difference, parts.difference)


def test_at_the_origin_of_the_radial_plane_all_weights_are_zero(classes):
    basis = through_origin(measure.members_of(classes).part(0, 2))
    zero = at(basis, torch.zeros(1, 2))
    assert all(not leaf.any() for leaf in zero.params.values())
    found = measure.measure(classes, [zero], DATA)
    assert float(found.loss[0]) == pytest.approx(torch.tensor(2.0).log().item())
    result = radial_plane(classes, DATA, (1, 2), resolution=3)
    assert result.x[0] < 0 < result.x[-1]
    assert result.y[0] < 0 < result.y[-1]
    assert result.corners.shape == (2, 2)
    assert result.difference.shape == (3, 3, 2)
    assert result.members == (1, 2)
    assert radial_plane(classes, DATA, resolution=2).members == (0, 1)
    assert plane(classes, DATA, resolution=2).members == (0, 1, 2)


def test_batch_norm_at_the_corners_has_the_statistics_of_members_measured_again():
    train = table()
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), train)
    members = measure.members_of(ensemble)
    basis = through_members(members)
    found = measure.refreshed(ensemble, at(basis, basis.corners), train)
    expected = measure.refreshed(ensemble, members, train)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(found.buffers[name], expected.buffers[name], atol=1e-6)
    result = plane(ensemble, DATA, train=train, resolution=3)
    middle = at(basis, torch.stack([result.x[1:2], result.y[1:2]], 1))
    again = measure.measure(ensemble, [measure.refreshed(ensemble, middle, train)], DATA)
    assert float(result.loss[1, 1]) == pytest.approx(float(again.loss[0]), rel=1e-6)
    assert float(result.loss[1, 1]) != pytest.approx(float(measure.measure(ensemble, [middle], DATA).loss[0]), rel=1e-3)
    with pytest.raises(be.DataError, match="pass train="):
        plane(ensemble, DATA, resolution=3)


def test_numbers_whose_learned_noise_is_a_weight_like_others(numbers):
    x, _ = DATA
    y = x[:, :2]
    members = measure.members_of(numbers)
    basis = through_members(members)
    halfway = at(basis, basis.corners[1:2] / 2)
    noise = members.params["likelihood.log_noise"]
    assert torch.allclose(halfway.params["likelihood.log_noise"][0], (noise[0] + noise[1]) / 2, atol=1e-6)
    found = plane(numbers, (x, y), resolution=3)
    point = at(basis, torch.stack([found.x[:1], found.y[1:2]], 1))
    means = functional_call(numbers.task.module, {n: point.params[n][0] for n in numbers.task.shapes}, (x,)).detach()
    normal = torch.distributions.Normal(means, point.params["likelihood.log_noise"][0].exp())
    assert not found.classes
    assert float(found.loss[1, 0]) == pytest.approx(-float(normal.log_prob(y).sum(1).mean()), rel=1e-5)
    assert float(found.error[1, 0]) == pytest.approx(float((means - y).square().mean().sqrt()), rel=1e-5)


def test_members_that_span_no_plane_are_refused(classes):
    with pytest.raises(be.SettingError, match="span no plane"):
        plane(classes, DATA, (0, 0, 1))
    with pytest.raises(be.SettingError, match="span no plane"):
        plane(classes, DATA, (0, 1, 0))
    with pytest.raises(be.SettingError, match="span no plane"):
        radial_plane(classes, DATA, (2, 2))
    members = measure.members_of(classes)
    line = {name: torch.stack([leaf[0], leaf[1], (leaf[0] + leaf[1]) / 2]) for name, leaf in members.params.items()}
    with pytest.raises(be.SettingError, match="one line"):
        through_members(measure.with_params(members, line))


def test_too_few_members_and_odd_settings_are_refused(classes):
    with pytest.raises(be.SettingError, match="as there are 2"):
        plane(classes.keep([0, 1]), DATA)
    with pytest.raises(be.SettingError, match="as there are 1"):
        radial_plane(classes.keep([0]), DATA)
    with pytest.raises(be.SettingError, match="the indices of 3 members"):
        plane(classes, DATA, (0, 1))
    with pytest.raises(be.SettingError, match="resolution"):
        plane(classes, DATA, resolution=1)
    with pytest.raises(be.SettingError, match="margin"):
        plane(classes, DATA, margin=-0.1)


class Frozen(nn.Module):
    """A network with random features of its own that are not trained."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.features.requires_grad_(False)

    def forward(self, x):
        return self.head(self.features(x).relu())


def test_members_with_untrained_parts_of_their_own_are_refused():
    ensemble = quick_fit(be.Task(Frozen, be.Categorical()), table())
    with pytest.raises(be.SettingError, match=r"features.bias.*not trained"):
        plane(ensemble, DATA, resolution=3)
