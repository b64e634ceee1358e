import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from bayesemble.core.seeds import scoped
from bayesemble.task.network_ends import Ends, _owners, find_ends, layer_of, parameters_by_layer

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
TOKENS = torch.arange(10).reshape(2, 5)
SERIES = torch.linspace(-1, 1, 2 * 5 * 4).reshape(2, 5, 4)


def ends(network: nn.Module, *inputs, **named) -> Ends:
    """The ends of a network in eval mode."""
    network.eval()
    return find_ends(network, inputs or named, lambda leaves: functional_call(network, leaves, inputs, named))


class Net(nn.Module):
    """Layers by name, and a function of the network and the inputs that runs them."""

    def __init__(self, run, **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.run(self, *inputs, **named)


def net(run, **layers) -> Net:
    """A network of layers that are given by factories, or by parameters."""
    with scoped(0):
        return Net(run, **{k: make if isinstance(make, nn.Parameter) else make() for k, make in layers.items()})


def linear(num_in: int, num_out: int, bias: bool = True):
    return lambda: nn.Linear(num_in, num_out, bias=bias)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(num_out)
        same = num_in == num_out
        self.down = None if same else nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride), nn.BatchNorm2d(num_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return torch.relu_(out)


class ResNet(nn.Module):
    def __init__(self, head: bool = True) -> None:
        super().__init__()
        if head:
            self.fc = nn.Linear(8, 5)  # registered before all that it comes after
        self.conv1 = nn.Conv2d(3, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4, 1), Block(4, 4, 1))
        self.layer2 = nn.Sequential(Block(4, 8, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(torch.relu_(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)).flatten(1)) if hasattr(self, "fc") else x


def test_a_residual_network_whose_head_is_registered_first():
    with scoped(0):
        network = ResNet()
    assert ends(network, IMAGES) == Ends(("conv1",), ("fc",))


def test_a_sum_of_two_branches_at_the_end_is_both():
    with scoped(0):
        network = ResNet(head=False)
    assert ends(network, IMAGES) == Ends(("conv1",), ("layer2.0.bn2", "layer2.0.down.1"))


@pytest.mark.parametrize(
    "after",
    [
        lambda out: out,
        torch.relu,
        lambda out: out[:, :1].squeeze(-1),
        lambda out: out.softmax(-1),
        lambda out: out.log_softmax(-1).exp() * 3 + 1,
        lambda out: (out - out.mean(0)) / (out.std(0) + 1),
        lambda out: torch.stack([out[:, 0], F.softplus(out[:, 1])], -1),
        lambda out: out.double().view(-1, 2, 1).permute(0, 2, 1),
        lambda out: torch.where(out > 0, out, out.tanh()),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_done_to_the_outputs_after_the_head_does_not_hide_it(after, bias):
    network = net(
        lambda self, x: after(self.head(torch.relu(self.body(x)))), head=linear(8, 2, bias), body=linear(4, 8)
    )
    assert ends(network, X) == Ends(("body",), ("head",))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_on_inputs_of_any_shape(shape, bias):
    network = net(lambda self, x: self.head(self.body(x).sin()), body=linear(4, 8), head=linear(8, 2, bias))
    assert ends(network, torch.ones(shape)) == Ends(("body",), ("head",))


def test_two_heads_are_both_outputs_and_two_branches_both_inputs():
    heads = net(
        lambda self, x: torch.cat([self.mean(h := torch.relu(self.body(x))), self.scale(h).exp()], -1),
        mean=linear(8, 1),
        scale=linear(8, 1),
        body=linear(4, 8),
    )
    assert ends(heads, X) == Ends(("body",), ("mean", "scale"))
    branches = net(
        lambda self, x: self.head(torch.relu(self.left(x[:, :2]) + self.right(x[:, 2:]))),
        head=linear(8, 1),
        right=linear(2, 8),
        left=linear(2, 8),
    )
    assert ends(branches, X) == Ends(("right", "left"), ("head",))


def test_a_layer_that_only_another_output_needs_is_not_found():
    network = net(lambda self, x: (self.main(x), self.side(x)), main=linear(4, 2), side=linear(4, 2))
    found = find_ends(network, X, lambda leaves: functional_call(network, leaves, (X,))[0])
    assert found == Ends(("main", "side"), ("main",))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_and_its_head(norm_first):
    network = net(
        lambda self, x: self.head(self.encoder(self.embedding(x)).mean(1)),
        head=linear(8, 3),
        embedding=lambda: nn.Embedding(10, 8),
        encoder=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first),
    )
    assert ends(network, TOKENS) == Ends(("embedding",), ("head",))
    body = nn.Sequential(network.embedding, network.encoder)
    way_around = ("0", "1.self_attn.out_proj", "1.linear2")  # without a norm at its end, the sum of all that was added
    assert ends(body, TOKENS) == Ends(("0",), way_around if norm_first else ("1.norm2",))


def test_attention_alone_has_its_input_in_itself_and_its_output_in_its_projection():
    network = net(
        lambda self, x: self.attention(query=x, key=x, value=x)[0], attention=lambda: nn.MultiheadAttention(4, 2)
    )
    assert ends(network, SERIES) == Ends(("attention",), ("attention.out_proj",))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    read = lambda self, x: self.head(self.recurrent(x)[0][:, -1])  # noqa: E731
    network = net(read, head=linear(6, 2), recurrent=lambda: kind(4, 6, num_layers=2, batch_first=True))
    assert ends(network, SERIES) == Ends(("recurrent",), ("head",))
    assert ends(net(lambda self, x: self.recurrent(x)[0], recurrent=lambda: kind(4, 6)), SERIES) == Ends(
        ("recurrent",), ("recurrent",)
    )


def test_an_embedding_and_a_mean():
    network = net(
        lambda self, x: self.head(self.embedding(x).mean(1)), head=linear(8, 3), embedding=lambda: nn.Embedding(10, 8)
    )
    assert ends(network, TOKENS) == Ends(("embedding",), ("head",))
    bag = net(lambda self, x: self.head(self.bag(x)), head=linear(8, 3, False), bag=lambda: nn.EmbeddingBag(10, 8))
    assert ends(bag, TOKENS) == Ends(("bag",), ("head",))
    with scoped(0):
        assert ends(nn.Embedding(10, 8), TOKENS) == Ends(("",), ("",))


def test_tied_weights_count_for_the_layer_that_is_called_last():
    for bias in (True, False):
        network = net(
            lambda self, x: self.head(torch.relu(self.body(self.embedding(x)))),
            embedding=lambda: nn.Embedding(10, 8),
            body=linear(8, 8),
            head=linear(8, 10, bias),
        )
        network.head.weight = network.embedding.weight
        assert ends(network, TOKENS) == Ends(("embedding",), ("head",))
        names = ["embedding.weight", "head.bias"] if bias else ["embedding.weight"]
        assert parameters_by_layer(network)["head"] == names


def test_of_layers_that_own_a_parameter_the_one_called_last_counts_else_the_first():
    layers = {"a": ["w", "v"], "b": ["w"], "c": ["w", "u"]}
    assert _owners(layers, []) == {"w": "a", "v": "a", "u": "c"}
    assert _owners(layers, ["b"]) == {"w": "b", "v": "a", "u": "c"}
    assert _owners(layers, ["c", "b", "a", "b"]) == {"w": "b", "v": "a", "u": "c"}


def test_a_layer_used_twice_is_found_by_its_first_name():
    network = net(lambda self, x: self.again(torch.relu(self.one(x))), one=linear(4, 4))
    network.again = network.one
    assert ends(network, X) == Ends(("one",), ("one",))


def test_frozen_layers_are_found_and_stay_frozen():
    network = net(lambda self, x: self.head(self.body(x).relu()), head=linear(8, 2), body=linear(4, 8))
    network.requires_grad_(False)
    assert ends(network, X) == Ends(("body",), ("head",))
    assert not any(p.requires_grad or p.grad is not None for p in network.parameters())


def test_several_inputs_in_a_tuple_or_by_name():
    def run(self, tokens, features):
        return self.head(
            torch.cat([self.embedding(tokens).mean(1), self.body(features / 1.0), self.side(features)], -1)
        )

    made = {"head": linear(12, 2), "embedding": lambda: nn.Embedding(10, 4), "body": linear(4, 4), "side": linear(4, 4)}
    network = net(run, **made)
    expected = Ends(("embedding", "side"), ("head",))
    assert ends(network, TOKENS, X[:2]) == expected
    assert ends(network, features=X[:2], tokens=TOKENS) == expected


def test_inputs_that_are_transformed_first_belong_to_the_layer_called_first():
    network = net(lambda self, x: self.head(self.body(x * 2).relu()), head=linear(8, 2), body=linear(4, 8))
    assert ends(network, X) == Ends(("body",), ("head",))
    flat = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), network)
    assert ends(flat, X.reshape(3, 2, 2)) == Ends(("2.body",), ("2.head",))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_network_with_parameters_of_its_own_beside_its_layers(scale):
    """A token of the network's own is no input layer; a matrix of its own that meets the inputs is."""
    token = net(
        lambda self, x: self.head(
            torch.cat([self.token.expand(len(x), -1), self.body(x * scale if scale < 1 else x)], 1)
        ),
        token=nn.Parameter(torch.ones(4)),
        head=linear(12, 2),
        body=linear(4, 8),
    )
    assert ends(token, X) == Ends(("body",), ("head",))
    matrix = net(
        lambda self, x: self.head((x * scale) @ self.matrix), matrix=nn.Parameter(torch.ones(4, 8)), head=linear(8, 2)
    )
    assert ends(matrix, X) == Ends(("",), ("head",))
    offset = net(lambda self, x: self.body(x) + self.offset, offset=nn.Parameter(torch.ones(2)), body=linear(4, 2))
    assert ends(offset, X) == Ends(("body",), ("",))


def test_weights_that_are_made_from_parameters_belong_to_their_layer():
    for bias in (True, False):
        network = net(
            lambda self, x: self.head(self.body(x).relu()),
            head=lambda bias=bias: weight_norm(nn.Linear(8, 2, bias=bias)),
            body=linear(4, 8),
        )
        assert ends(network, X) == Ends(("body",), ("head",))
        made = [name for name, _ in network.named_parameters() if name.startswith("head.")]
        assert parameters_by_layer(network)["head"] == made
        assert {layer_of(name) for name in made} == {"head"}
    assert layer_of("parametrizations.weight.original0") == layer_of("weight") == ""
    positive = net(
        lambda self, x: F.linear(self.body(x), self.weight.exp() * self.weight),
        weight=nn.Parameter(torch.ones(2, 8)),
        body=linear(4, 8),
    )
    assert ends(positive, X) == Ends(("body",), ("",))


@pytest.mark.parametrize(
    "run", [lambda self, x: x * 2, lambda self, x: self.body(x).detach(), lambda self, x: self.body(x) > 0]
)
def test_an_output_that_depends_on_no_parameters_has_no_layer(run):
    assert ends(net(run, body=linear(4, 2)), X).outputs == ()


def test_a_parameter_that_is_the_output():
    network = net(lambda self, x: self.level, level=nn.Parameter(torch.ones(3)))
    assert ends(network, X).outputs == ("",)


def test_inputs_with_gradients_of_their_own_change_nothing():
    network = net(lambda self, x: self.head(self.body(x.flip(0)).relu()), head=linear(8, 2), body=linear(4, 8))
    assert ends(network, X.clone().requires_grad_()) == Ends(("body",), ("head",))


def test_a_network_of_thousands_of_layers_is_no_matter():
    with scoped(0):
        network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(1500)))
    assert ends(network, X) == Ends(("0",), ("1499",))
    steps = net(lambda self, x: self.chain(self.body(x)), body=linear(4, 4))
    steps.chain = lambda x: [x := x + x.sin() for _ in range(3000)][-1]
    assert ends(steps, X).outputs == ("body",)


def test_it_leaves_no_hooks_no_gradients_and_no_random_numbers_behind():
    network = net(lambda self, x: F.dropout(self.body(x), 0.5), body=linear(4, 2))
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    with torch.no_grad():
        assert ends(network, X) == Ends(("body",), ("body",))
        with pytest.raises(RuntimeError, match="shapes"):
            ends(network, torch.ones(3, 7))
    assert not any(layer._forward_pre_hooks for layer in network.modules())
    assert all(torch.equal(leaf, before[name]) for name, leaf in network.state_dict().items())
    assert all(leaf.grad is None for leaf in network.parameters())


def test_parameters_of_whole_numbers_are_passed_over():
    network = net(
        lambda self, x: self.head(x) * self.places.float(),
        head=linear(4, 2),
        places=nn.Parameter(torch.tensor([1, 2]), requires_grad=False),
    )
    assert ends(network, X) == Ends(("head",), ("head",))
