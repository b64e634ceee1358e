import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.models.table_networks import (
    EMBEDDINGS,
    ColumnLinear,
    Periodic,
    Piecewise,
    Tabular,
    quantile_edges,
    tabular,
)
from bayesemble.task.networks import new_module
from helpers import quick_fit


def make(embedding: str = "periodic", category_sizes: tuple[int, ...] = (), **options: object) -> Tabular:
    edges = torch.tensor([[-2.0, -0.5, 0.5, 2.0]] * 3) if embedding == "piecewise" else None
    with scoped(0):
        return tabular(3, category_sizes, 2, width=8, embedding=embedding, edges=edges, **options)


@pytest.fixture
def table(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(20, 3, generator=generator), torch.randint(0, 5, (20, 2), generator=generator)


def test_periodic_embeddings_are_sines_and_cosines_of_each_frequency():
    with scoped(0):
        layer = Periodic(2, 3, frequency_std=0.5)
    x = torch.tensor([[0.3, -1.2]])
    for column in range(2):
        angles = [2 * math.pi * f * float(x[0, column]) for f in layer.frequencies[column].tolist()]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        torch.testing.assert_close(layer(x)[0, column], torch.tensor(expected))


def test_piecewise_embeddings_say_how_far_a_number_has_come_through_each_bin():
    layer = Piecewise(torch.tensor([[0.0, 1.0, 3.0, 3.0, 4.0]]))  # the third bin has no width: it is a step at 3
    x = torch.tensor([[-1.0], [0.25], [2.0], [3.5], [9.0]])
    expected = [[0, 0, 0, 0], [0.25, 0, 0, 0], [1, 0.5, 0, 0], [1, 1, 1, 0.5], [1, 1, 1, 1]]
    torch.testing.assert_close(layer(x)[:, 0], torch.tensor(expected).float())


def test_bins_between_quantiles_hold_equally_many_rows():
    values = np.random.default_rng(0).gamma(1.0, size=(800, 3))
    edges = quantile_edges(values, bins=8)
    assert edges.shape == (3, 9)
    for column in range(3):
        counts, _ = np.histogram(values[:, column], edges[column].double().numpy() + np.linspace(-1e-5, 1e-5, 9))
        assert np.abs(counts - 100).max() <= 2


def test_columns_have_linear_layers_of_their_own_that_start_as_those_of_torch(generator):
    with scoped(0):
        layer = ColumnLinear(50, 4, 30)
    x = torch.randn(3, 50, 4, generator=generator)
    expected = torch.stack([(x[:, c] @ layer.weight[c] + layer.bias[c]).relu() for c in range(50)], 1)
    torch.testing.assert_close(layer(x), expected)
    for leaf in (layer.weight.detach(), layer.bias.detach()):  # uniform from -1/2 to 1/2
        assert 0.49 < float(leaf.max()) <= 0.5
        assert -0.5 <= float(leaf.min()) < -0.49
        assert abs(float(leaf.mean())) < 4 * 0.5 / math.sqrt(3 * leaf.numel())


def test_sizes_of_embeddings_and_layers():
    """A category has 1 + the root of their number of coordinates, 32 at most; a number has 8 beside itself."""
    with scoped(0):
        network = tabular(3, (1, 4, 8, 9, 2000), 2, width=5)
    assert [tuple(layer.weight.shape) for layer in network.categories] == [(2, 2), (5, 3), (9, 3), (10, 4), (2001, 32)]
    assert network.embedding[0].frequencies.shape == (3, 8)
    assert network.embedding[1].weight.shape == (3, 16, 8)
    assert (network.input.in_features, len(network.blocks)) == (3 + 3 * 8 + 2 + 3 + 3 + 4 + 32, 2)
    with scoped(0):
        one_bin = tabular(2, (), 1, width=5, embedding="piecewise", edges=[[0.0, 1.0]] * 2)
    assert one_bin(torch.zeros(4, 2)).shape == (4, 1)
    assert quantile_edges(np.arange(5.0)[:, None]).shape == (1, 17)


def test_the_forward_pass_is_the_formula(table):
    network = make("none", (4, 4), depth=1)
    numbers, categories = table
    block, norm = network.blocks[0], nn.functional.layer_norm
    embedded = [layer.weight[categories[:, i]] for i, layer in enumerate(network.categories)]
    h = torch.cat([numbers, *embedded], 1) @ network.input.weight.T + network.input.bias
    inner = (norm(h, (8,)) @ block.first.weight.T + block.first.bias).relu()
    h = h + inner @ block.second.weight.T + block.second.bias
    expected = norm(h, (8,)).relu() @ network.output.weight.T + network.output.bias
    torch.testing.assert_close(network(numbers, categories), expected)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_vmap_gives_what_single_networks_give(embedding, table):
    networks = []
    for _ in range(3):
        with scoped(len(networks)):
            networks.append(new_module(make(embedding, (4, 4))))
    leaves = [dict(network.named_parameters()) | dict(network.named_buffers()) for network in networks]
    stacked = {name: torch.stack([own[name] for own in leaves]) for name in leaves[0]}
    found = vmap(lambda own: functional_call(networks[0], own, table))(stacked)
    torch.testing.assert_close(found, torch.stack([network(*table) for network in networks]))


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_every_parameter_is_reinitialised_and_reached_by_the_gradient(embedding, table):
    network = make(embedding, (4, 4))
    with scoped(1):
        again = new_module(network)
    again(*table).square().sum().backward()
    kept = dict(network.named_parameters())
    for name, parameter in again.named_parameters():
        assert "norm" in name or not torch.equal(parameter, kept[name]), name
        assert parameter.grad.abs().max() > 0, name


def test_rows_do_not_act_on_one_another(table):
    network = make().double()
    numbers = table[0].double()
    torch.testing.assert_close(network(numbers)[:1], network(numbers[:1]))


def test_an_ensemble_trains_on_numbers_and_categories(table):
    labels = (table[1][:, 0] > 2).long()
    ensemble = quick_fit(
        be.Task(lambda: tabular(3, (4, 4), 2, width=8), be.Categorical()),
        (table, labels),
        be.DeepEnsemble(num_members=2, learning_rate=0.02),
        epochs=40,
        executor="vmap",
    )
    assert (ensemble.predict(table).probs.argmax(-1) == labels).all()
    with_unknown = (table[0], torch.zeros_like(table[1]))
    assert ensemble.predict(with_unknown).probs.isfinite().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding": "fourier"}, "embedding is one of"),
        ({"embedding": "piecewise"}, "edges are needed for piecewise"),
        ({"embedding": "piecewise", "edges": [[0.0, 1.0]]}, r"edges must be \(3, bins \+ 1\)"),
        ({"embedding": "piecewise", "edges": [[1.0, 0.0]] * 3}, "must ascend"),
        ({"width": 0}, "width is at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused(options, words):
    with pytest.raises(SettingError, match=words):
        tabular(3, (), 2, **options)
    with pytest.raises(SettingError, match="at least one column"):
        tabular(0, (), 2)
    with pytest.raises(SettingError, match="has at least one"):
        tabular(3, (0,), 2)
