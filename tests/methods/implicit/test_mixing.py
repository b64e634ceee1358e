import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods.implicit import mixing
from bayesemble.methods.implicit.patches import COMPONENT_PREFIX, Patch

LAYER = {"weight": Patch("layer", 0, 0, 3, 0.0), "bias": Patch("layer", 0, 0, 3, 0.0)}
ELEMENT = {"weight": Patch("element", 0, 0, 3, 0.0), "bias": Patch("element", 0, 0, 3, 0.0)}


def task(temperature: float = 1.0) -> be.Task:
    return be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(), be.NormalPrior(std=1.5), temperature)


def leaves(generator: torch.Generator, components: int = 3, size: float = 1.0) -> dict:
    def normal(*shape: int) -> torch.Tensor:
        return size * torch.randn(shape, generator=generator, dtype=torch.float64)

    return {
        "weight": normal(2, 1, 2),
        "bias": normal(2, 1),
        COMPONENT_PREFIX + "weight": normal(2, components - 1, 1, 2),
        COMPONENT_PREFIX + "bias": normal(2, components - 1, 1),
    }


def test_probabilities_are_equal_or_softmax_and_leave_room_for_zero():
    fourths = {name: patch._replace(components=4, rate=0.2) for name, patch in LAYER.items()}
    equal = mixing.probabilities(fourths, None, 2)[LAYER["weight"].key]
    torch.testing.assert_close(equal, torch.full((2, 5), 0.2, dtype=torch.float64))
    logits = mixing.start(LAYER, 2, torch.float64)
    logits[LAYER["weight"].key] += torch.tensor([1.0, 2.0, 3.0])
    found = mixing.probabilities(LAYER, logits, 2)[LAYER["weight"].key]
    torch.testing.assert_close(found[0], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).softmax(0))


def test_the_data_part_is_unbiased(generator):
    """Summed over all pairs of assignments with their probabilities, it is the gradient of the expected value."""
    patches = {"a": Patch("layer", 0, 0, 3, 0.0), "b": Patch("layer", 1, 0, 3, 0.0)}
    keys = [patch.key for patch in patches.values()]
    logits = {key: torch.randn(1, 3, generator=generator, dtype=torch.float64) for key in keys}
    value_of = torch.randn(3, 3, generator=generator, dtype=torch.float64)

    def expected_value(*logit: torch.Tensor) -> torch.Tensor:
        return logit[0].softmax(1)[0] @ value_of @ logit[1].softmax(1)[0]

    exact = torch.autograd.functional.jacobian(expected_value, tuple(logits.values()))
    shares = [logit.softmax(1)[0] for logit in logits.values()]
    mean = {key: torch.zeros(1, 3, dtype=torch.float64) for key in keys}
    outcomes = list(itertools.product(range(3), range(3)))
    for pair in itertools.product(outcomes, outcomes):
        weight = math.prod(float(shares[0][i] * shares[1][j]) for i, j in pair)
        draws = [{"a": torch.tensor([[i]]), "b": torch.tensor([[j]])} for i, j in pair]
        values = [value_of[i, j].reshape(1) for i, j in pair]
        for key, slope in mixing.data_slopes(logits, patches, draws, values).items():
            mean[key] += weight * slope
    for key, other in zip(keys, exact, strict=True):
        torch.testing.assert_close(mean[key], other)


@pytest.mark.parametrize("patches", [LAYER, ELEMENT], ids=["layer", "element"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_part_of_the_kl_is_its_gradient(generator, patches, rate, temperature):
    patches = {name: patch._replace(rate=rate) for name, patch in patches.items()}
    own, key = leaves(generator), patches["weight"].key
    logits = torch.randn(2, 3, generator=generator, dtype=torch.float64)

    def negative_kl(logit: torch.Tensor) -> torch.Tensor:
        shares = mixing.probabilities(patches, {key: logit}, 2)
        return -mixing.kl_divergence(own, patches, shares, task(), 0.0).sum() / temperature

    scores = {key: torch.zeros(2, 3, dtype=torch.float64)}
    mixing.add_prior_gradients(scores, {key: logits}, own, patches, task(temperature))
    torch.testing.assert_close(scores[key], torch.autograd.functional.jacobian(negative_kl, logits))


@pytest.mark.parametrize("patches", [LAYER, ELEMENT], ids=["layer", "element"])
def test_the_kl_of_components_far_apart_is_that_of_the_mixture(generator, patches):
    """Against a Monte Carlo estimate with the density of the whole mixture, within 4 standard errors."""
    sigma, own = 0.01, leaves(generator, size=3.0)
    shares = {patches["weight"].key: torch.tensor([[0.2, 0.5, 0.3]] * 2, dtype=torch.float64)}
    found = mixing.kl_divergence(own, patches, shares, task(), sigma)[0]
    centres = torch.stack(
        [
            torch.cat([own["weight"][0].flatten(), own["bias"][0]]),
            *(
                torch.cat([own[COMPONENT_PREFIX + "weight"][0, k].flatten(), own[COMPONENT_PREFIX + "bias"][0, k]])
                for k in range(2)
            ),
        ]
    )
    weights = Categorical(probs=shares[patches["weight"].key][0])
    if patches is LAYER:
        mixture = MixtureSameFamily(weights, Independent(Normal(centres, sigma), 1))
    else:
        each = Categorical(probs=weights.probs.expand(3, 3))
        mixture = Independent(MixtureSameFamily(each, Normal(centres.T, sigma)), 1)
    with scoped(1):
        drawn = mixture.sample((20_000,))
    terms = mixture.log_prob(drawn) - Normal(0.0, 1.5).log_prob(drawn).sum(1)
    assert abs(terms.mean() - found) < 4 * terms.std() / len(terms) ** 0.5


def test_the_kl_needs_a_prior_it_knows(generator):
    flat = be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(), None)
    shares = mixing.probabilities(LAYER, None, 2)
    with pytest.raises(SettingError, match="known for a NormalPrior"):
        mixing.kl_divergence(leaves(generator), LAYER, shares, flat, 0.0)
