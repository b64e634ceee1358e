"""Yesterday's posterior as today's prior: linear regression in two halves of the data is that on all of them."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.methods.laplace.laplace import SLOT

NOISE = 0.5


def halves(orthogonal: bool):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(24, 3, generator=generator, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.9, 0.0], [0.0, 0.5, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    if orthogonal:  # within each half
        x = torch.cat([torch.linalg.qr(half)[0] * torch.tensor([2.0, 3.0, 1.5]) for half in (x[:12], x[12:])])
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.4
    y = y + NOISE * torch.randn(24, generator=generator, dtype=torch.float64)
    return [(x[rows], y[rows]) for rows in (slice(0, 12), slice(12, 24), slice(0, 24))]


def trained(data, prior, structure: str, bias: bool) -> be.Ensemble:
    """Laplace at the mode, which one step of Newton's method reaches, as the log joint is quadratic."""
    x, y = data
    task = be.Task(lambda: nn.Linear(3, 1, bias=bias).double(), be.Gaussian(NOISE), prior).bind(len(x), x)
    method = be.Laplace(select="all", structure=structure)
    context, batch = Context(task, be.Loop(), Clock(1, 1, 0)), Batch(x, y.unsqueeze(1))
    state = method.finish(method.init(task, 0), lambda: iter([batch]), context)
    params = state.members.params
    uphill = task.log_joint_gradient(context.gradients(state.members, batch)[1], params)
    slopes = torch.cat([uphill[name].flatten() for name in params])
    if structure == "full":
        names, covariances = method.weight_covariances(state)
        assert list(names) == list(params)
        step = covariances[0] @ slopes
    else:
        step = torch.cat([leaf.flatten() for leaf in method.normal_weights(state)[1].values()]) * slopes
    for leaf, part in zip(params.values(), step.split([leaf.numel() for leaf in params.values()]), strict=True):
        leaf.add_(part.reshape(leaf.shape))
    return be.Ensemble(task, method, method.finish(state, lambda: iter([batch]), context), be.Loop())


@pytest.mark.parametrize(
    ("covariance", "structure", "orthogonal", "bias"),
    [("full", "full", False, True), ("diag", "diag", True, False), ("diag", "full", True, False)],
)
def test_two_halves_in_turn_are_all_rows_at_once(covariance, structure, orthogonal, bias):
    first, second, whole = halves(orthogonal)
    before = trained(first, be.NormalPrior(2.0), structure, bias)
    after = trained(second, before.as_prior(covariance), structure, bias)
    at_once = trained(whole, be.NormalPrior(2.0), structure, bias)
    for name, leaf in at_once.state.members.params.items():
        torch.testing.assert_close(after.state.members.params[name], leaf, rtol=1e-9, atol=1e-9)
    ours, theirs = (one.as_prior(covariance) for one in (after, at_once))
    for name, std in theirs.stds.items():
        torch.testing.assert_close(ours.stds[name], std, rtol=1e-8, atol=0)
    if covariance == "full":
        torch.testing.assert_close(ours.covariance, theirs.covariance, rtol=1e-8, atol=1e-12)
    rows = torch.linspace(-2, 2, 15, dtype=torch.float64).reshape(5, 3)
    torch.testing.assert_close(after.predict(rows).std, at_once.predict(rows).std)
    # log p(first) + log p(second | first) = log p(all)
    evidence = [float(one.state.slots[SLOT]["log_evidence"]) for one in (before, after, at_once)]
    assert evidence[0] + evidence[1] == pytest.approx(evidence[2], abs=1e-9)


def test_with_correlated_inputs_a_diagonal_is_an_approximation_only():
    first, second, whole = halves(orthogonal=False)
    before = trained(first, be.NormalPrior(2.0), "full", True)
    after = trained(second, before.as_prior(), "full", True)
    at_once = trained(whole, be.NormalPrior(2.0), "full", True)
    far = (after.state.members.params["weight"] - at_once.state.members.params["weight"]).abs().max()
    assert far > 1e-3


def test_structures_that_cannot_honour_it_are_refused():
    first, second, _ = halves(orthogonal=False)
    before = trained(first, be.NormalPrior(2.0), "full", True)
    with pytest.raises(be.SettingError, match="structure='kron' takes one standard deviation for each leaf"):
        trained(second, before.as_prior(), "kron", True)
    with pytest.raises(be.SettingError, match="takes structure='full' and select='all'"):
        trained(second, before.as_prior("full"), "diag", True)
