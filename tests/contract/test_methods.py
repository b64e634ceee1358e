"""Every method of the registry keeps the same promises."""

import dataclasses
import json
from functools import partial

import pytest
import torch

import bayesemble as be
from bayesemble.core import settings
from bayesemble.execute.schedules import Schedule, Step
from bayesemble.methods import METHODS, make_method, method_class
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table, tempered_mlp, with_dropout

pytestmark = pytest.mark.parametrize("name", METHODS)


def settings_of(name: str) -> set[str]:
    return {field.name for field in dataclasses.fields(method_class(name))}


def small(name: str, **extra):
    """The method with few members and short steps."""
    several = {} if METHODS[name].fixed else {"num_members": 3}
    wanted = {
        "hmc": {"max_leapfrog": 10},
        "swag": {"start": 0.3, "rank": 2},
        "subspace": {"start": 0.3, "rank": 2, "dim": 1, "draws": 6, "warmup": 1},
    }
    short = wanted.get(name, {})
    return make_method(name, **(several | short | extra))


def model_for(name: str, model=norm_mlp):
    """The network, with dropout if the method is about it."""
    return partial(with_dropout, model) if small(name).keeps_dropout else model


def fitted(name: str, model=norm_mlp, **options) -> be.Ensemble:
    method, model = options.pop("method", small(name)), model_for(name, model)
    whole = {"batch_size": None} if method.full_batch else {}
    return quick_fit(be.Task(model, be.Categorical()), table(), method, **(whole | options))


def test_shapes_and_weights(name):
    ensemble = fitted(name)
    predictive = ensemble.predict(table()[0])
    assert predictive.probs.shape == (48, 2)
    assert predictive.weights.sum() == pytest.approx(1)
    assert predictive.probs.isfinite().all()
    assert ensemble.draw(7).num_members == 7


def test_same_seed_same_result_other_seed_other_result(name):
    first, again, other = fitted(name, seed=1), fitted(name, seed=1), fitted(name, seed=2)
    assert largest_difference(all_leaves(first), all_leaves(again)) == 0
    assert largest_difference(all_leaves(first), all_leaves(other)) > 0


def test_loop_and_vmap_agree(name):
    loop, vmap = fitted(name, executor="loop"), fitted(name, executor="vmap")
    assert largest_difference(all_leaves(loop), all_leaves(vmap)) < 1e-5


def test_saved_and_loaded_it_draws_the_same(name, tmp_path):
    ensemble = fitted(name)
    ensemble.save(tmp_path)
    loaded = be.load(tmp_path, model_for(name))
    assert loaded.method == ensemble.method
    x = table()[0]
    assert torch.equal(loaded.predict(x, num_draws=4).probs, ensemble.predict(x, num_draws=4).probs)


def test_it_trains_batch_norm_and_prediction_leaves_the_statistics_alone(name):
    ensemble = fitted(name)
    statistics = ensemble.draw(3).buffers["1.running_mean"].clone()
    assert statistics.abs().sum() > 0
    ensemble.predict(table()[0])
    assert torch.equal(statistics, ensemble.draw(3).buffers["1.running_mean"])


def test_one_member_is_enough(name):
    ensemble = fitted(name, small_mlp, method=small(name, num_members=1))
    predictive = ensemble.predict(table()[0])
    assert predictive.epistemic.isfinite().all()
    assert predictive.disagreement.isfinite().all()


def test_a_parameter_without_axes_is_one_like_any_other(name):
    ensemble = fitted(name, tempered_mlp, epochs=6)
    assert ensemble.predict(table()[0]).probs.isfinite().all()
    assert {leaf.shape for name, leaf in ensemble.draw(3).params.items() if "temperature" in name} <= {(3,), ()}


@pytest.mark.parametrize("schedule", ["cosine", Step(at=(0.25,), factor=0.5)], ids=repr)
def test_settings_survive_json(name, schedule):
    given = {"learning_rate": 0.01, "schedule": schedule}
    method = small(name, **{key: value for key, value in given.items() if key in settings_of(name)})
    text = json.dumps(settings.dump(method))
    assert settings.parse(json.loads(text), be.Method, [Schedule]) == method


def test_the_first_line_of_its_documentation_says_what_it_is(name):
    first, *_ = method_class(name).__doc__.strip().splitlines()
    assert first.endswith("."), "a sentence that is complete on its line"
    assert len(first.split()) >= 4
    own = [other for other in METHODS if method_class(other).__doc__.strip().splitlines()[0] == first]
    assert {method_class(other) for other in own} == {method_class(name)}, "it tells the method from all others"
