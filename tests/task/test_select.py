import pytest
import torch
from torch import nn
from torch.func import functional_call

from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.task.network_ends import Ends, find_ends
from bayesemble.task.networks import new_module
from bayesemble.task.select import NORM_LAYERS, layers, select

TOKENS = torch.arange(10).reshape(2, 5)


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


def test_ends_by_order_of_registration_pass_over_norm_layers():
    with scoped(0):
        network = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert select(network, "input") == ["1.weight", "1.bias"]
    assert select(network, "output") == ["3.weight", "3.bias"]
    assert select(network, "not output") == [name for name in select(network, "all") if not name.startswith("3.")]


def test_ends_that_were_found_are_believed(network):
    ends = Ends(("scale",), ("body.2.0",))
    assert select(network, "output", ends) == ["body.2.0.weight", "body.2.0.bias"]
    assert select(network, "input", ends) == ["scale.weight", "scale.bias"]
    assert select(network, "not input", ends) == [name for name in ALL if not name.startswith("scale")]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("norm+output", [*NORM, "head.weight", "head.bias"]),
        ("output + norm", [*NORM, "head.weight", "head.bias"]),
        ("input+output", ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]),
        ("norm+all", ALL),
        ("not output", ALL[:-2]),
        ("not input", ALL[2:]),
    ],
)
def test_words_add_up_in_the_order_of_the_network(network, wish, expected):
    assert select(network, wish) == expected


def test_a_sum_needs_one_of_its_parts_only():
    with scoped(0):
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert select(network, "norm+output") == ["2.weight", "2.bias"]
    network[2].requires_grad_(False)
    with pytest.raises(SettingError, match=r"select='norm\+output'"):
        select(network, "norm+output")


@pytest.mark.parametrize(("wish", "word"), [("norm+head", "head"), ("not norm+output", "not norm"), ("norm+", "")])
def test_only_words_are_added_up(network, wish, word):
    with pytest.raises(SettingError, match=f"'{word}' is not one of the words that \\+ can join"):
        select(network, wish)


@pytest.mark.parametrize("wish", ["not all", "not head", "nrom", "nrom+outptu", [], (), ["head.*", "tail"], nn.LSTM])
def test_wishes_that_mean_nothing_are_refused(network, wish):
    with pytest.raises(SettingError, match="means no parameter of Network"):
        select(network, wish)


@pytest.mark.parametrize(
    "wish", [None, 3, True, int, (nn.Linear, int), (nn.Linear, "head.*"), [nn.Linear], nn.ReLU(), {"head.*": 1}]
)
def test_wishes_of_another_kind_are_refused(network, wish):
    with pytest.raises(SettingError, match=r"select is a text such as 'norm\+output', .* got "):
        select(network, wish)


@pytest.mark.parametrize("word", ["output", "input"])
def test_several_layers_at_an_end_or_none_are_refused_with_their_names(network, word):
    network.level = nn.Parameter(torch.ones(2))
    several = ("", "scale", "head")
    with pytest.raises(SettingError, match=rf'3 {word} layers .* select="head\.\*"\. .*: level, scale\.\*, head\.\*$'):
        select(network, f"norm+{word}", Ends(several, several))
    with pytest.raises(SettingError, match=rf"no {word} layers .*: level, body\.0\.\*, body\.1\.\*"):
        select(network, word, Ends((), ()))
    assert select(network, "norm", Ends((), ())) == NORM


def test_layers_by_their_type(network):
    convolutions = [name for name in ALL if name.startswith(("body.0.", "body.2.0."))]
    assert select(network, nn.Conv2d) == convolutions
    assert select(network, (nn.Linear, nn.Conv2d)) == [*convolutions, "head.weight", "head.bias"]
    assert select(network, nn.Sequential) == [name for name in ALL if name.startswith("body.")]
    assert select(network, NORM_LAYERS) == NORM


def test_names_and_patterns_in_a_sequence(network):
    assert select(network, ["head.bias", "body.0.*"]) == ["body.0.weight", "body.0.bias", "head.bias"]
    assert select(network, ("head.weight",)) == ["head.weight"]


def test_a_function_is_asked_about_each_layer_that_owns_parameters(network):
    asked = []
    assert select(network, lambda name, layer: asked.append((name, layer)) or name.endswith("0")) == select(
        network, nn.Conv2d
    )
    assert [name for name, _ in asked] == ["body.0", "body.1", "body.2.0", "body.2.1", "scale", "head"]
    assert all(network.get_submodule(name) is layer for name, layer in asked)
    assert select(network, lambda _, layer: not isinstance(layer, NORM_LAYERS)) == select(network, "not norm")
    with pytest.raises(SettingError, match=r"select=<lambda> .*no parameter of Network"):
        select(network, lambda name, layer: False)


def test_ends_of_a_language_model_with_tied_weights():
    with scoped(0):
        network = nn.Sequential(nn.Embedding(10, 8), nn.RMSNorm(8), nn.Linear(8, 10))
    network[2].weight = network[0].weight
    found = find_ends(network, TOKENS, lambda leaves: functional_call(network, leaves, (TOKENS,)))
    assert found == Ends(("0",), ("2",))
    assert select(network, "input", found) == select(network, nn.Embedding) == ["0.weight"]
    for ends in (found, None):
        assert select(network, "output", ends) == select(network, nn.Linear) == ["0.weight", "2.bias"]
    with pytest.raises(SettingError, match=r"Candidates: 0\.\*, 0\.weight,2\.bias$"):
        select(network, "output", Ends((), ("0", "2")))


def test_frozen_ends_mean_no_parameter():
    with scoped(0):
        network = nn.Sequential(nn.Conv1d(4, 8, 1), nn.Flatten(), nn.Linear(8, 2))
    network[2].requires_grad_(False)
    for ends in (Ends(("0",), ("2",)), None):
        with pytest.raises(SettingError, match="select='output'"):
            select(network, "output", ends)
        assert select(network, "input", ends) == ["0.weight", "0.bias"]


def test_names_of_several_architectures():
    with scoped(0):
        network = new_module([lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))])
    assert select(network, "input") == ["0.weight", "0.bias"]
    assert select(network, "output") == ["1.1.weight", "1.1.bias"]


def test_layers_group_names_in_the_order_of_the_network(network):
    assert layers(network, ["head.bias", "head.weight", "body.2.0.bias"]) == {
        "body.2.0": ["body.2.0.bias"],
        "head": ["head.weight", "head.bias"],
    }
    assert [name for group in layers(network, ALL).values() for name in group] == ALL
    assert layers(nn.LayerNorm(4), {"bias", "weight"}) == {"": ["weight", "bias"]}
    assert layers(network, []) == {}
    with pytest.raises(SettingError, match=r"Network has no parameter 'tail'; it has body\.0\.weight"):
        layers(network, ["tail"])
