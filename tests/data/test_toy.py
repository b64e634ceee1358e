from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bayesemble.data import toy

EVERY_GENERATOR: list[Callable[[np.random.Generator], Any]] = [
    toy.sine_gap,
    toy.sine_gap_ood,
    lambda generator: toy.five_gaussians(generator, num_per_class=10),
    toy.five_gaussians_ood,
    lambda generator: toy.two_moons(generator, num=20, noise=0.1),
    toy.two_moons_ood,
]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def moon_curves() -> np.ndarray:
    angles = np.linspace(0, np.pi, 1000)
    upper = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lower = np.stack([1 - np.cos(angles), 0.5 - np.sin(angles)], axis=1)
    return np.stack([upper, lower])


def distance_to(curve: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - curve[None], axis=2).min(axis=1)


def first_array(drawn: Any) -> np.ndarray:
    return drawn[0] if isinstance(drawn, tuple) else drawn


@pytest.mark.parametrize("draw", EVERY_GENERATOR)
def test_same_seed_same_data_other_seed_other_data(draw: Callable[[np.random.Generator], Any]) -> None:
    once, again, other = draw(random(1)), draw(random(1)), draw(random(2))
    np.testing.assert_array_equal(first_array(once), first_array(again))
    if isinstance(once, tuple):
        np.testing.assert_array_equal(once[1], again[1])
    assert not np.any(first_array(once) == first_array(other))


def test_sine_gap_has_half_of_its_inputs_on_each_side() -> None:
    inputs, targets = toy.sine_gap(random())
    assert inputs.shape == (90, 1)
    assert targets.shape == (90,)
    assert np.all((inputs[:45] >= 1.5) & (inputs[:45] <= 2.5))
    assert np.all((inputs[45:] >= 4.5) & (inputs[45:] <= 6.0))


def test_sine_gap_is_uniform_inputs_and_normal_noise_of_standard_deviation_one_quarter() -> None:
    inputs, targets = toy.sine_gap(random(), num_per_side=50_000)
    left, right = inputs[:50_000, 0], inputs[50_000:, 0]
    assert left.mean() == pytest.approx(2.0, abs=0.01)
    assert left.var() == pytest.approx(1 / 12, rel=0.02)
    assert right.mean() == pytest.approx(5.25, abs=0.01)
    assert right.var() == pytest.approx(1.5**2 / 12, rel=0.02)
    noise = targets - inputs[:, 0] * np.sin(inputs[:, 0])
    assert noise.mean() == pytest.approx(0.0, abs=0.005)
    assert noise.std() == pytest.approx(0.25, rel=0.02)
    assert np.mean(noise**4) / np.mean(noise**2) ** 2 == pytest.approx(3.0, rel=0.05)


def test_sine_gap_foreign_inputs_lie_outside_both_intervals() -> None:
    inputs = toy.sine_gap_ood(random(), num_per_region=200)
    assert inputs.shape == (600, 1)
    for rows, (low, high) in zip(np.split(inputs, 3), [(2.5, 4.5), (-1, 1), (6.5, 8)], strict=True):
        assert low <= rows.min() < low + 0.1
        assert high - 0.1 < rows.max() <= high


def test_five_gaussians_have_their_centres_on_the_circle_and_unit_covariance() -> None:
    inputs, labels = toy.five_gaussians(random(), num_per_class=20_000)
    assert inputs.shape == (100_000, 2)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(labels), [20_000] * 5)
    for label in range(5):
        angle = np.pi / 2 + label * 2 * np.pi / 5
        rows = inputs[labels == label]
        np.testing.assert_allclose(rows.mean(axis=0), [5 * np.cos(angle), 5 * np.sin(angle)], atol=0.05)
        np.testing.assert_allclose(np.cov(rows.T), np.eye(2), atol=0.05)


def test_first_of_the_five_gaussians_is_at_the_top() -> None:
    inputs, labels = toy.five_gaussians(random(), num_per_class=1000)
    np.testing.assert_allclose(inputs[labels == 0].mean(axis=0), [0.0, 5.0], atol=0.15)


def test_five_gaussians_foreign_inputs_are_the_middle_and_an_outer_ring() -> None:
    middle, ring = np.split(toy.five_gaussians_ood(random()), [50])
    assert ring.shape == (200, 2)
    radius = np.linalg.norm(ring, axis=1)
    assert np.all((radius >= 10) & (radius <= 12))
    assert np.all(np.linalg.norm(ring.mean(axis=0)) < 2.0)
    assert np.linalg.norm(middle, axis=1).max() < 3.0


def test_five_gaussians_foreign_middle_has_variance_not_deviation_of_0_4() -> None:
    generator = random()
    middle = np.concatenate([toy.five_gaussians_ood(generator)[:50] for _ in range(400)])
    np.testing.assert_allclose(np.cov(middle.T), 0.4 * np.eye(2), atol=0.02)


def test_two_moons_without_noise_lie_on_their_curves() -> None:
    inputs, labels = toy.two_moons(random(), num=101, noise=0.0)
    assert inputs.shape == (101, 2)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(labels), [50, 51])
    for label, curve in enumerate(moon_curves()):
        assert distance_to(curve, inputs[labels == label]).max() < 0.01


def test_two_moons_have_the_moments_of_half_circles_plus_noise() -> None:
    inputs, labels = toy.two_moons(random(), num=100_000, noise=0.3)
    height = 2 / np.pi
    np.testing.assert_allclose(inputs[labels == 0].mean(axis=0), [0.0, height], atol=0.02)
    np.testing.assert_allclose(inputs[labels == 1].mean(axis=0), [1.0, 0.5 - height], atol=0.02)
    variance = [0.5 + 0.09, 0.5 - height**2 + 0.09]
    np.testing.assert_allclose(inputs[labels == 0].var(axis=0), variance, atol=0.02)


def test_two_moons_foreign_inputs_are_far_from_both_curves() -> None:
    inputs = toy.two_moons_ood(random(), num=500)
    assert inputs.shape == (500, 2)
    for curve in moon_curves():
        assert distance_to(curve, inputs).min() > 1.4


def test_points_are_drawn_around_their_centres_by_the_generator_in_the_order_of_the_formulas() -> None:
    """The same numbers, drawn by hand: a seed names the same data in every version."""
    inputs, labels = toy.five_gaussians(random(), num_per_class=3)
    angles = np.pi / 2 + 2 * np.pi * labels / 5
    centres = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(inputs, centres + random().normal(size=(15, 2)))
    by_hand = random()
    angles, noise = by_hand.uniform(0, np.pi, 4), by_hand.normal(0, 0.3, (4, 2))
    upper = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.concatenate([upper[:2], [1, 0.5] - upper[2:]])
    np.testing.assert_allclose(toy.two_moons(random(), num=4, noise=0.3)[0], points + noise)
    by_hand = random()
    x = np.concatenate([by_hand.uniform(1.5, 2.5, 2), by_hand.uniform(4.5, 6, 2)])
    inputs, targets = toy.sine_gap(random(), num_per_side=2)
    np.testing.assert_allclose(inputs, x[:, None])
    np.testing.assert_allclose(targets, x * np.sin(x) + by_hand.normal(0, 0.25, 4))
    by_hand = random()
    middle, angles = by_hand.normal(0, np.sqrt(0.4), (50, 2)), by_hand.uniform(0, 2 * np.pi, 200)
    ring = by_hand.uniform(10, 12, 200) * np.stack([np.cos(angles), np.sin(angles)])
    np.testing.assert_allclose(toy.five_gaussians_ood(random()), np.concatenate([middle, ring.T]))
