"""The std of training-free draws is the largest that keeps the held-out loss within the tolerance."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.methods.tfb import SLOT

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=GENERATOR)
Y = (X[:, 0] + 0.3 * torch.randn(60, generator=GENERATOR) > 0).long()


@pytest.fixture(scope="module")
def ensemble():
    with be_seeded():
        given = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    model = be.adapt(given, "lora", targets="0|2", rank=2, head="4")
    method = be.DeepEnsemble(num_members=2, learning_rate=0.03)
    return be.fit(be.Task(model, be.Categorical()), method, (X[:40], Y[:40]), epochs=15, progress=False), model


def be_seeded():
    from bayesemble.core import seeds

    return seeds.scoped(0)


def loss(ensemble):
    return ensemble.evaluate((X[40:], Y[40:]))["nll"]


def std(ensemble):
    return float(ensemble.state.slots[SLOT]["std"][0])


@pytest.mark.parametrize("tolerance", [0.01, 0.1])
def test_the_loss_is_within_the_tolerance_and_above_it_beyond(ensemble, tolerance):
    trained, _ = ensemble
    wide = be.tfb(trained, (X[40:], Y[40:]), tolerance=tolerance, draws=5, halvings=8)
    assert loss(wide) <= loss(trained) + tolerance
    further = wide.state.slots[SLOT]["std"] * 1.02
    beyond = type(wide)(
        wide.task, wide.method, type(wide.state)(wide.state.members, {SLOT: {"std": further}}), wide.executor
    )
    assert loss(beyond) > loss(trained) + tolerance


def test_more_is_allowed_where_more_may_be_lost(ensemble):
    trained, _ = ensemble
    few, many = (be.tfb(trained, (X[40:], Y[40:]), tolerance=one, draws=5, halvings=3) for one in (0.01, 0.1))
    assert std(many) > std(few) > 0
    assert many.predict(5 * X).epistemic.mean() > trained.predict(5 * X).epistemic.mean()


def test_it_is_saved_and_loaded(ensemble, tmp_path):
    trained, model = ensemble
    wide = be.tfb(trained, (X[40:], Y[40:]), halvings=2)
    wide.save(tmp_path)
    assert torch.equal(be.load(tmp_path, model).predict(X).probs, wide.predict(X).probs)


def test_what_cannot_be_widened_is_refused(ensemble):
    trained, model = ensemble
    with pytest.raises(be.SettingError, match="tolerance is how much higher"):
        be.tfb(trained, (X, Y), tolerance=0)
    with pytest.raises(be.ModelError, match="draws networks already"):
        be.tfb(be.tfb(trained, (X, Y), halvings=1), (X, Y))
    plain = be.fit(
        be.Task(lambda: nn.Linear(3, 2), be.Categorical()), be.DeepEnsemble(), (X, Y), epochs=1, progress=False
    )
    with pytest.raises(be.ModelError, match="of which this network has none"):
        be.tfb(plain, (X, Y))
    idle = be.fit(
        be.Task(model, be.Categorical()), be.DeepEnsemble(learning_rate=1e-30), (X, Y), epochs=1, progress=False
    )
    with pytest.raises(be.ModelError, match="they do nothing"):
        be.tfb(idle, (X, Y))
