"""Methods that complete a trained network without training it, and those that cannot."""

import copy

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.training.incoming.beginnings import refuse_same_batches
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table

X, Y = table()


def trained(make=small_mlp, steps=40, every=None):
    """A network, and its weights along the way."""
    with scoped(3):
        network = make()
        optimizer, stations = torch.optim.SGD(network.parameters(), 0.3), []
        for step in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(X), Y).backward()
            optimizer.step()
            if every and step % every == 0:
                stations.append(copy.deepcopy(network.state_dict()))
    return network, stations


def task_of(network, **settings):
    return be.Task(network, be.Categorical(), be.NormalPrior(std=1.5), start="given", **settings)


def same_weights(ensemble, network):
    return all(torch.equal(ensemble.state.members.params[name][0], leaf) for name, leaf in network.named_parameters())


def test_a_network_that_is_given_predicts_as_it_did():
    network, _ = trained(norm_mlp)
    ensemble = quick_fit(task_of(network), (X, Y), be.DeepEnsemble(num_members=1), epochs=0)
    assert same_weights(ensemble, network)
    assert ensemble.history == []
    with torch.no_grad():
        torch.testing.assert_close(ensemble.predict(X).probs, network.eval()(X).softmax(-1))


def test_last_layer_laplace_of_a_given_network_is_that_of_brute_force():
    """The Gauss-Newton matrix over rows, J' (diag(p) - p p') J, with J by autograd, and the predictive by its draws."""
    network, _ = trained()
    ensemble = quick_fit(task_of(network), (X, Y), be.Laplace(), epochs=0)
    assert same_weights(ensemble, network)
    weight, bias = (leaf.detach().double() for leaf in network[2].parameters())
    with torch.no_grad():
        features = network[:2](X).double()
    numbers = torch.cat([weight.flatten(), bias])

    def logits(theta, row):
        return theta[:16].reshape(2, 8) @ row + theta[16:]

    precision = torch.eye(18, dtype=torch.float64) / 1.5**2
    for row in features:
        slope = torch.autograd.functional.jacobian(lambda theta, row=row: logits(theta, row), numbers)
        p = logits(numbers, row).softmax(0)
        precision += slope.T @ (torch.diag(p) - torch.outer(p, p)) @ slope
    covariance = torch.linalg.inv(precision)
    draws = ensemble.draw(4000, seed=1).params
    found = torch.cat([draws["2.weight"].flatten(1), draws["2.bias"]], 1).double()
    scale = covariance.diagonal().sqrt()
    assert ((found.mean(0) - numbers) / scale).abs().max() < 5 / 4000**0.5
    error = (torch.cov(found.T) - covariance) / torch.outer(scale, scale)
    assert error.abs().max() < 5 * (2 / 4000) ** 0.5


def test_dropout_of_a_given_network_needs_no_training():
    network, _ = trained(dropout_mlp)
    predictive = quick_fit(task_of(network), (X, Y), be.MCDropout(), epochs=0).predict(X, num_draws=2000)
    network.train()
    with torch.no_grad(), scoped(0):
        expected = torch.stack([network(X).softmax(-1) for _ in range(2000)]).mean(0)
    assert (predictive.probs - expected).abs().max() < 0.06
    whole = quick_fit(task_of(network), (X, Y), be.Dropout(rate=0.2), epochs=0)
    assert whole.predict(X).epistemic.max() > 0


def test_swag_from_stations_of_a_training_has_their_moments():
    network, stations = trained(every=4)
    ensemble = quick_fit(task_of(network), (X, Y), be.SWAG(rank=3), epochs=0, start=stations)
    slots = ensemble.state.slots
    for name in stations[0]:
        stacked = torch.stack([one[name] for one in stations])
        torch.testing.assert_close(slots["path_mean"][name][0], stacked.mean(0))
        torch.testing.assert_close(slots["path_squares"][name][0] / 10, stacked.var(0, correction=0))
    assert slots["path_count"]["snapshots"] == 10
    assert ensemble.predict(X).epistemic.max() > 0


def test_stations_are_networks_of_any_kind_and_measure_batch_norm_anew():
    network, stations = trained(norm_mlp, every=4)
    modules = []
    for one in stations:
        modules.append(copy.deepcopy(network))
        modules[-1].load_state_dict(one)
    found = [
        quick_fit(task_of(network), (X, Y), be.SWAG(rank=3, draws=4), epochs=0, start=start)
        for start in (stations, modules, be.Ensemble.from_modules(modules, be.Categorical()))
    ]
    assert "draw_buffers" in found[0].state.slots
    for other in found[1:]:
        assert torch.equal(other.predict(X).probs, found[0].predict(X).probs)


def test_a_subspace_is_found_from_stations_too():
    network, stations = trained(every=2)
    method = be.Subspace(rank=5, dim=2, draws=4, warmup=2)
    assert quick_fit(task_of(network), (X, Y), method, epochs=0, start=stations).predict(X).epistemic.max() > 0


def test_components_are_trained_around_a_given_network():
    network, _ = trained()
    method = be.ECMP(train="components", select="output", learning_rate=0.01)
    ensemble = quick_fit(task_of(network), (X, Y), method, epochs=2)
    assert torch.equal(ensemble.state.members.params["0.weight"][0], network[0].weight)
    assert ensemble.evaluate((X, Y))["accuracy"] > 0.9


@pytest.mark.parametrize("method", [be.Laplace(), be.SWAG(rank=3)], ids=["laplace", "swag"])
def test_what_was_completed_is_saved_loaded_and_found_again(method, tmp_path):
    network, stations = trained(every=4)
    options = {"epochs": 0, "start": stations if isinstance(method, be.SWAG) else None, "checkpoint": tmp_path / "run"}
    ensemble = quick_fit(task_of(network), (X, Y), method, **options)
    loaded = be.load(tmp_path / "run", small_mlp)
    assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)
    again = quick_fit(task_of(network), (X, Y), method, resume=True, **options)
    assert torch.equal(again.predict(X).probs, ensemble.predict(X).probs)


def test_orders_of_their_own_tell_members_apart_that_begin_equal():
    network, _ = trained()
    ensemble = quick_fit(task_of(network), (X, Y), be.DeepEnsemble(num_members=2, own_order=True))
    assert not torch.equal(*ensemble.state.members.params["0.weight"])
    refuse_same_batches(None, 1)
    refuse_same_batches(torch.tensor([[0, 1], [1, 1]]), 1)


GIVEN = {"start": "given"}
REFUSED = {
    "random networks": ({}, be.Laplace(), {}, r'epochs=0 trains nothing; say Task\(\.\.\., start="given"\)'),
    "several of one": (GIVEN, be.DeepEnsemble(num_members=3), {}, r"3 of them are equal.*jitter=0\.1"),
    "components": (GIVEN, be.EMP(), {}, "EMP learns what it predicts with by training, for which epochs=0 is too few$"),
    "widths": (GIVEN, be.MeanField(), {}, "MeanField learns"),
    "chains": (GIVEN, be.HMC(), {"batch_size": None}, "HMC learns"),
    "no stations": (GIVEN, be.SWAG(), {}, r"SWAG learns.*pass networks along a training as start=\[\.\.\.\]"),
    "stations of several": (
        GIVEN,
        be.SWAG(num_members=2),
        {"start": trained(every=9)[1]},
        "are one member, the method has 2",
    ),
    "stations of a sampler": (GIVEN, be.CyclicalSGMCMC(), {"start": trained(every=9)[1]}, "CyclicalSGMCMC learns"),
    "validation": (GIVEN, be.Laplace(), {"validation": (X, Y)}, "after each epoch, of which epochs=0 has none"),
    "one batch": (
        GIVEN,
        be.DeepEnsemble(own_order=True),
        {"batch_size": None, "epochs": 1},
        "an epoch is a single one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_come_to_nothing_is_refused(name):
    task, method, options, message = REFUSED[name]
    network = trained(steps=0 if name == "random networks" else 40)[0]
    with pytest.raises(SettingError, match=message):
        quick_fit(
            be.Task(network, be.Categorical(), be.NormalPrior(), **task), (X, Y), method, **({"epochs": 0} | options)
        )
