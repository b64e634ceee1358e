import numpy as np
import pytest
from torch import nn

import bayesemble as be
from bayesemble.core.errors import MissingExtraError, SettingError
from helpers import oracle, quick_fit, table


@pytest.fixture(scope="module")
def members() -> be.Ensemble:
    return quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), table())


def test_members_are_draws_of_one_chain(members):
    oracle("arviz_base")
    tree = members.to_arviz(table())
    assert tree["posterior"]["weight"].dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(tree["posterior"]["weight"][0], members.state.members.params["weight"].numpy())
    x, y = table()
    np.testing.assert_array_equal(tree["log_likelihood"]["targets"][0], members.predict(x).member_log_prob(y).numpy())
    np.testing.assert_array_equal(tree["observed_data"]["targets"], y.numpy())
    assert "draws of one chain" in tree.attrs["chains"]


def test_chains_of_a_sampler_are_chains():
    oracle("arviz_base")
    x, y = table(20)
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=1.0), be.NormalPrior(1.0))
    method = be.HMC(num_members=2, step_size=0.05)
    ensemble = quick_fit(task, (x, y.float()), method, epochs=20, batch_size=None)
    tree = ensemble.to_arviz((x, y.float()))
    weights = tree["posterior"]["weight"]
    kept = ensemble.method.chains(ensemble.state).num_draws
    assert weights.shape == (2, kept, 1, 4)
    np.testing.assert_array_equal(weights[1, 0], ensemble.draw().params["weight"][kept].numpy())
    assert tree["log_likelihood"]["targets"].shape == (2, kept, 20)
    stats = oracle("arviz_stats")
    ours = be.convergence(ensemble, x)["rhat_parameters"]
    theirs = max(float(stats.rhat(tree)[name].max()) for name in ("weight", "bias"))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_unequal_weights_are_drawn_by(members):
    oracle("arviz_base")
    uneven = members.reweight([0.6, 0.4, 0.0])
    with pytest.raises(SettingError, match="num=1000"):
        uneven.to_arviz()
    drawn = uneven.to_arviz(num=400)["posterior"]["weight"].to_numpy()[0]
    own = members.state.members.params["weight"].numpy()
    assert np.mean([np.array_equal(one, own[0]) for one in drawn]) == pytest.approx(0.6, abs=0.08)


def test_closed_forms_need_draws(members):
    oracle("arviz_base")
    x = table()[0]
    y = x[:, 0]
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=1.0))
    ensemble = quick_fit(task, (x, y), be.Laplace(num_members=1, structure="diag"))
    with pytest.raises(SettingError, match="num=100"):
        ensemble.to_arviz((x, y))
    assert ensemble.to_arviz((x, y), num=7)["log_likelihood"]["targets"].shape == (1, 7, len(x))


def test_the_missing_package_is_named(members, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "arviz_base", None)
    with pytest.raises(MissingExtraError, match="arviz-base"):
        members.to_arviz()
