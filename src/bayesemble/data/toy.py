"""Toy data with known truth, small enough to look at.

Every function takes a `numpy.random.Generator` and gives double precision. Those named `..._ood` give
inputs unlike those of the set, for which a good ensemble says that it does not know.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CIRCLE_RADIUS = 5.0
MOONS_CENTRE = (0.5, 0.25)


def sine_gap(generator: np.random.Generator, num_per_side: int = 45) -> tuple[FloatArray, FloatArray]:
    """Draw a sine with a growing amplitude, seen on both sides of a gap.

    y = x sin(x) + e,  e ~ N(0, 0.25^2), 0.25 being the standard deviation;
    half of the x are uniform in [1.5, 2.5], half in [4.5, 6].

    Gives inputs `(2 * num_per_side, 1)`, left side first, and targets `(2 * num_per_side,)`.

    Reference: D'Angelo & Fortuin (2021), one-dimensional regression.
    """
    left = generator.uniform(1.5, 2.5, num_per_side)
    right = generator.uniform(4.5, 6.0, num_per_side)
    inputs = np.concatenate([left, right])
    targets = inputs * np.sin(inputs) + generator.normal(0.0, 0.25, inputs.shape)
    return inputs[:, None], targets


def sine_gap_ood(generator: np.random.Generator, num_per_region: int = 30) -> FloatArray:
    """Draw inputs where `sine_gap` has no data: uniform in the gap [2.5, 4.5], in [-1, 1] and in [6.5, 8].

    Gives inputs `(3 * num_per_region, 1)`, in this order.
    """
    regions = [(2.5, 4.5), (-1.0, 1.0), (6.5, 8.0)]
    return np.concatenate([generator.uniform(low, high, (num_per_region, 1)) for low, high in regions])


def five_gaussians(generator: np.random.Generator, num_per_class: int) -> tuple[FloatArray, Labels]:
    """Draw five classes, each a round Gaussian in the plane, around a circle.

    x | class k ~ N(5 (cos a_k, sin a_k), I),  a_k = pi/2 + 2 pi k / 5

    Gives inputs `(5 * num_per_class, 2)` and labels `(5 * num_per_class,)`, class after class.

    Reference: D'Angelo & Fortuin (2021), two-dimensional classification.
    """
    labels = np.repeat(np.arange(5, dtype=np.int64), num_per_class)
    angles = np.pi / 2 + 2 * np.pi * labels / 5
    centres = CIRCLE_RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return centres + generator.normal(size=centres.shape), labels


def five_gaussians_ood(generator: np.random.Generator) -> FloatArray:
    """Draw inputs between and around the classes of `five_gaussians`.

    50 points ~ N(0, 0.4 I), 0.4 being the variance of each coordinate, in the middle of the circle;
    200 points on an outer ring with radius uniform in [10, 12], at least five standard deviations from every
    centre.

    Gives inputs `(250, 2)`.

    Reference: D'Angelo & Fortuin (2021); the radius of the ring is our choice.
    """
    middle = generator.normal(0.0, np.sqrt(0.4), (50, 2))
    return np.concatenate([middle, _ring(generator, 200, 10.0, 12.0)])


def two_moons(generator: np.random.Generator, num: int, noise: float) -> tuple[FloatArray, Labels]:
    """Draw two half circles in the plane that reach into each other.

    class 0: (cos t, sin t) + e,   class 1: (1 - cos t, 1/2 - sin t) + e,   t ~ U(0, pi),  e ~ N(0, noise^2 I)

    Gives inputs `(num, 2)` and labels `(num,)`, class after class; with odd `num`, class 1 has one row more.

    Reference: the curves of `sklearn.datasets.make_moons`, Pedregosa et al. (2011).
    """
    labels = (np.arange(num) >= num // 2).astype(np.int64)
    angles = generator.uniform(0.0, np.pi, num)
    upper = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lower = np.stack([1.0 - np.cos(angles), 0.5 - np.sin(angles)], axis=1)
    curves = np.where(labels[:, None] == 0, upper, lower)
    return curves + generator.normal(0.0, noise, (num, 2)), labels


def two_moons_ood(generator: np.random.Generator, num: int = 100) -> FloatArray:
    """Draw inputs on a ring around both moons, with radius uniform in [3, 4]: at least 1.4 from either curve.

    Gives inputs `(num, 2)`.
    """
    return np.asarray(MOONS_CENTRE) + _ring(generator, num, 3.0, 4.0)


def _ring(generator: np.random.Generator, num: int, inner: float, outer: float) -> FloatArray:
    angles = generator.uniform(0.0, 2 * np.pi, num)
    radii = generator.uniform(inner, outer, num)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
