"""What holds for every likelihood: shapes, gradients, numbers that stay finite, training, scoring, saving, loading."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.task.likelihoods.base import held
from helpers import largest_difference, quick_fit
from task.likelihoods.cases import CASES

MEMBERS, ROWS = 3, 7
over_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.likelihood}-{case.targets}")


def leaves_of(case, dtype=torch.float64):
    return {name: leaf.to(dtype) for name, leaf in case.likelihood.leaves((case.outputs,)).items()}


def stacked(leaves):
    return {name: leaf.expand(MEMBERS, *leaf.shape) for name, leaf in leaves.items()}


@over_cases
def test_what_is_trained_is_what_is_predicted(case, generator):
    """The log probability of a member in training is that of its prediction, but for a loss in place of one."""
    outputs = torch.randn(MEMBERS, ROWS, case.outputs, generator=generator, dtype=torch.float64)
    targets, leaves = case.draw(ROWS, generator), leaves_of(case)
    checked = case.likelihood.check_targets(targets, (case.outputs,))
    trained = torch.stack([case.likelihood.log_prob(own, checked, leaves) for own in outputs])
    assert trained.shape == (MEMBERS, ROWS)
    if isinstance(case.likelihood, be.Quantile):
        return
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    predictive = case.likelihood.predictive(outputs, stacked(leaves), weights)
    torch.testing.assert_close(predictive.member_log_prob(targets), trained)
    torch.testing.assert_close(predictive.log_prob(targets), torch.logsumexp(trained + weights.log()[:, None], 0))


@over_cases
def test_gradients_are_right(case, generator):
    outputs = torch.randn(ROWS, case.outputs, generator=generator, dtype=torch.float64, requires_grad=True)
    names, values = zip(*leaves_of(case).items(), strict=True) if leaves_of(case) else ((), ())
    targets = case.likelihood.check_targets(case.draw(ROWS, generator), (case.outputs,))

    def log_prob(outputs, *leaves):
        return case.likelihood.log_prob(outputs, targets, dict(zip(names, leaves, strict=True)))

    torch.autograd.gradcheck(log_prob, (outputs, *(value.requires_grad_() for value in values)))


@over_cases
@pytest.mark.parametrize("size", [0.0, 10.0, 100.0, 1e4])
def test_wild_outputs_have_finite_values_and_slopes_in_single_precision(case, size, generator):
    signs = torch.randint(0, 2, (16, case.outputs), generator=generator) * 2 - 1
    outputs = (size * signs.float()).requires_grad_()
    targets = case.likelihood.check_targets(case.draw(16, generator, torch.float32), (case.outputs,))
    values = case.likelihood.log_prob(outputs, targets, leaves_of(case, torch.float32))
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert torch.isfinite(outputs.grad).all()


@over_cases
def test_it_is_trained_scored_saved_and_loaded_in_the_loop_and_by_vmap(case, tmp_path, generator):
    x, y = torch.randn(40, 3, generator=generator), case.draw(40, generator, torch.float32)

    def network() -> nn.Module:
        return nn.Linear(3, case.outputs)

    task = be.Task(network, case.likelihood)
    loop, vmap = (quick_fit(task, (x, y), executor=how, validation=(x, y)) for how in ("loop", "vmap"))
    assert largest_difference(loop.state.members.params, vmap.state.members.params) < 1e-5
    scores = loop.evaluate((x, y), ood=3 * x)
    assert all(isinstance(score, float) for score in scores.values())
    loop.save(tmp_path)
    loaded = be.load(tmp_path, network)
    assert loaded.task.likelihood == case.likelihood
    predictive = loop.predict(x)
    assert torch.equal(loaded.predict(x).log_prob(y), predictive.log_prob(y))
    assert scores["nll"] == pytest.approx(-float(predictive.log_prob(y).double().mean()), rel=1e-6)
    reduced = loop.predict(x, keep_members=False, batch_size=16)
    torch.testing.assert_close(reduced.epistemic, predictive.epistemic, rtol=1e-4, atol=1e-6)


@over_cases
def test_one_target_may_have_an_axis_of_its_own_or_none(case, generator):
    if case.targets > 1 or case.kind == "time":
        return
    targets = case.draw(ROWS, generator)
    flat, deep = (case.likelihood.check_targets(one, (case.outputs,)) for one in (targets, targets.unsqueeze(1)))
    assert torch.equal(flat, deep)


@over_cases
def test_a_network_with_another_number_of_outputs_is_refused(case, generator):
    if case.kind == "grade":  # one score for each target, whatever their number
        return
    wrong = {6: 7, 15: 14}.get(case.outputs, case.outputs + 1)
    with pytest.raises(DataError, match=f"the network gives .*{wrong}"):
        case.likelihood.check_targets(case.draw(ROWS, generator), (wrong,))


def test_held_numbers_keep_a_slope_beyond_their_limits():
    values = torch.tensor([-5.0, 0.5, 7.0], requires_grad=True)
    kept = held(values, -1.0, 2.0)
    assert kept.tolist() == [-1.0, 0.5, 2.0]
    kept.sum().backward()
    assert values.grad.tolist() == [1.0, 1.0, 1.0]
