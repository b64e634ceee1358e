import pytest
import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.execute.optimizers.fused import Optimizer, clip_per_member, member_norms, turned_like
from bayesemble.execute.optimizers.rates import parts
from bayesemble.execute.programs.recorder import Recorder

MEMBERS = 3
SHAPES = {"weight": (4, 3), "bias": (4,), "kernel": (2, 3, 2, 2), "scale": ()}


class Lion(torch.optim.Optimizer):
    """As its paper has it, one tensor after the other."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for p in group["params"]:
            m = self.state[p].get("m", torch.zeros_like(p))
            one, two = group["betas"]
            p -= group["lr"] * (torch.sign(one * m + (1 - one) * p.grad) + group["weight_decay"] * p)
            self.state[p]["m"] = two * m + (1 - two) * p.grad


CASES = [
    (Optimizer("adam", 0.9, 0.0), lambda p, lr: torch.optim.Adam(p, lr)),
    (Optimizer("adam", 0.5, 0.0), lambda p, lr: torch.optim.Adam(p, lr, betas=(0.5, 0.999))),
    (Optimizer("adam", 0.9, 0.0, beta2=0.8), lambda p, lr: torch.optim.Adam(p, lr, betas=(0.9, 0.8))),
    (Optimizer("adam", 0.9, 0.1), lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1)),
    (Optimizer("adamw", 0.9, 0.1), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)),
    (Optimizer("sgd", 0.0, 0.0), lambda p, lr: torch.optim.SGD(p, lr)),
    (Optimizer("sgd", 0.9, 0.0), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    (Optimizer("sgd", 0.9, 0.1), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.1)),
    (Optimizer("lion", 0.9, 0.0), Lion),
    (Optimizer("lion", 0.8, 0.1, beta2=0.7), lambda p, lr: Lion(p, lr, (0.8, 0.7), 0.1)),
]
over_optimizers = pytest.mark.parametrize(("optimizer", "of_torch"), CASES, ids=[str(c[0]) for c in CASES])


def random_leaves(generator):
    return {
        name: torch.randn(MEMBERS, *shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()
    }


def run(optimizer, params, steps, rates):
    params, slots = {name: leaf.clone() for name, leaf in params.items()}, optimizer.init(params)
    for gradients, rate in zip(steps, rates, strict=True):
        optimizer.update(params, gradients, slots, rate)
    return params


def run_torch(of_torch, params, steps, rates, member):
    leaves = {name: torch.nn.Parameter(leaf[member].clone()) for name, leaf in params.items()}
    optimizer = of_torch(list(leaves.values()), rates[0])
    for gradients, rate in zip(steps, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for name, leaf in leaves.items():
            leaf.grad = gradients[name][member].clone()
        optimizer.step()
    return leaves


@over_optimizers
def test_the_stacked_update_is_torch_optim_on_each_member_by_itself(optimizer, of_torch, generator):
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in range(5)]
    rates = [0.1, 0.1, 0.05, 0.02, 0.01]
    moved = run(optimizer, params, steps, rates)
    for member in range(MEMBERS):
        for name, leaf in run_torch(of_torch, params, steps, rates, member).items():
            torch.testing.assert_close(moved[name][member], leaf.detach(), rtol=1e-12, atol=1e-12)


@over_optimizers
def test_rates_of_members_and_leaves_are_those_of_separate_optimisers(optimizer, of_torch, generator):
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in range(4)]
    moved, slots = {name: leaf.clone() for name, leaf in params.items()}, optimizer.init(params)
    rates, factors = (0.1, 0.01, 0.05), dict.fromkeys(SHAPES, 1.0) | {"bias": 0.5}
    for gradients in steps:
        optimizer.update(moved, gradients, slots, parts(params, rates, factors))
    for member in range(MEMBERS):
        for name in SHAPES:
            rate = rates[member] * factors[name]
            alone = run_torch(of_torch, {name: params[name]}, steps, [rate] * 4, member)[name]
            torch.testing.assert_close(moved[name][member], alone.detach(), rtol=1e-12, atol=1e-12)


@over_optimizers
def test_gradients_laid_out_differently_in_memory_give_the_same_update(optimizer, of_torch, generator):
    params, gradients = random_leaves(generator), random_leaves(generator)
    transposed = {name: leaf.mT.contiguous().mT if leaf.dim() > 2 else leaf for name, leaf in gradients.items()}
    assert transposed["weight"].stride() != gradients["weight"].stride()
    straight, crossed = (run(optimizer, params, [given] * 3, [0.1] * 3) for given in (gradients, transposed))
    for name in SHAPES:
        assert torch.equal(straight[name], crossed[name])


@over_optimizers
def test_leaves_of_several_fits_move_to_the_bits_of_each_alone(optimizer, of_torch, generator):
    def leaves(fits):
        return {
            "weight": torch.randn(fits * 2, 7, 3, generator=generator),
            "bias": torch.randn(fits * 2, 3, generator=generator),
        }

    params, steps = leaves(5), [leaves(5) for _ in range(4)]
    moved, slots = {name: leaf.clone() for name, leaf in params.items()}, optimizer.init(params)
    for gradients in steps:
        optimizer.update(moved, gradients, slots, 0.05, together=2)
    for fit in range(5):
        own = slice(2 * fit, 2 * fit + 2)
        parts = [{name: leaf[own].clone() for name, leaf in whole.items()} for whole in (params, *steps)]
        alone = run(optimizer, parts[0], parts[1:], [0.05] * 4)
        assert all(torch.equal(moved[name][own], alone[name]) for name in params)


@over_optimizers
def test_a_gradient_broadcast_from_one_number_moves_every_element(optimizer, of_torch):
    params = {"weight": torch.zeros(2, 3, dtype=torch.float64)}
    moved = run(optimizer, params, [{"weight": torch.ones((), dtype=torch.float64).expand(2, 3)}], [0.1])
    torch.testing.assert_close(moved["weight"], torch.full((2, 3), -0.1, dtype=torch.float64))


@over_optimizers
def test_leaves_in_channels_last_layout_are_updated_as_any_other(optimizer, of_torch, generator):
    params, gradients = random_leaves(generator), random_leaves(generator)
    kernel = params["kernel"].permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    slots = optimizer.init({"kernel": kernel})
    for _ in range(3):
        optimizer.update({"kernel": kernel}, gradients, slots, 0.1)
    torch.testing.assert_close(kernel, run(optimizer, params, [gradients] * 3, [0.1] * 3)["kernel"])


@over_optimizers
def test_a_run_goes_on_from_copied_slots_as_if_never_stopped(optimizer, of_torch, generator):
    params, steps = random_leaves(generator), [random_leaves(generator) for _ in range(4)]
    whole = run(optimizer, params, steps, [0.1] * 4)
    slots = optimizer.init(params)
    for gradients in steps:
        slots = {slot: {name: leaf.clone() for name, leaf in kept.items()} for slot, kept in slots.items()}
        optimizer.update(params, gradients, slots, 0.1)
    assert all(torch.equal(params[name], whole[name]) for name in SHAPES)


def test_leaves_move_in_place_and_gradients_stay(generator):
    params, gradients = random_leaves(generator), random_leaves(generator)
    before, kept = ({n: leaf.clone() for n, leaf in leaves.items()} for leaves in (params, gradients))
    address = params["weight"].data_ptr()
    optimizer = Optimizer("adam", 0.9, 0.1)
    optimizer.update(params, gradients, optimizer.init(params), 0.1)
    assert params["weight"].data_ptr() == address
    assert not torch.equal(params["weight"], before["weight"])
    assert all(torch.equal(gradients[name], kept[name]) for name in SHAPES)


def test_slots_hold_only_what_the_optimizer_needs(generator):
    params = random_leaves(generator)
    assert Optimizer("sgd", 0.0, 0.0).init(params) == {}
    assert set(Optimizer("sgd", 0.9, 0.0).init(params)) == {"momentum"}
    assert set(Optimizer("lion", 0.0, 0.0).init(params)) == {"momentum"}
    slots = Optimizer("adam", 0.9, 0.0).init(params)
    assert set(slots) == {"first_moment", "second_moment", "steps"}
    assert all(not leaf.any() for kept in slots.values() for leaf in kept.values())


def test_adam_counts_one_step_per_update_whatever_the_number_of_leaves(generator):
    optimizer, params = Optimizer("adam", 0.9, 0.0), random_leaves(generator)
    slots = optimizer.init(params)
    for _ in range(4):
        optimizer.update(params, random_leaves(generator), slots, 0.1)
    assert slots["steps"]["step"].item() == 4


# --- clipping ---


def naive_norm(gradients, member):
    return torch.cat([leaf[member].flatten() for leaf in gradients.values()]).norm()


def test_the_norm_of_a_member_is_over_all_its_leaves(generator):
    gradients = random_leaves(generator)
    expected = torch.stack([naive_norm(gradients, member) for member in range(MEMBERS)])
    torch.testing.assert_close(member_norms(list(gradients.values())), expected)


def test_the_norm_of_leaves_of_more_than_one_block_is_exact_to_rounding(generator):
    leaves = [torch.rand(3, 5, 30_000, generator=generator), torch.rand(3, 7, generator=generator)]
    expected = sum(leaf.double().flatten(1).square().sum(1) for leaf in leaves).sqrt()
    found = member_norms(leaves)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_each_member_is_clipped_by_its_own_norm_as_torch_does_it(generator):
    gradients = random_leaves(generator)
    for leaf in gradients.values():
        leaf.mul_(torch.tensor([0.01, 1.0, 100.0]).reshape(-1, *[1] * (leaf.dim() - 1)))
    expected = []
    for member in range(MEMBERS):
        leaves = [torch.nn.Parameter(torch.zeros_like(leaf[member])) for leaf in gradients.values()]
        for leaf, gradient in zip(leaves, gradients.values(), strict=True):
            leaf.grad = gradient[member].clone()
        torch.nn.utils.clip_grad_norm_(leaves, max_norm=2.0)
        expected.append([leaf.grad for leaf in leaves])
    clip_per_member(gradients, max_norm=2.0, shared=frozenset())
    for position, leaf in enumerate(gradients.values()):
        torch.testing.assert_close(leaf, torch.stack([grads[position] for grads in expected]))


def test_a_number_per_member_is_clipped_as_any_other_leaf():
    gradients = {"scale": torch.tensor([4.0, 0.25]), "bias": torch.tensor([[3.0], [0.0]])}
    clip_per_member(gradients, max_norm=1.0, shared=frozenset())
    torch.testing.assert_close(gradients["scale"], torch.tensor([0.8, 0.25]))
    torch.testing.assert_close(gradients["bias"], torch.tensor([[0.6], [0.0]]))


def test_small_gradients_are_not_scaled_up_and_zero_stays_zero():
    gradients = {"w": torch.tensor([[0.3, 0.4], [0.0, 0.0]])}
    clip_per_member(gradients, max_norm=1.0, shared=frozenset())
    assert torch.equal(gradients["w"], torch.tensor([[0.3, 0.4], [0.0, 0.0]]))


def test_shared_leaves_are_neither_clipped_nor_counted():
    gradients = {"own": torch.tensor([[3.0, 4.0], [0.3, 0.4]]), "all": torch.tensor([100.0])}
    clip_per_member(gradients, max_norm=1.0, shared=frozenset({"all"}))
    torch.testing.assert_close(gradients["own"], torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    assert gradients["all"].item() == 100


def test_clipping_does_nothing_where_all_leaves_are_shared():
    gradients = {"all": torch.tensor([100.0])}
    clip_per_member(gradients, max_norm=1.0, shared=frozenset({"all"}))
    assert gradients["all"].item() == 100


# --- refusals ---


@pytest.mark.parametrize(
    ("name", "momentum", "weight_decay", "message"),
    [
        ("lbfgs", 0.0, 0.0, "name is 'adam', .* got 'lbfgs'"),
        ("sgd", 1.0, 0.0, r"momentum is a number in \[0, 1\), got 1\.0"),
        ("sgd", -0.1, 0.0, r"momentum is a number in \[0, 1\), got -0\.1"),
        ("adamw", 0.0, -1.0, r"weight_decay is a number from 0, got -1\.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, momentum, weight_decay, message):
    with pytest.raises(SettingError, match=message):
        Optimizer(name, momentum, weight_decay)


# --- schedule-free ---

FREE = {
    "sgd": (Optimizer("schedule_free_sgd", 0.9, 0.0), "SGDScheduleFree", {"momentum": 0.9}),
    "sgd with decay": (
        Optimizer("schedule_free_sgd", 0.8, 0.1),
        "SGDScheduleFree",
        {"momentum": 0.8, "weight_decay": 0.1},
    ),
    "adamw": (Optimizer("schedule_free_adamw", 0.9, 0.0), "AdamWScheduleFree", {"betas": (0.9, 0.999)}),
    "adamw with decay": (
        Optimizer("schedule_free_adamw", 0.8, 0.1, beta2=0.7),
        "AdamWScheduleFree",
        {"betas": (0.8, 0.7), "weight_decay": 0.1},
    ),
}
over_schedule_free = pytest.mark.parametrize("case", FREE)
WARMED_UP = [0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1]


def slope(name, weights):
    """The gradient of a function whose minimum is not at 0."""
    return (weights - len(name)).sin() + 0.3 * weights


def run_schedule_free(optimizer, params, rates):
    params, slots = {name: leaf.clone() for name, leaf in params.items()}, optimizer.init(params)
    for rate in rates:
        at = optimizer.looked_at(params, slots)
        optimizer.update(params, {name: slope(name, leaf) for name, leaf in at.items()}, slots, rate)
        slots = {slot: {name: leaf.clone() for name, leaf in kept.items()} for slot, kept in slots.items()}  # as saved
    return params


def naive_schedule_free(optimizer, name, x, rates):
    """As the paper has it, for one leaf."""
    z, v, total, largest = x.clone(), torch.zeros_like(x), 0.0, 0.0
    for step, rate in enumerate(rates, 1):
        y = (1 - optimizer.momentum) * z + optimizer.momentum * x
        g = slope(name, y)
        if optimizer.name == "schedule_free_adamw":
            beta2 = 0.999 if optimizer.beta2 is None else optimizer.beta2
            v = beta2 * v + (1 - beta2) * g**2
            g = g / ((v / (1 - beta2**step)).sqrt() + optimizer.epsilon)
        z = z - rate * (g + optimizer.weight_decay * y)
        largest = max(largest, rate)
        total += largest**2
        x = x + largest**2 / total * (z - x)
    return x


@over_schedule_free
def test_schedule_free_members_move_as_the_paper_has_it(case, generator):
    params, (optimizer, _, _) = random_leaves(generator), FREE[case]
    moved = run_schedule_free(optimizer, params, WARMED_UP)
    factors = {"weight": 1.0, "bias": 0.5, "kernel": 1.0, "scale": 2.0}
    own = [parts(params, [rate, 2 * rate, rate / 3], factors) for rate in WARMED_UP]
    by_member = run_schedule_free(optimizer, params, own)
    for name, leaf in params.items():
        for member, factor in enumerate((1, 2, 1 / 3)):
            expected = naive_schedule_free(optimizer, name, leaf[member], WARMED_UP)
            torch.testing.assert_close(moved[name][member], expected, rtol=1e-10, atol=1e-10)
            rates = [rate * factor * factors[name] for rate in WARMED_UP]
            expected = naive_schedule_free(optimizer, name, leaf[member], rates)
            torch.testing.assert_close(by_member[name][member], expected, rtol=1e-10, atol=1e-10)


@over_schedule_free
def test_schedule_free_members_move_as_those_of_its_authors(case, generator):
    schedulefree = pytest.importorskip("schedulefree")
    params, (optimizer, name_of_class, settings) = random_leaves(generator), FREE[case]
    moved = run_schedule_free(optimizer, params, WARMED_UP)
    for member in range(MEMBERS):
        leaves = {name: torch.nn.Parameter(leaf[member].clone()) for name, leaf in params.items()}
        theirs = getattr(schedulefree, name_of_class)(leaves.values(), lr=0.1, warmup_steps=4, **settings)
        theirs.train()
        for _ in WARMED_UP:
            for name, leaf in leaves.items():
                leaf.grad = slope(name, leaf.detach())
            theirs.step()
        theirs.eval()
        for name, leaf in leaves.items():
            torch.testing.assert_close(moved[name][member], leaf.detach(), rtol=1e-10, atol=1e-10)


def test_other_optimisers_look_where_members_stand(generator):
    params = random_leaves(generator)
    optimizer = Optimizer("adam", 0.9, 0.0)
    assert optimizer.looked_at(params, optimizer.init(params)) is params


class TestTurnedLike:
    """A gradient that comes transposed is turned in its own memory, if nobody else has that."""

    leaf = torch.zeros(3, 4, 5)

    @staticmethod
    def slopes(function) -> tuple[list[Tensor], Tensor]:
        weights = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        rows = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1))
        found = list(torch.autograd.grad(function(weights, rows).square().sum(), weights))
        assert found[0].mT.is_contiguous()
        return found, found[0].clone()

    def test_it_is_turned_in_its_own_memory(self):
        found, expected = self.slopes(lambda weights, rows: rows @ weights.mT)
        memory = found[0].data_ptr()
        turned = turned_like(found.pop(), self.leaf)
        assert turned.is_contiguous()
        assert turned.data_ptr() == memory
        assert torch.equal(turned, expected)

    def test_what_others_hold_stays_as_it_is(self):
        for keep in (lambda one: one.mT, lambda one: one.detach()):
            found, expected = self.slopes(lambda weights, rows: rows @ weights.mT)
            held = keep(found[0])
            before = held.clone()
            assert torch.equal(turned_like(found.pop(), self.leaf), expected)
            assert torch.equal(held, before)

    def test_while_operations_are_recorded_it_is_copied(self):
        found, expected = self.slopes(lambda weights, rows: rows @ weights.mT)
        memory = found[0].data_ptr()
        with Recorder([]):
            turned = turned_like(found.pop(), self.leaf)
        assert turned.data_ptr() != memory
        assert torch.equal(turned, expected)

    def test_two_leaves_of_one_gradient_each_get_it(self):
        one, other = (torch.ones(3, 4, 5).requires_grad_() for _ in range(2))
        rows = torch.arange(105.0).view(3, 7, 5)
        found = list(torch.autograd.grad((rows @ (one + other).mT).square().sum(), (one, other)))
        expected = found[0].clone()
        first = turned_like(found.pop(), self.leaf, found)
        second = turned_like(found.pop(), self.leaf, found)
        assert torch.equal(first, expected)
        assert torch.equal(second, expected)
