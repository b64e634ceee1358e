import pytest
import torch
from torch import nn

from bayesemble.errors import SettingError
from bayesemble.seeds import scoped
from bayesemble.select import NORM_LAYERS, select


class Network(nn.Module):
    """A body with one norm layer of each kind, nested, one of them without scales; and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)),
            nn.BatchNorm2d(4, affine=False),
        )
        self.scale = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


ALL = [
    "body.0.weight",
    "body.0.bias",
    "body.1.weight",
    "body.1.bias",
    "body.2.0.weight",
    "body.2.0.bias",
    "body.2.1.weight",
    "body.2.1.bias",
    "scale.weight",
    "scale.bias",
    "head.weight",
    "head.bias",
]
NORM = [name for name in ALL if name.startswith(("body.1.", "body.2.1.", "scale."))]


@pytest.fixture
def network():
    with scoped(0):
        return Network()


def test_all_are_the_parameters_in_their_order(network):
    assert select(network, "all") == ALL


def test_norm_and_not_norm_part_them_by_the_kind_of_their_layer(network):
    assert select(network, "norm") == NORM
    assert select(network, "not norm") == [name for name in ALL if name not in NORM]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("head.weight", ["head.weight"]),
        ("head.*", ["head.weight", "head.bias"]),
        ("head.bias, body.0.*", ["body.0.weight", "body.0.bias", "head.bias"]),
        ("head.*,*.bias", [name for name in ALL if name.endswith("bias") or name.startswith("head")]),
        ("body.[01].weight", ["body.0.weight", "body.1.weight"]),
        ("*", ALL),
    ],
)
def test_patterns_choose_by_name_each_once_in_the_order_of_the_network(network, wish, expected):
    assert select(network, wish) == expected


def test_frozen_parameters_are_never_meant(network):
    network.body[0].weight.requires_grad_(False)
    network.scale.weight.requires_grad_(False)
    frozen = {"body.0.weight", "scale.weight"}
    for wish in ("all", "norm", "not norm", "*weight"):
        assert not frozen & set(select(network, wish))
    with pytest.raises(SettingError, match="no parameter of Network"):
        select(network, "scale.weight")


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_kind_of_norm_layer_counts_also_where_it_is_the_whole_network(layer):
    assert isinstance(layer, NORM_LAYERS)
    names = [name for name, _ in layer.named_parameters()]
    assert names
    assert select(layer, "norm") == names


def test_a_parameter_that_two_layers_share_is_named_once():
    with scoped(0):
        network = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))
    network[2].weight = network[0].weight
    assert select(network, "norm") == ["0.weight", "0.bias", "2.bias"]


def test_names_compare_with_case(network):
    with pytest.raises(SettingError, match=r"select='Head\.weight'"):
        select(network, "Head.weight")


def test_a_wish_that_means_nothing_is_refused_with_the_names_there_are(network):
    with pytest.raises(SettingError, match=r"select='tail\.\*' .*; use all, norm, not norm, or .*: body\.0\.weight"):
        select(network, "tail.*")
    with pytest.raises(SettingError, match=r"2\.1\.bias, \.\.\.$"):
        select(network, "")


def test_a_network_without_norm_layers_has_no_norm_parameters():
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert select(network, "not norm") == select(network, "all")
    with pytest.raises(SettingError, match=r"no parameter of Sequential; .*2\.weight, 2\.bias$"):
        select(network, "norm")
