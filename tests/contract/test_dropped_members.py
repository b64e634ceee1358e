"""A member that leaves the real numbers is left behind by every method that can do so, and disturbs nobody."""

import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.methods import METHODS
from bayesemble.methods import method_class as class_of
from contract.test_methods import small
from helpers import quick_fit, table, with_dropout

INDEPENDENT = [name for name in METHODS if class_of(name).independent and not METHODS[name].fixed]
OTHERS = [name for name in METHODS if not class_of(name).independent]


def first_number(member: int) -> float:
    """What torch draws first for a member, by which a factory can tell whose network it makes."""
    with seeds.scoped(seeds.child(0, "member", member, "start")):
        return float(torch.rand(()))


def factory(dropout: bool, absurd: float | None):
    """Networks of which one, known by the first number of its seed, may start at absurd weights."""

    def make() -> nn.Module:
        number = float(torch.rand(()))
        network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        if number == absurd:
            with torch.no_grad():
                network[0].weight.mul_(1e38)
        return with_dropout(lambda: network) if dropout else network

    return make


def own_leaves(ensemble: be.Ensemble, members: list[int]) -> dict[str, torch.Tensor]:
    leaves = ensemble.state._of_members()
    return {"/".join(place): leaf[members] for place, leaf in leaves.items()}


def fitted(name: str, absurd: float | None, executor: str = "loop", **options) -> be.Ensemble:
    method = small(name)
    task = be.Task(factory(method.keeps_dropout, absurd), be.Categorical())
    return quick_fit(task, table(), method, executor=executor, epochs=3, **options)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_others_get_the_bits_of_a_run_in_which_it_did_not_diverge(name, executor, tmp_path):
    with pytest.warns(UserWarning, match="member 1 is no longer finite in epoch 1, step"):
        ensemble = fitted(name, first_number(1), executor, on_nonfinite="drop", checkpoint=tmp_path)
    plain = fitted(name, None, executor, on_nonfinite="drop")
    expected, found = (own_leaves(one, [0, 2]) for one in (plain, ensemble))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[place], expected[place]) for place in found)
    assert ensemble.state.members.weights.tolist() == [0.5, 0.0, 0.5]
    assert ensemble.state.finite_members().all()
    (named,) = ensemble.history[0]["dropped"]
    assert (named["member"], named["epoch"], named["step"] in (1, 2, 3)) == (1, 1, True)
    assert not any("dropped" in row for row in ensemble.history[1:])
    assert all(math.isnan(row["loss"][1]) for row in ensemble.history)
    assert [[row["loss"][i] for i in (0, 2)] for row in ensemble.history] == [
        [row["loss"][i] for i in (0, 2)] for row in plain.history
    ]
    x, y = table()
    predictive = ensemble.predict(x)
    for values in (predictive.probs, predictive.epistemic, predictive.aleatoric, predictive.disagreement):
        assert values.isfinite().all()
    assert all(math.isfinite(value) for value in ensemble.evaluate((x, y)).values())
    again = be.load(tmp_path, factory(small(name).keeps_dropout, None))
    assert torch.equal(again.predict(x).probs, predictive.probs)


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_refused_where_members_know_of_one_another(name):
    with pytest.raises(be.SettingError, match="needs members that know nothing of one another"):
        fitted(name, None, on_nonfinite="drop")
