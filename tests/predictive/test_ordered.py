import numpy as np
import pytest
import torch

from bayesemble.core.errors import SettingError
from bayesemble.predictive import OrdinalPredictive
from mixtures import WEIGHTS


def random_grades(generator):
    logits = 2 * torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    return OrdinalPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), logits.log_softmax(-1))


def test_the_distribution_function_adds_up_classes(generator):
    predictive = random_grades(generator)
    labels = torch.tensor([0, 1, 2, 3, 0, 2])
    expected = [float(predictive.probs[row, : label + 1].sum()) for row, label in enumerate(labels)]
    np.testing.assert_allclose(predictive.cdf(labels), expected)


@pytest.mark.parametrize("level", [0.01, 0.3, 0.5, 0.95])
def test_a_quantile_is_the_first_class_that_reaches_the_level(level, generator):
    predictive = random_grades(generator)
    found = predictive.quantile(level)
    assert (predictive.cdf(found) >= level).all()
    below = found > 0
    assert (predictive.cdf((found - 1).clamp_min(0))[below] < level).all()


def test_an_interval_holds_its_level(generator):
    predictive = random_grades(generator)
    low, high = predictive.interval(0.8)
    before = torch.where(low > 0, predictive.cdf((low - 1).clamp_min(0)), 0.0)
    assert (predictive.cdf(high) - before >= 0.8).all()
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        predictive.interval(1.0)


def test_reduced_it_knows_the_order_still(generator):
    predictive = random_grades(generator)
    torch.testing.assert_close(predictive.reduce().cdf([1] * 6), predictive.cdf([1] * 6))
    torch.testing.assert_close(predictive.reduce().mutual_information, predictive.mutual_information)


def test_a_level_that_rounding_leaves_out_is_the_last_class():
    certain = OrdinalPredictive(torch.ones(1), torch.tensor([[[-torch.inf, -torch.inf, 0.0]]]))
    assert certain.quantile(1 - 1e-12).item() == 2
