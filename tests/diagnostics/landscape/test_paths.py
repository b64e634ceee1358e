"""Paths between members: ends that are the members, measured points against a loop, barriers by hand."""

import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.paths import KINDS, Path, path
from helpers import norm_mlp, quick_fit, small_mlp, table


def fitted(model=small_mlp, epochs=20):
    return quick_fit(be.Task(model, be.Categorical()), table(), epochs=epochs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_every_path_are_the_members(kind):
    ensemble, data = fitted(), table(40, seed=1)
    found = path(ensemble, data, (2, 0), kind=kind, train=table(), epochs=2, resolution=5)
    own = measure.measure(ensemble, [measure.members_of(ensemble)], data)
    for place, member in ((0, 2), (-1, 0)):
        assert float(found.loss[place]) == pytest.approx(float(own.loss[member]), rel=1e-6)
        assert float(found.error[place]) == float(own.error[member])
    assert found.difference[0, 0] == found.difference[-1, 1] == 0


def test_the_line_against_a_loop():
    ensemble, (x, y) = fitted(), table(40, seed=1)
    found = path(ensemble, (x, y), resolution=4)
    for place, t in enumerate((0, 1 / 3, 2 / 3, 1)):
        weights = {name: (1 - t) * leaf[0] + t * leaf[1] for name, leaf in ensemble.state.members.params.items()}
        outputs = torch.func.functional_call(ensemble.task.module, weights, x)
        assert float(found.loss[place]) == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, y)), rel=1e-5)
        assert float(found.error[place]) == pytest.approx(float((outputs.argmax(-1) != y).double().mean()))


def test_training_lowers_the_barrier_of_a_curve():
    ensemble, data = fitted(epochs=60), table()
    line = path(ensemble, data)
    for kind in ("bezier", "polygon"):
        curve = path(ensemble, data, kind=kind, train=data, epochs=60, batch_size=16)
        assert curve.loss.mean() < line.loss.mean()
        again = path(ensemble, data, kind=kind, train=data, epochs=60, batch_size=16)
        assert torch.equal(curve.loss, again.loss)


@pytest.mark.parametrize(
    ("kind", "options", "points", "asked"),
    [
        ("bezier", {}, 3, {"epochs": 30, "learning_rate": 0.01}),
        ("polygon", {"bends": 4, "epochs": 7, "learning_rate": 0.2}, 6, {"epochs": 7, "learning_rate": 0.2}),
    ],
)
def test_a_trained_path_has_as_many_bends_and_epochs_as_asked_for(kind, options, points, asked, monkeypatch):
    seen = {}

    def recorded(leaves, shape, *_, **given):
        seen.update(given, shape=shape, points={leaf.shape[1] for leaf in leaves.values()})

    monkeypatch.setattr("bayesemble.diagnostics.landscape.paths.curves.train", recorded)
    found = path(fitted(), table(), (1, 0), kind=kind, train=table(), resolution=3, **options)
    assert (seen["shape"], seen["points"], found.members) == (kind, {points}, (1, 0))
    assert {name: seen[name] for name in asked} == asked


def test_barriers_by_hand():
    positions = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    bent = torch.tensor([1.0, 4.0, 2.0], dtype=torch.float64)
    low = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    found = Path("linear", (0, 1), positions, bent, low, torch.zeros(3, 2))
    assert found.barrier == 2.5
    assert found.error_barrier == 0


def test_batch_norm_statistics_belong_to_each_network():
    ensemble, data = fitted(norm_mlp), table()
    with pytest.raises(be.DataError, match="pass train="):
        path(ensemble, data)
    found = path(ensemble, data, train=data, resolution=3)
    measured = measure.refreshed(ensemble, measure.members_of(ensemble), data)
    own = measure.measure(ensemble, [measured], data)
    assert torch.allclose(found.loss[[0, -1]], own.loss[:2], rtol=1e-6)


def test_aligned_ends_are_the_same_functions():
    ensemble, data = fitted(), table(40, seed=1)
    plain, moved = path(ensemble, data), path(ensemble, data, align=True)
    assert torch.allclose(plain.loss[[0, -1]], moved.loss[[0, -1]], rtol=1e-6)
    assert not torch.allclose(plain.loss[12], moved.loss[12])


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"kind": "spline"}, be.SettingError, "kind is one of linear, bezier, polygon"),
        ({"kind": "bezier"}, be.DataError, "a bezier path is trained: pass train="),
        ({"members": (0, 3)}, be.SettingError, "members are some of the numbers 0 to 2"),
        ({"resolution": 2}, be.SettingError, "at both ends and between"),
    ],
)
def test_what_cannot_be_done_is_said(options, error, sentence):
    with pytest.raises(error, match=sentence):
        path(fitted(epochs=1), table(), **options)
