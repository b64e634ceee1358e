"""Paths between networks: closed forms of the curves, ends that stay, and training against a naive twin."""

import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import generator
from bayesemble.core.types import Batch
from bayesemble.methods.geometry import curves
from helpers import norm_mlp, quick_fit, small_mlp, table


@pytest.mark.parametrize("kind", curves.KINDS)
@pytest.mark.parametrize("num_points", [2, 3, 5])
def test_coefficients_sum_to_one_and_are_exact_at_the_ends(kind, num_points):
    t = torch.linspace(0, 1, 11)
    found = curves.coefficients(kind, t, num_points)
    assert torch.allclose(found.sum(1), torch.ones(11, dtype=torch.float64))
    assert found[0].tolist() == [1.0] + [0.0] * (num_points - 1)
    assert found[-1].tolist() == [0.0] * (num_points - 1) + [1.0]


def test_a_quadratic_curve_and_a_polygon_of_two_lines():
    t = torch.tensor([0.25], dtype=torch.float64)
    assert curves.coefficients("bezier", t, 3).tolist() == [[0.5625, 0.375, 0.0625]]
    assert curves.coefficients("polygon", t, 3).tolist() == [[0.5, 0.5, 0.0]]


def test_an_untrained_path_of_any_kind_is_the_line():
    first, second = {"w": torch.tensor([[0.0, 2.0]])}, {"w": torch.tensor([[4.0, 0.0]])}
    points = curves.straight(first, second, 4)
    for kind in curves.KINDS:
        for t in (0.0, 0.3, 1.0):
            there = curves.networks_at(points, kind, torch.tensor([t]))["w"]
            assert torch.allclose(there, torch.tensor([[4 * t, 2 - 2 * t]]))


def setting(model=small_mlp, num_paths=2):
    x, y = table(32)
    task = be.Task(model, be.Categorical(), be.NormalPrior()).bind(32, x[:4])
    members = task.new_members(num_paths + 1, seed=3)
    first, second = members.part(0, num_paths), members.part(1, num_paths + 1)
    return task, first, curves.straight(first.params, second.params, 3), (x, y)


def naive_training(task, points, data, epochs, learning_rate, own):
    """One path, by autograd and torch's own Adam."""
    ends = {name: (leaf[0, 0].clone(), leaf[0, 2].clone()) for name, leaf in points.items()}
    middle = {name: nn.Parameter(leaf[0, 1].clone()) for name, leaf in points.items()}
    optimizer = torch.optim.Adam(middle.values())
    for epoch in range(epochs):
        for x, y in data:
            t = torch.rand((), generator=own)
            weights = {n: (1 - t) ** 2 * a + 2 * t * (1 - t) * middle[n] + t**2 * b for n, (a, b) in ends.items()}
            outputs = torch.func.functional_call(task.module, weights, (x,))
            prior = sum(-0.5 * leaf.square().sum() for leaf in weights.values()) / 32
            loss = nn.functional.cross_entropy(outputs, y) - prior
            optimizer.param_groups[0]["lr"] = learning_rate * (1 + math.cos(math.pi * epoch / epochs)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return middle


def test_training_against_a_naive_twin():
    task, first, points, (x, y) = setting()
    begin = {name: leaf.clone() for name, leaf in points.items()}
    batches = [(x[:16], y[:16]), (x[16:], y[16:])]
    generators = [generator(0, "path", place) for place in range(2)]
    curves.train(
        points,
        "bezier",
        task,
        first.buffers,
        lambda: iter([Batch(*one) for one in batches]),
        be.Vmap(),
        epochs=4,
        learning_rate=0.05,
        generators=generators,
    )
    for place in range(2):
        own = {name: leaf[place : place + 1] for name, leaf in begin.items()}
        expected = naive_training(task, own, batches, 4, 0.05, generator(0, "path", place))
        for name, leaf in points.items():
            assert torch.allclose(leaf[place, 1], expected[name], atol=1e-5)
            assert torch.equal(leaf[:, 0], begin[name][:, 0])
            assert torch.equal(leaf[:, 2], begin[name][:, 2])


def test_batch_norm_uses_the_statistics_of_the_batch_and_keeps_its_own():
    task, first, points, (x, y) = setting(norm_mlp)
    before = {name: leaf.clone() for name, leaf in first.buffers.items()}
    curves.train(
        points,
        "bezier",
        task,
        first.buffers,
        lambda: iter([Batch(x, y)]),
        be.Loop(),
        epochs=2,
        learning_rate=0.05,
        generators=[generator(0, place) for place in range(2)],
    )
    assert all(torch.equal(leaf, before[name]) for name, leaf in first.buffers.items())


def test_a_trained_curve_is_better_than_the_line():
    data = table(64)
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), data, be.DeepEnsemble(num_members=2), epochs=60)
    members = ensemble.state.members
    one, other = ({n: leaf[place : place + 1] for n, leaf in members.params.items()} for place in (0, 1))
    points = curves.straight(one, other, 3)

    def loss(place: float) -> float:
        weights = {n: leaf[0] for n, leaf in curves.networks_at(points, "bezier", torch.tensor([place])).items()}
        return float(
            nn.functional.cross_entropy(torch.func.functional_call(ensemble.task.module, weights, data[0]), data[1])
        )

    line = loss(0.5)
    curves.train(
        points,
        "bezier",
        ensemble.task,
        {},
        lambda: iter([Batch(*data)]),
        be.Loop(),
        epochs=100,
        learning_rate=0.05,
        generators=[generator(0)],
    )
    assert loss(0.5) < line
