"""Sharpness: against the whole Hessian of a tiny network, and a quadratic loss in closed form."""

import importlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.diagnostics.landscape import measure, sharpness
from helpers import norm_mlp, quick_fit, table

DATA = table(40, seed=1)


def smooth_mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def whole(module, params, loss):
    """The Hessian `(number, number)` in double precision of a loss of the module's outputs, in all parameters."""
    sizes = [leaf.numel() for leaf in params.values()]

    def of(vector):
        pieces = zip(params.items(), vector.split(sizes), strict=True)
        return loss(module, {name: piece.reshape(leaf.shape) for (name, leaf), piece in pieces})

    return hessian(of)(torch.cat([leaf.double().flatten() for leaf in params.values()]))


def check(found, place, expected):
    values = torch.linalg.eigvalsh(expected).flip(0)[: found.eigenvalues.shape[1]]
    assert torch.allclose(found.eigenvalues[place], values, rtol=1e-4, atol=0)
    beside = expected - torch.diag(expected.diagonal())
    # The variance of z'Hz for random signs z is twice the sum of squares beside the diagonal; 30 are averaged.
    standard_error = math.sqrt(2 * float(beside.square().sum()) / 30)
    assert abs(float(found.trace[place] - expected.trace())) < 4 * standard_error
    assert 0.3 * standard_error < float(found.trace_error[place]) < 3 * standard_error


def test_classes_against_the_whole_hessian():
    ensemble = quick_fit(be.Task(smooth_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=2), epochs=20)
    found, (x, y) = sharpness(ensemble, DATA), DATA
    with scoped(0):
        module = smooth_mlp().double()

    def loss(network, leaves):
        return F.cross_entropy(functional_call(network, leaves, (x.double(),)), y)

    for place, (params, _) in enumerate(measure.members_of(ensemble).split()):
        check(found, place, whole(module, params, loss))
    own = measure.measure(ensemble, [measure.members_of(ensemble)], DATA)
    assert torch.equal(found.loss, own.loss)
    assert torch.equal(found.error, own.error)
    assert found.classes


def test_a_quadratic_loss_in_closed_form():
    """Linear regression with noise s: H = X'X / (N s^2) at any weights, with a column of ones for the bias."""
    x, _ = table(60, 5)
    y = x @ torch.arange(5.0) + 0.3
    ensemble = quick_fit(
        be.Task(lambda: nn.Linear(5, 1), be.Gaussian(noise=0.5)), (x, y), be.DeepEnsemble(num_members=2)
    )
    found = sharpness(ensemble, (x, y), top=2)
    columns = torch.cat([x, torch.ones(60, 1)], 1).double()
    for place in range(2):
        check(found, place, columns.T @ columns / (60 * 0.5**2))
    assert not found.classes


def test_batch_norm_keeps_its_statistics_and_learned_noise_is_a_parameter():
    x, _ = table()
    ensemble = quick_fit(be.Task(norm_mlp, be.Gaussian(noise="learned")), (x, x[:, :2]), be.DeepEnsemble(num_members=1))
    found = sharpness(ensemble, (x, x[:, :2]))
    with scoped(0):
        module = norm_mlp().double().eval()
    for place, (params, buffers) in enumerate(measure.members_of(ensemble).split()):
        still = {name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in buffers.items()}

        def loss(network, leaves, still=still):
            own = {name: leaf for name, leaf in leaves.items() if not name.startswith("likelihood.")}
            means, log_noise = functional_call(network, own | still, (x.double(),)), leaves["likelihood.log_noise"]
            squares = ((x[:, :2].double() - means) / log_noise.exp()).square()
            return (squares / 2 + log_noise + math.log(2 * math.pi) / 2).sum(1).mean()

        check(found, place, whole(module, params, loss))


def test_batches_and_seeds_change_nothing_but_the_random_vectors(monkeypatch):
    ensemble = quick_fit(be.Task(smooth_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=1))
    one, again, other = (sharpness(ensemble, DATA, samples=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.eigenvalues, again.eigenvalues)
    assert torch.equal(one.trace, again.trace)
    assert torch.allclose(one.eigenvalues, other.eigenvalues, rtol=1e-4)
    assert not torch.equal(one.trace, other.trace)
    monkeypatch.setattr(importlib.import_module("bayesemble.diagnostics.landscape.hessians"), "_BATCH_SIZE", 25)
    parts = sharpness(ensemble, DATA, samples=3)
    assert torch.allclose(one.eigenvalues, parts.eigenvalues, rtol=1e-4)
    assert torch.allclose(one.trace, parts.trace, rtol=1e-4)


def test_one_sample_has_no_standard_error_and_odd_settings_are_refused():
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), table(), be.DeepEnsemble(num_members=1))
    assert bool(sharpness(ensemble, DATA, top=1, samples=1).trace_error.isnan().all())
    assert sharpness(ensemble, DATA, samples=1).eigenvalues.shape == (1, 3)
    for settings, words in (
        ({"top": 10}, "parameters, 10"),
        ({"steps": 3}, "more than top"),
        ({"samples": 0}, "samples"),
    ):
        with pytest.raises(be.SettingError, match=words):
            sharpness(ensemble, DATA, **settings)


class _OneWay(torch.autograd.Function):
    """The sine, with a rule for neither forward mode nor vmap."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * x.cos()


class Strange(nn.Linear):
    def forward(self, x):
        return _OneWay.apply(super().forward(x))


def test_a_layer_without_a_hessian_is_a_sentence():
    task = be.Task(lambda: Strange(4, 2), be.Categorical())
    ensemble = quick_fit(task, table(), be.DeepEnsemble(num_members=1))
    with pytest.raises(be.ModelError, match="Hessian of Strange cannot be worked out"):
        sharpness(ensemble, DATA)


def test_a_missing_package_is_named(monkeypatch):
    ensemble = quick_fit(be.Task(smooth_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=1))
    real = importlib.import_module

    def refuse(name, *rest):
        if name == "curvlinops":
            raise ImportError("not here")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(be.MissingExtraError, match="curvlinops-for-pytorch"):
        sharpness(ensemble, DATA)
