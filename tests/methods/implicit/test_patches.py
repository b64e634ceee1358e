import pytest
import torch
from torch import nn

from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods.implicit.patches import (
    COMPONENT_PREFIX,
    Draw,
    Patch,
    assign,
    components_of,
    compose,
    make_patches,
    share_out,
    spread,
    uniform_count,
)


def test_patches_survive_as_numbers():
    for patch in (Patch("layer", 3, 0, 3, 0.0), Patch("unit", 1, 1, 1, 0.3), Patch("network", 0, 0, 3, 0.0)):
        assert Patch.decode(patch.encode()) == patch


def test_shapes_of_assignments():
    leaf = (6, 4, 3, 3)
    assert Patch("element", 0, 0, 3, 0.0).shape(leaf) == leaf
    assert Patch("unit", 0, 1, 3, 0.0).shape(leaf) == (1, 4, 1, 1)
    assert Patch("layer", 0, 0, 3, 0.0).shape(leaf) == (1, 1, 1, 1)
    assert [Patch(kind, 0, 1, 3, 0.0).count(leaf) for kind in ("element", "unit", "layer", "network")] == [216, 4, 1, 1]


def units_of(layer: nn.Module, name: str = "weight") -> int | None:
    with scoped(0):
        with_head = nn.Sequential(layer, nn.Linear(2, 2))
    layers = {"0": [f"0.{name}"], "1": ["1.weight"]}
    return (
        make_patches(with_head, layers, dict.fromkeys(["0.weight", "0.bias", "1.weight"], Draw("unit", 1, 0.1)))
        .get(f"0.{name}", Patch("none", 0, -1, 3, 0.0))
        .axis
    )


def test_units_enter_along_the_right_axis():
    with scoped(0):
        made = {
            "linear": nn.Linear(3, 2),
            "conv": nn.Conv2d(3, 5, 3),
            "transposed": nn.ConvTranspose2d(3, 5, 3),
            "embedding": nn.Embedding(7, 4),
            "norm": nn.BatchNorm1d(4),
        }
    assert {name: units_of(layer) for name, layer in made.items()} == {
        "linear": 1,
        "conv": 1,
        "transposed": 0,
        "embedding": 0,
        "norm": 0,
    }
    assert units_of(made["linear"], "bias") == -1, "no unit enters a bias"


def test_units_need_weights():
    with scoped(0):
        module = nn.Sequential(nn.Linear(3, 2))
    for kind in ("unit", "element"):
        with pytest.raises(SettingError, match="no selected layer has weights"):
            make_patches(module, {"0": ["0.bias"]}, {"0.bias": Draw(kind, 1, 0.1)})


@pytest.mark.parametrize("kind", ["layer", "element", "unit", "network"])
@pytest.mark.parametrize("with_zero", [True, False])
def test_a_bias_is_left_out_with_its_layer_or_network_alone(kind, with_zero):
    with scoped(0):
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    names = {"0": ["0.weight", "0.bias"], "1": ["1.weight", "1.bias"]}
    found = make_patches(module, names, dict.fromkeys([*names["0"], *names["1"]], Draw(kind, 3, 0.1 * with_zero)))
    shared = {"0.bias", "1.bias"} if kind == "unit" or (kind == "element" and with_zero) else set()
    assert {name for name, _ in module.named_parameters()} - found.keys() == shared


PATCHES = {
    "a.weight": Patch("layer", 0, 0, 3, 0.0),
    "a.bias": Patch("layer", 0, 0, 3, 0.0),
    "b.weight": Patch("element", 1, 0, 3, 0.0),
    "c.weight": Patch("unit", 2, 1, 3, 0.0),
    "d.weight": Patch("network", 0, 0, 3, 0.0),
    "e.weight": Patch("network", 0, 0, 3, 0.0),
}
SHAPES = {
    "a.weight": (3, 2),
    "a.bias": (3,),
    "b.weight": (30, 40),
    "c.weight": (3, 50),
    "d.weight": (2,),
    "e.weight": (4,),
}


def drawn(generator: torch.Generator, probabilities: list[float], num: int = 1) -> dict:
    shares = {patch.key: torch.tensor([probabilities] * num) for patch in PATCHES.values()}
    return assign(PATCHES, SHAPES, shares, torch.rand(num, uniform_count(PATCHES, SHAPES), generator=generator))


def test_what_belongs_together_is_drawn_together(generator):
    assert uniform_count(PATCHES, SHAPES) == 1 + 1200 + 50 + 1
    found = drawn(generator, [0.3, 0.5, 0.2], 20)
    assert torch.equal(found["a.weight"].flatten(), found["a.bias"].flatten())
    assert torch.equal(found["d.weight"].flatten(), found["e.weight"].flatten())
    assert {name: tuple(numbers.shape) for name, numbers in found.items()} == {
        "a.weight": (20, 1, 1),
        "a.bias": (20, 1),
        "b.weight": (20, 30, 40),
        "c.weight": (20, 1, 50),
        "d.weight": (20, 1),
        "e.weight": (20, 1),
    }


def test_assignments_have_their_probabilities(generator):
    """Frequencies within 4 standard errors, for what is drawn once per network and for every unit."""
    shares, num = torch.tensor([0.3, 0.5, 0.2]), 2000
    draws = drawn(generator, shares.tolist(), num)
    for name, count in (("a.weight", num), ("d.weight", num), ("c.weight", num * 50)):
        found = torch.stack([(draws[name] == k).float().mean() for k in range(3)])
        assert ((found - shares).abs() < 4 * (shares * (1 - shares) / count).sqrt()).all(), name


def test_each_draw_has_probabilities_of_its_own(generator):
    shares = {patch.key: torch.tensor([[1.0, 0.0], [0.0, 1.0]]) for patch in PATCHES.values()}
    found = assign(PATCHES, SHAPES, shares, torch.rand(2, uniform_count(PATCHES, SHAPES), generator=generator))
    assert all((numbers[0] == 0).all() and (numbers[1] == 1).all() for numbers in found.values())


def test_elements_are_drawn_independently(generator):
    """The number of agreeing pairs of neighbours is that of independent draws."""
    numbers = drawn(generator, [0.25] * 4, 50)["b.weight"]
    pairs = (numbers[:, :, 1:] == numbers[:, :, :-1]).float()
    assert abs(pairs.mean() - 0.25) < 4 * (0.25 * 0.75 / pairs.numel()) ** 0.5
    between = (numbers[1:] == numbers[:-1]).float()
    assert abs(between.mean() - 0.25) < 4 * (0.25 * 0.75 / between.numel()) ** 0.5


def test_composing_picks_and_sharing_out_is_its_transpose(generator):
    """Against loops; the gradient that each component gets is that of autograd."""
    parts = [torch.randn(2, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assigned = torch.randint(0, 4, (2, 4, 3), generator=generator)
    noise = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    found = compose(parts, assigned, noise)
    for place in [(m, i, j) for m in range(2) for i in range(4) for j in range(3)]:
        k = int(assigned[place])
        assert found[place] == (0 if k == 3 else parts[k][place] + noise[place])
    slope = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad(found, parts, slope)
    into = {"w": torch.zeros_like(noise), COMPONENT_PREFIX + "w": torch.zeros(2, 2, 4, 3, dtype=torch.float64)}
    share_out(slope, assigned, into, "w")
    for one, other in zip(components_of(into, "w"), expected, strict=True):
        assert torch.equal(one, other)


def test_components_of_a_leaf_are_views(generator):
    leaves = {"w": torch.zeros(2, 3), COMPONENT_PREFIX + "w": torch.zeros(2, 4, 3)}
    parts = components_of(leaves, "w")
    assert len(parts) == 5
    parts[3].add_(1)
    assert leaves[COMPONENT_PREFIX + "w"][:, 2].eq(1).all()
    assert leaves[COMPONENT_PREFIX + "w"].sum() == 6


def test_only_components_that_would_start_equal_get_noise(generator):
    one = torch.full((2, 1000), 3.0)
    parts = spread([one, one, one], 0.1, [generator] * 2)
    assert all(abs(float((part - 3).std()) - 0.3) < 0.03 for part in parts)
    assert not torch.equal(parts[0], parts[1])
    zero = spread([torch.zeros(1, 1000)] * 2, 0.1, [generator])
    assert abs(float(zero[0].std()) - 0.1) < 0.01, "a leaf that is zero counts as of size 1"
    different = [torch.zeros(1, 4), torch.ones(1, 4)]
    assert spread(different, 0.1, [generator]) is different
    assert torch.equal(spread([one, one], 0.0, [generator] * 2)[1], one)
