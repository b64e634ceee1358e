import dataclasses

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.estimators.recipe import Recipe, own_defaults, stretch_of, stretched, table_network, training_on
from bayesemble.metrics import coverage, fit_spread
from bayesemble.task.networks import new_module

QUICK = Recipe(settings={"num_members": 2}, width=8, depth=0, epochs=3, batch_size=16)


def rows(num: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    numbers, codes = generator.normal(size=(num, 2)).astype(np.float32), generator.integers(1, 4, size=(num, 1))
    return numbers, codes, (numbers[:, 0] + codes[:, 0]).astype(np.float32)


def trained(recipe: Recipe, folder=None, seed: int = 0) -> be.Ensemble:
    numbers, codes, y = rows()
    method = recipe.make_method()
    network = recipe.make_network(method, numbers, [3], 2)
    held_out = recipe.hold_out(method, y, False, seed)
    inputs = (numbers, codes)
    return training_on(recipe, method, network, be.HeteroscedasticGaussian(), inputs, y, held_out, seed, folder).run()


def test_the_rate_falls_unless_networks_are_gathered_on_the_way():
    falling = {name for name in be.METHODS if own_defaults(name, {}).get("schedule") == "cosine"}
    assert falling >= {"map", "deep_ensemble", "repulsive", "svgd", "ecmp", "explicit"}
    assert not falling & {"swag", "subspace", "snapshot", "csgmcmc", "hmc"}
    assert Recipe().make_method().schedule == "cosine"
    assert Recipe(settings={"schedule": "constant"}).make_method().schedule == "constant"
    assert Recipe("repulsive", {"sequential": True}).make_method().schedule == "constant"


def test_a_falling_rate_starts_higher_and_samplers_have_their_own():
    assert Recipe().make_method().learning_rate == 3e-3
    assert Recipe("swag").make_method().learning_rate == 1e-3
    assert Recipe("swag", {"learning_rate": 0.5}).make_method().learning_rate == 0.5
    assert Recipe("hmc").make_method() == be.HMC()
    assert Recipe("repulsive", {"repulsion": 0.5}).make_method().repulsion == 0.5


def test_each_class_is_held_out_by_its_share_and_none_is_lost():
    recipe = Recipe(early_stopping=True, validation_fraction=0.2)
    y = np.repeat([0, 1, 2], [60, 30, 1])
    for seed in range(20):
        held_out = recipe.hold_out(be.DeepEnsemble(), y, True, seed)
        assert abs(held_out[:60].sum() - 12) <= 1
        assert abs(held_out[60:90].sum() - 6) <= 1
        assert not held_out[90]


@pytest.mark.parametrize(("num", "width"), [(100, 64), (9_999, 64), (10_000, 128)])
def test_the_width_follows_from_the_number_of_rows(num, width):
    network = Recipe().make_network(be.DeepEnsemble(), np.zeros((num, 2), np.float32), [4], 3)
    assert network["width"] == width
    assert (network["num_numbers"], network["category_sizes"], network["num_outputs"]) == (2, [4], 3)
    assert Recipe(width=7).make_network(be.DeepEnsemble(), np.zeros((num, 2)), [], 1)["width"] == 7


class AskedError(Exception):
    """What training was asked for."""


@pytest.mark.parametrize(
    ("num", "settings", "batch_size", "epochs", "patience", "every"),
    [
        (100, {}, 16, 200, 25, 10),  # seven steps an epoch
        (1000, {}, 64, 187, 23, 9),  # 3000 steps of 16 an epoch
        (5000, {}, 256, 150, 18, 7),
        (70_000, {}, 256, 20, 5, 1),
        (1000, {"batch_size": 300}, 300, 200, 25, 10),
        (1000, {"batch_size": 10}, 10, 30, 5, 1),
        (100, {"method": "hmc"}, None, 200, 25, 10),
        (1000, {"epochs": 7, "patience": 3}, 64, 7, 3, 1),
    ],
)
def test_steps_follow_from_the_rows(num, settings, batch_size, epochs, patience, every, monkeypatch, tmp_path):
    def asked(*_, **options):
        raise AskedError(options)

    monkeypatch.setattr("bayesemble.estimators.recipe.fit", asked)
    recipe = Recipe(**settings)
    x, held_out = np.zeros((num + 9, 1), np.float32), np.arange(num + 9) < 9
    training = training_on(
        recipe, recipe.make_method(), {}, be.HeteroscedasticGaussian(), x, x[:, 0], held_out, 0, tmp_path
    )
    with pytest.raises(AskedError) as found:
        training.run()
    options = found.value.args[0]
    assert [options[name] for name in ("batch_size", "epochs", "patience", "checkpoint_every")] == [
        batch_size,
        epochs,
        patience,
        every,
    ]
    assert len(options["validation"][1]) == 9
    assert options["executor"] == "vmap"


def test_one_network_is_trained_in_the_loop(monkeypatch):
    def asked(*_, **options):
        raise AskedError(options)

    monkeypatch.setattr("bayesemble.estimators.recipe.fit", asked)
    recipe, x = Recipe("map"), np.zeros((60, 1), np.float32)
    training = training_on(
        recipe, recipe.make_method(), {}, be.HeteroscedasticGaussian(), x, x[:, 0], np.zeros(60, bool), 0
    )
    with pytest.raises(AskedError) as found:
        training.run()
    assert found.value.args[0]["executor"] == be.Loop(draws_by_vmap=True)
    assert found.value.args[0].keys().isdisjoint({"validation", "patience", "checkpoint", "resume"})


@pytest.mark.parametrize(
    ("num", "wish", "held"), [(49, "auto", 0), (50, "auto", 10), (200, "auto", 20), (49, True, 5), (4, True, 1)]
)
def test_how_many_rows_are_held_out(num, wish, held):
    assert Recipe(early_stopping=wish).hold_out(be.DeepEnsemble(), np.zeros(num), False, 0).sum() == held


def test_methods_that_keep_dropout_get_some():
    recipe = Recipe("mc_dropout")
    assert recipe.make_network(recipe.make_method(), np.zeros((5, 2)), [], 1)["dropout"] == 0.1


def test_a_table_without_numbers_needs_no_embedding_of_them():
    for embedding in ("periodic", "piecewise"):
        network = Recipe(embedding=embedding).make_network(be.DeepEnsemble(), np.zeros((5, 0), np.float32), [3], 2)
        with scoped(0):
            module = table_network(**network)
        assert module(torch.zeros(4, 0), torch.ones(4, 1, dtype=torch.long)).shape == (4, 2)


def test_outputs_start_around_the_offset():
    network = Recipe(width=8).make_network(be.DeepEnsemble(), np.zeros((5, 2), np.float32), [], 1)
    with scoped(0):
        plain = new_module(lambda: table_network(**network))
    with scoped(0):
        moved = new_module(lambda: table_network(**network, offset=3.0))
    x = torch.ones(4, 2)
    torch.testing.assert_close(moved(x), plain(x) + 3)


def test_bins_come_back_from_json_exactly():
    numbers = rows()[0]
    network = Recipe(embedding="piecewise", width=8).make_network(be.DeepEnsemble(), numbers, [], 1)
    with scoped(0):
        module = table_network(**network)
    edges = np.quantile(numbers.astype(np.float64), np.linspace(0, 1, 17), axis=0).T.astype(np.float32)
    np.testing.assert_array_equal(module.embedding[0].left.numpy(), edges[:, :-1])


@pytest.mark.parametrize("embedding", ["periodic", "piecewise", "none"])
def test_numbers_and_categories_are_trained_on_together(embedding):
    recipe = Recipe(settings={"num_members": 2, "learning_rate": 0.02}, width=16, embedding=embedding, epochs=40)
    ensemble = trained(recipe)
    numbers, codes, y = rows()
    assert float((ensemble.predict((numbers, codes)).mean - torch.tensor(y)).square().mean()) < 0.1 * y.var()


def test_training_goes_on_from_its_folder_to_the_same_bits(tmp_path):
    whole = trained(QUICK, tmp_path / "whole")
    again = trained(QUICK, tmp_path / "whole")
    plain = trained(QUICK)
    for name, leaf in plain.state.members.params.items():
        assert torch.equal(leaf, whole.state.members.params[name])
        assert torch.equal(leaf, again.state.members.params[name])


def test_early_stopping_holds_rows_out():
    ensemble = trained(QUICK)
    assert ensemble.task.num_data == 50, "ten of sixty are the fewest to stop by"
    assert "validation_loss" in ensemble.history[-1]
    assert trained(Recipe("swag", {"num_members": 1, "start": 0.5, "rank": 2}, width=8, epochs=4)).task.num_data == 60


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(SettingError, match="swag needs training to go on to the end"):
        Recipe("swag", early_stopping=True).hold_out(be.SWAG(), np.zeros(50), False, 0)
    with pytest.raises(SettingError, match="unknown method"):
        Recipe("forest").make_method()


@pytest.mark.parametrize("noise", ["student", "normal"])
def test_noise_that_was_learnt_too_narrow_is_widened_by_what_the_held_out_rows_ask_for(noise):
    recipe = Recipe(noise=noise, epochs=60, early_stopping=True, validation_fraction=0.5, settings={"num_members": 2})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    y = (x[:, 0] + rng.standard_t(3, 60)).astype(np.float32)
    method = recipe.make_method()
    held_out = recipe.hold_out(method, y, False, 0)
    network = recipe.make_network(method, x, [], 2)
    ensemble = training_on(recipe, method, network, recipe.real_likelihood(), x, y, held_out, 0).run()
    learnt = stretched(ensemble, 1.0).predict(x[held_out])
    assert stretch_of(ensemble) == max(1.0, fit_spread(learnt, y[held_out], level=0.9).value)
    assert stretch_of(ensemble) > 1
    assert coverage(ensemble.predict(x[held_out]), y[held_out], 0.9) == pytest.approx(0.9, abs=0.04)


def test_without_held_out_rows_noise_stays_as_it_was_learnt():
    recipe = Recipe(epochs=1, early_stopping=False, settings={"num_members": 2})
    x, y = np.zeros((20, 1), np.float32) + np.arange(20)[:, None] / 10, np.arange(20, dtype=np.float32)
    method, held_out = recipe.make_method(), np.zeros(20, dtype=bool)
    network = recipe.make_network(method, x, [], 2)
    assert stretch_of(training_on(recipe, method, network, recipe.real_likelihood(), x, y, held_out, 0).run()) == 1


# Another value of every field, and what it acts in company of only.
OTHERS = {
    "method": ("map", {"settings": {}}),
    "settings": ({"num_members": 3}, {}),
    "epochs": (5, {}),
    "batch_size": (32, {}),
    "width": (12, {}),
    "depth": (2, {}),
    "embedding": ("piecewise", {}),
    "dropout": (0.5, {"depth": 1}),
    "prior_std": (0.05, {}),
    "noise": ("normal", {}),
    "counts": ("negative_binomial", {}),
    "early_stopping": (False, {}),
    "validation_fraction": (0.4, {}),
    "patience": (1, {"epochs": 60, "settings": {"num_members": 2, "learning_rate": 0.1}}),
}


# Where training happens changes no number; that a device is taken is shown in test_base.
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Recipe) if field.name != "device"])
def test_no_part_of_a_recipe_is_ignored(name):
    value, company = OTHERS[name]
    before = dataclasses.replace(QUICK, **company)
    numbers, codes, y = rows()
    found = []
    for recipe in (before, dataclasses.replace(before, **{name: value})):
        method, (likelihood, outputs) = recipe.make_method(), (recipe.real_likelihood(), 2)
        if name == "counts":
            y, (likelihood, outputs) = np.round(np.exp(y.clip(max=2))), recipe.count_likelihood()
        network = recipe.make_network(method, numbers, [3], outputs)
        held_out = recipe.hold_out(method, y, False, 0)
        ensemble = training_on(recipe, method, network, likelihood, (numbers, codes), y, held_out, 0).run()
        found.append((ensemble.predict((numbers, codes)).mean, len(ensemble.history)))
    (one, epochs), (other, more) = found
    assert (one - other).abs().max() > 1e-4 or epochs != more
