import numpy as np
import pytest
import torch
from scipy.stats import dirichlet, norm

from bayesemble.core.errors import DataError, SettingError
from bayesemble.task.likelihoods.distilled import DistilledClasses, DistilledNumbers


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_classes_learn_by_the_likelihood_of_the_members(generator):
    """The mean of scipy's log density over members."""
    outputs = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    members = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64).softmax(-1)
    found = DistilledClasses().log_prob(outputs, members.log().mean(0), {})
    density = [
        np.mean([dirichlet.logpdf(members[m, row].numpy(), outputs[row].exp().numpy()) for m in range(5)])
        for row in range(4)
    ]
    # The density has (a_c - 1) log p_c, as the targets' sum does.
    np.testing.assert_allclose(found.numpy(), density, rtol=1e-9)


def test_labels_are_scored_by_the_mean_of_the_distribution(generator):
    outputs, labels = torch.randn(4, 3, generator=generator), torch.tensor([0, 2, 1, 1])
    likelihood = DistilledClasses()
    scored = likelihood.log_prob(outputs, likelihood.check_targets(labels, (3,)), {})
    predictive = likelihood.predictive(outputs[None], {}, torch.ones(1))
    torch.testing.assert_close(scored, predictive.log_prob(labels))
    with pytest.raises(SettingError, match="not from labels"):
        likelihood.check_training_targets(labels)


def test_large_parameters_keep_their_digits_in_single_precision():
    """At the optimum of a sharp Dirichlet the gradient vanishes, though its terms are of the size of a million."""
    alpha = torch.tensor([[2e5, 1e5, 1e5]], dtype=torch.float64)
    lessons = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
    outputs = alpha.log().requires_grad_()
    DistilledClasses().log_prob(outputs, lessons, {}).sum().backward()
    single = alpha.log().float().requires_grad_()
    DistilledClasses().log_prob(single, lessons, {}).sum().backward()
    assert outputs.grad.abs().max() < 1e-3
    assert single.grad.abs().max() < 0.1


def test_numbers_learn_mean_and_both_variances(generator):
    lessons = torch.rand(6, 6, generator=generator, dtype=torch.float64) + 0.5
    likelihood = DistilledNumbers()
    means, aleatoric, epistemic = lessons.tensor_split(3, -1)
    best = torch.cat([means, aleatoric.log(), epistemic.log()], -1).requires_grad_()
    likelihood.log_prob(best, lessons, {}).sum().backward()
    assert best.grad.abs().max() < 1e-12
    predictive = likelihood.predictive(best.detach()[None], {}, torch.ones(1))
    torch.testing.assert_close(predictive.mean, means)
    torch.testing.assert_close(predictive.aleatoric, aleatoric)
    torch.testing.assert_close(predictive.epistemic, epistemic)
    worse = likelihood.log_prob(best.detach() + 0.5, lessons, {})
    expected = -0.125 * (1 / (aleatoric + epistemic) + 2).sum(-1)
    torch.testing.assert_close(worse, expected)


def test_numbers_are_scored_by_their_density(generator):
    outputs, targets = torch.randn(5, 3, generator=generator), torch.randn(5, generator=generator)
    likelihood = DistilledNumbers()
    found = likelihood.log_prob(outputs, likelihood.check_targets(targets, (3,)), {})
    mean, *logs = outputs.double().numpy().T
    np.testing.assert_allclose(found, norm.logpdf(targets, mean, np.sqrt(np.exp(logs).sum(0))), rtol=1e-5)
    predictive = likelihood.predictive(outputs[None], {}, torch.ones(1))
    torch.testing.assert_close(found, predictive.log_prob(targets))
    with pytest.raises(SettingError, match="not targets"):
        likelihood.check_training_targets(likelihood.check_targets(targets, (3,)))


def test_outputs_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="4 classes, and the student has 3"):
        DistilledClasses().check_targets(torch.zeros(5, 4), (3,))
    with pytest.raises(DataError, match="an output for each class"):
        DistilledClasses().check_targets(torch.zeros(5, 1), (1,))
    with pytest.raises(DataError, match="two heads for variances"):
        DistilledNumbers().check_targets(torch.zeros(5, 3), (2,))
