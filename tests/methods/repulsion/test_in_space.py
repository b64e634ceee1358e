import dataclasses

import pytest

import bayesemble as be
from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.execute.schedules import Schedule
from bayesemble.methods import Method, make_method
from bayesemble.methods.repulsion.in_space import SPACES
from bayesemble.methods.repulsion.interacting import Space
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

METHODS = [be.Repulsive, be.Stein]
# Another value than the default of each setting of a space.
OTHERS = {
    "measure_every": 3,
    "select": "output",
    "features": "outputs",
    "points": "noise",
    "noise": 0.5,
    "function_prior": False,
    "prior_draws": 3,
    "prior_points": 2,
    "prior_every": 4,
}
OWN = [(space, field.name) for space, kind in SPACES.items() for field in dataclasses.fields(kind)]
FOREIGN = [(space, name) for space in SPACES for name in OTHERS if (space, name) not in OWN]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(("space", "name"), OWN)
def test_a_setting_beside_the_name_of_a_space_is_one_of_the_space(kind, space, name):
    value = OTHERS[name]
    found = kind(space=space, **{name: value})
    assert found.own_space == SPACES[space](**{name: value}) != SPACES[space]()
    assert found.own_space == kind(space=SPACES[space](**{name: value})).own_space
    assert getattr(found, name) == value, "what was given can be read again"


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(("space", "name"), FOREIGN)
def test_a_setting_of_the_other_space_is_refused_by_name(kind, space, name):
    with pytest.raises(SettingError, match=f"{name}={OTHERS[name]!r} cannot be honoured in {space} space"):
        kind(space=space, **{name: OTHERS[name]})


def test_a_refusal_says_what_the_space_has():
    with pytest.raises(SettingError, match=r"method 'repulsive': prior_every=4 .* settings are measure_every, select;"):
        make_method("repulsive", prior_every=4)


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_beside_a_space_with_settings_is_refused(name):
    with pytest.raises(SettingError, match=rf"{name} cannot be honoured beside .* use space=FunctionSpace\({name}="):
        be.Repulsive(space=be.FunctionSpace(), **{name: OTHERS[name]})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"space": "output"}, "space is 'weight', 'function' or a Space, got 'output'"),
        ({"space": be.FunctionSpace}, "space is 'weight', 'function' or a Space, got"),
        (
            {"features": "softmax"},
            "features is 'auto', 'outputs', 'centred', 'log_probs', 'probs' or None, got 'softmax'",
        ),
        ({"prior_draws": 1}, "prior_draws is a whole number from 2 or None, got 1"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(SettingError, match=message):
        be.Repulsive(**wrong)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    "chosen",
    [
        {"space": "function", "prior_every": 4},
        {"space": be.FunctionSpace(prior_every=4, points="noise")},
        {"space": be.WeightSpace(select=("0.*", "2.bias"))},
    ],
)
def test_spaces_survive_json(kind, chosen):
    method = kind(**chosen)
    read = settings.parse(settings.dump(method), Method, (Schedule, Space))
    assert read == method
    assert read.own_space == method.own_space


@pytest.mark.parametrize("space", [be.FunctionSpace(prior_every=1), be.WeightSpace(measure_every=2)])
def test_a_saved_ensemble_knows_its_space(space, tmp_path):
    method = be.Repulsive(num_members=2, space=space)
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), method).save(tmp_path)
    assert be.load(tmp_path, small_mlp).method == method


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("space", SPACES)
def test_the_name_of_a_space_is_the_space_at_its_defaults(kind, space):
    def trained(chosen):
        method = kind(num_members=3, space=chosen)
        return all_leaves(quick_fit(be.Task(small_mlp, be.Categorical()), table(), method))

    assert largest_difference(trained(space), trained(SPACES[space]())) == 0
