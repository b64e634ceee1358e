"""The lower bound of implicit ensembles: gradients against all combinations of components; the pull of the prior."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.methods.implicit import mixing
from bayesemble.methods.implicit.components import patches_of
from bayesemble.methods.implicit.patches import COMPONENT_PREFIX
from helpers import quick_fit


class Tiny(nn.Module):
    """Two layers that are patched, one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.middle = nn.Linear(2, 2)
        self.last = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def tiny_problem(temperature: float = 1.0) -> tuple[be.Task, Batch]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    tiny = be.Task(lambda: Tiny().double(), be.Gaussian(0.7), be.NormalPrior(std=1.3), temperature).bind(6, x)
    return tiny, Batch(x, y)


@pytest.mark.parametrize("mixing", ["uniform", "learned"])
@pytest.mark.parametrize("kl", ["exact", "single"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_gradient_is_unbiased_against_all_combinations(mixing, kl, temperature):
    """Mean of many members' steps of plain gradient ascent against autograd through the enumerated lower bound."""
    tiny, batch = tiny_problem(temperature)
    draws = 2 if mixing == "learned" else 1
    method = be.EMP(
        num_members=500, components=3, select="first.*,last.*", optimizer="sgd", momentum=0.0, learning_rate=1.0,
        mixing=mixing, training_draws=draws, kl=kl, jitter=0.5,
    )  # fmt: skip
    start = method.init(tiny, 0)
    leaves = {n: leaf[:1].clone() for n, leaf in method._learned(start).items()}
    shares = {key: leaf for key, leaf in leaves.items() if key.startswith("mixing.")}
    for leaf in shares.values():
        leaf.copy_(torch.tensor([[0.5, -0.3, 0.1]]))

    def lower_bound(values: dict[str, Tensor]) -> Tensor:
        def part(name: str, k: int) -> Tensor:
            return values[name][0] if k == 0 else values[COMPONENT_PREFIX + name][0, k - 1]

        def probability(layer: int) -> Tensor:
            key = f"mixing.layer-{layer}"
            return values[key][0].softmax(0) if key in values else torch.full((3,), 1 / 3, dtype=torch.float64)

        total = torch.zeros((), dtype=torch.float64)
        for combination in itertools.product(range(3), range(3)):
            own = {name: values[name][0] for name in tiny.shapes if name.startswith("middle")}
            for layer, k in zip(("first", "last"), combination, strict=True):
                own |= {f"{layer}.{leaf}": part(f"{layer}.{leaf}", k) for leaf in ("weight", "bias")}
            weight = probability(0)[combination[0]] * probability(1)[combination[1]]
            total = total + 6 * weight * tiny.mean_log_likelihood(own, {}, batch.inputs, batch.targets)
        for name in tiny.shapes:
            if name.startswith("middle"):
                total = total - values[name].square().sum() / (2 * 1.3**2)
                continue
            likely = probability(0 if name.startswith("first") else 1)
            for k in range(3):
                square = part(name, k).square().sum() / (2 * 1.3**2)
                fixed = likely[k].detach() if kl == "single" else likely[k]
                total = total - (square if kl == "single" else fixed * square)
        return total

    def with_kl_of_shares(values: dict[str, Tensor]) -> Tensor:
        """The learned probabilities always have the exact KL, constants of the prior included."""
        total = lower_bound(values)
        constant = torch.log(torch.tensor(1.3 * (2 * torch.pi) ** 0.5, dtype=torch.float64))
        for layer, names in (("0", ("first.weight", "first.bias")), ("1", ("last.weight", "last.bias"))):
            if f"mixing.layer-{layer}" not in values:
                continue
            likely = values[f"mixing.layer-{layer}"][0].softmax(0)
            total = total - (likely * likely.log()).sum()
            for k, name in itertools.product(range(3), names):
                leaf = (leaves[name][0] if k == 0 else leaves[COMPONENT_PREFIX + name][0, k - 1]).detach()
                total = total - likely[k] * leaf.numel() * constant
                if kl == "single":
                    total = total - likely[k] * leaf.square().sum() / (2 * 1.3**2)
        return total

    wanted = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    exact = dict(zip(wanted, torch.autograd.grad(with_kl_of_shares(wanted), list(wanted.values())), strict=True))
    for name, leaf in method._learned(start).items():  # 500 members at the same place draw independently
        leaf.copy_(leaves[name].expand_as(leaf))
    state, _ = method.step(start, batch, Context(tiny, be.Vmap(), Clock(0, 1, 0)))
    moves = {name: 6 * (leaf - leaves[name]) for name, leaf in method._learned(state).items()}  # ascend divides by rows
    for name, found in moves.items():
        error = found.std(0) / len(found) ** 0.5
        wanted_mean = exact[name][0] / temperature
        assert ((found.mean(0) - wanted_mean).abs() <= 4.5 * error + 1e-9).all(), name


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_exact_pull_of_the_prior_is_as_strong_as_a_component_is_likely(rate):
    """A leaf that the data does not touch moves by the prior alone."""
    tiny, batch = tiny_problem()
    blind = Batch(torch.zeros_like(batch.inputs), batch.targets)  # no data gradient in first.weight
    moved = {}
    for kl in ("exact", "single"):
        plain = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 1.0}
        method = be.EMP(components=4, select="first.*", rate=rate, kl=kl, **plain)
        state = method.init(tiny, 0)
        before = {name: leaf.clone() for name, leaf in method._learned(state).items()}
        method.step(state, blind, Context(tiny, be.Loop(), Clock(0, 1, 0)))
        name = COMPONENT_PREFIX + "first.weight"
        moved[kl] = (6 * (method._learned(state)[name] - before[name]) / -before[name]).flatten()
    torch.testing.assert_close(moved["exact"], torch.full((12,), 0.25 * (1 - rate) / 1.3**2, dtype=torch.float64))
    torch.testing.assert_close(moved["single"], torch.full((12,), 1 / 1.3**2, dtype=torch.float64))


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_probabilities_that_the_data_do_not_touch_move_by_the_kl_alone(rate):
    tiny, batch = tiny_problem()
    blind = Batch(torch.zeros_like(batch.inputs), batch.targets)  # whatever first.weight is drawn, outputs are the same
    plain = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 1.0}
    method = be.EMP(components=3, select="first.weight", rate=rate, mixing="learned", training_draws=2, **plain)
    state = method.init(tiny, 0)
    (key,) = (name for name in method._learned(state) if name.startswith("mixing."))
    method._learned(state)[key].copy_(torch.tensor([[0.5, -0.3, 0.1]]))
    patches, leaves = patches_of(state), {name: leaf.clone() for name, leaf in method._learned(state).items()}

    def kl(logits: Tensor) -> Tensor:
        shares = mixing.probabilities(patches, {key: logits}, 1)
        return mixing.kl_divergence(leaves, patches, shares, tiny, 0.0).sum()

    method.step(state, blind, Context(tiny, be.Loop(), Clock(0, 1, 0)))
    wanted = -torch.autograd.functional.jacobian(kl, leaves[key])
    torch.testing.assert_close(6 * (method._learned(state)[key] - leaves[key]), wanted)
    assert wanted.abs().max() > 0.01


def test_learned_probabilities_favour_the_component_that_fits():
    """One component of two fits the data, the other never can: it is drawn less and less."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 1, generator=generator)
    y = 2 * x[:, 0]
    method = be.EMP(
        components=2, select="all", mixing="learned", training_draws=2, train="components", learning_rate=0.05
    )
    with scoped(0):
        ensemble = quick_fit(be.Task(nn.Linear(1, 1), be.Gaussian(0.3)), (x, y), method, epochs=40)
    share = ensemble.state.slots["mixing"]["mixing.layer-0"].softmax(1)[0]
    assert abs(float(share.sum()) - 1) < 1e-6
    assert float((share - 0.5).abs().max()) > 0.01
