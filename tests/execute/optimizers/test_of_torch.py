from functools import partial

import pytest
import torch

from bayesemble.core.errors import SettingError
from bayesemble.execute.optimizers.of_torch import BY_NAME, OfTorch, TorchOptimizer, as_setting
from bayesemble.execute.optimizers.rates import parts

MEMBERS, RATES = 3, [0.1, 0.1, 0.05, 0.02, 0.01]
SHAPES = {"weight": (4, 3), "bias": (4,), "scale": ()}
ELEMENTWISE = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
SETTINGS = [
    ("Adam", {"amsgrad": True, "betas": (0.8, 0.9)}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
]
CASES = [OfTorch(name) for name in ELEMENTWISE] + [OfTorch(*one) for one in SETTINGS]
over_optimizers = pytest.mark.parametrize("factory", CASES, ids=str)


def random_leaves(generator):
    return {
        name: torch.randn(MEMBERS, *shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()
    }


def run(optimizer, params, steps, rates):
    params, slots = {name: leaf.clone() for name, leaf in params.items()}, optimizer.init(params)
    for gradients, rate in zip(steps, rates, strict=True):
        slots = {slot: {name: leaf.clone() for name, leaf in kept.items()} for slot, kept in slots.items()}  # as saved
        optimizer.update(params, gradients, slots, rate)
    return params


def alone(factory, params, steps, rates, member):
    """A plain loop of the optimiser on one member, which lives as long as the run."""
    leaves = {name: leaf[member].clone() for name, leaf in params.items()}
    optimizer = factory(list(leaves.values()), lr=rates[0])
    for gradients, rate in zip(steps, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for name, leaf in leaves.items():
            leaf.grad = gradients[name][member].clone()
        optimizer.step()
    return leaves


@over_optimizers
def test_stacked_members_move_as_in_plain_loops_of_each(factory, generator):
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in RATES]
    moved = run(TorchOptimizer(factory), params, steps, RATES)
    for member in range(MEMBERS):
        for name, leaf in alone(factory, params, steps, RATES, member).items():
            torch.testing.assert_close(moved[name][member], leaf, rtol=1e-12, atol=1e-12)


@over_optimizers
def test_members_and_leaves_with_rates_of_their_own_move_to_the_bits_of_plain_loops(factory, generator):
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in range(4)]
    rates, factors = (0.1, 0.01, 0.05), {"weight": 1.0, "bias": 0.5, "scale": 1.0}
    moved = run(TorchOptimizer(factory, by_member=True), params, steps, [parts(params, rates, factors)] * 4)
    for member in range(MEMBERS):
        for name in SHAPES:
            rate = rates[member] * factors[name]
            plain = alone(factory, {name: params[name]}, steps, [rate] * 4, member)[name]
            assert torch.equal(moved[name][member], plain)


def test_all_that_torch_offers_is_either_tested_here_or_refused():
    offered = {
        name
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
    }
    refused = set()
    for name in offered - set(ELEMENTWISE):
        with pytest.raises(SettingError, match=f"{name} .* cannot move stacked members as it moves each by itself"):
            TorchOptimizer(OfTorch(name)).check()
        refused.add(name)
    assert refused == {"LBFGS", "Muon", "Adafactor", "SparseAdam"}
    assert set(BY_NAME.values()) < set(ELEMENTWISE)


def test_slots_hold_what_it_keeps_and_gradients_are_let_go_of(generator):
    params, optimizer = random_leaves(generator), TorchOptimizer(OfTorch("NAdam"))
    slots = optimizer.init(params)
    assert set(slots) == {"steps", *(f"optimizer_{k}" for k in ("step", "mu_product", "exp_avg", "exp_avg_sq"))}
    assert set(slots) == set(optimizer.slot_names)
    assert optimizer.num_moments == 2
    optimizer.update(params, random_leaves(generator), slots, 0.1)
    assert slots["optimizer_exp_avg"]["weight"].any()
    assert slots["optimizer_step"]["bias"] == 1
    assert all(leaf.grad is None for leaf in params.values())


# --- optimisers that are not torch's ---


class Plain(torch.optim.Optimizer):
    """Gradient descent whose step is divided by its number, which it keeps as a number of Python."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def factor(self, gradient):
        return 1.0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                count = self.state[p]["count"] = self.state[p].get("count", 0) + 1
                p -= group["lr"] / count * self.factor(p.grad) * p.grad


class ByNorm(Plain):
    def factor(self, gradient):
        return 1 / gradient.norm()


class Drawn(Plain):
    chance = torch.Generator().manual_seed(0)

    def factor(self, gradient):
        return torch.rand((), generator=self.chance)


class Elsewhere(Plain):
    calls = 0

    def factor(self, gradient):
        self.calls += 1
        return self.calls


class Rows(Plain):
    def factor(self, gradient):
        self.state[self.param_groups[0]["params"][0]]["rows"] = gradient.sum(-1)
        return 1.0


def test_an_optimiser_of_ones_own_moves_members_as_by_themselves(generator):
    TorchOptimizer(Plain).check()
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in RATES]
    moved = run(TorchOptimizer(Plain), params, steps, RATES)
    plain = alone(Plain, params, steps, RATES, 1)
    assert all(torch.equal(moved[name][1], plain[name]) for name in SHAPES)


@pytest.mark.parametrize("factory", [ByNorm, Drawn, Elsewhere])
def test_one_that_notices_that_members_are_stacked_is_refused(factory):
    with pytest.raises(SettingError, match=f"{factory.__name__} does not move stacked members as it moves each"):
        TorchOptimizer(factory).check()


def test_one_that_keeps_other_tensors_than_its_leaves_are_is_refused():
    with pytest.raises(SettingError, match=r"Rows keeps 'rows', a tensor of shape \(2,\), for a leaf of"):
        TorchOptimizer(Rows).check()


def test_one_that_breaks_or_goes_uphill_is_refused():
    with pytest.raises(SettingError, match="NAdam cannot be used on stacked members: Invalid beta"):
        TorchOptimizer(OfTorch("NAdam", {"betas": (2.0, 0.9)})).check()
    with pytest.raises(SettingError, match="SGD goes uphill"):
        TorchOptimizer(OfTorch("SGD", {"maximize": True})).check()


# --- how it is written down ---


def test_classes_of_torch_and_partials_of_them_can_be_saved_others_stay():
    assert as_setting(torch.optim.RMSprop) == OfTorch("RMSprop")
    assert as_setting(partial(torch.optim.NAdam, betas=(0.8, 0.9))) == OfTorch("NAdam", {"betas": (0.8, 0.9)})
    assert as_setting("adam") == "adam"
    assert as_setting(Plain) is Plain
    with pytest.raises(SettingError, match=r"lr=0\.1 is what learning_rate says"):
        as_setting(partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(SettingError, match=r"torch\.optim has no optimiser 'lr_scheduler'"):
        OfTorch("lr_scheduler")
