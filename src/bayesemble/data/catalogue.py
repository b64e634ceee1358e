"""The data sets that come with the library: a table of names, and the one function that makes a split of one.

scikit-learn and torch are imported where they are used, so that the table can be listed at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError
from bayesemble.data import toy

Kind = Literal["classification", "regression"]
Array = npt.NDArray[Any]

DIGIT_PIXEL_RANGE = (0.0, 16.0)
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Parts:
    """Training, test and foreign rows as a data set has them, before any scaling."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    x_ood: Array | None = None


@dataclass(frozen=True)
class DataSet:
    """What a name stands for: one row of the table of data sets."""

    name: str
    kind: Kind
    description: str
    load: Callable[[np.random.Generator], Parts]
    epochs: int
    """Passes over the rows that bring a small network close to its best."""
    one_scale: bool = False
    """Scale all columns alike, as pixels of an image want it, instead of each by its own mean and spread."""
    image_shape: tuple[int, ...] | None = None
    """Height and width of the image that a row is, and channels if there are several."""


@dataclass(frozen=True, eq=False)
class Split:
    """Data ready to train on: inputs `(row, column)` standardised by the training part.

    Labels are 0, ..., num_classes - 1. Regression targets are standardised by the training part as well; on
    their original scale they are `target_shift + target_scale * y`.
    """

    x_train: npt.NDArray[np.float32]
    y_train: Array
    x_test: npt.NDArray[np.float32]
    y_test: Array
    x_ood: npt.NDArray[np.float32] | None
    """Inputs unlike those of training, or None where the data set has none."""
    num_classes: int | None
    target_shift: float
    target_scale: float
    kind: Kind
    image_shape: tuple[int, ...] | None = None
    """`(height, width)` or `(height, width, channel)` of the image that each row is, or None."""


def find_dataset(name: str) -> DataSet:
    """Look a data set up in the table."""
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; choose one of {', '.join(DATASETS)}")
    return DATASETS[name]


def load_split(name: str, seed: int = 0) -> Split:
    """Load a data set of the table, split and scaled; the same name and seed always give the same rows."""
    dataset = find_dataset(name)
    return make_split(load_parts(name, seed), dataset.kind, dataset.one_scale, dataset.image_shape)


def load_parts(name: str, seed: int = 0) -> Parts:
    """The rows of a data set of the table before any scaling."""
    return find_dataset(name).load(data_generator(seed, name))


def data_generator(seed: int, name: str) -> np.random.Generator:
    """The generator of what is random in data, by its name."""
    # The module of seeds imports torch, which listing the table does not need.
    from bayesemble.core.seeds import child

    return np.random.default_rng(child(seed, "data", name))


def make_split(
    parts: Parts,
    kind: Kind,
    one_scale: bool = False,
    image_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
) -> Split:
    """Scale by the training part; without a number of classes, the labels of training tell it."""
    shift, scale = location_and_scale(parts.x_train, axis=None if one_scale else 0)
    y_train, y_test, target_shift, target_scale = _scaled_targets(parts, kind)
    return Split(
        x_train=_standardised(parts.x_train, shift, scale),
        y_train=y_train,
        x_test=_standardised(parts.x_test, shift, scale),
        y_test=y_test,
        x_ood=None if parts.x_ood is None else _standardised(parts.x_ood, shift, scale),
        num_classes=(num_classes or int(y_train.max()) + 1) if kind == "classification" else None,
        target_shift=target_shift,
        target_scale=target_scale,
        kind=kind,
        image_shape=image_shape,
    )


def location_and_scale(
    values: Array, axis: int | None, weights: npt.NDArray[np.float64] | None = None
) -> tuple[Array, Array]:
    """Mean and standard deviation over an axis, or over everything; the scale of constant values is 1.

    Rows may have weights, all positive: as if each were there so many times.
    """
    # The deviation of equal values need not be exactly 0 after rounding, their range is.
    varies = np.ptp(values, axis=axis) > 0
    if weights is None:
        return np.asarray(values.mean(axis=axis)), np.where(varies, values.std(axis=axis), 1.0)
    mean = np.average(values, axis=axis, weights=weights)
    return mean, np.where(varies, np.sqrt(np.average(np.square(values - mean), axis=axis, weights=weights)), 1.0)


def _standardised(values: Array, shift: Array | float, scale: Array | float) -> npt.NDArray[np.float32]:
    return ((values - shift) / scale).astype(np.float32)


def _scaled_targets(parts: Parts, kind: Kind) -> tuple[Array, Array, float, float]:
    if kind == "classification":
        return parts.y_train.astype(np.int64), parts.y_test.astype(np.int64), 0.0, 1.0
    location, spread = location_and_scale(parts.y_train, axis=0)
    shift, scale = float(location), float(spread)
    return _standardised(parts.y_train, shift, scale), _standardised(parts.y_test, shift, scale), shift, scale


def split_rows(inputs: Array, targets: Array, generator: np.random.Generator, stratify: bool) -> Parts:
    """Rows of which one fifth is for testing, with all classes in proportion if stratified."""
    from sklearn.model_selection import train_test_split

    x_train, x_test, y_train, y_test = train_test_split(
        inputs,
        targets,
        test_size=TEST_SHARE,
        stratify=targets if stratify else None,
        random_state=int(generator.integers(2**32)),
    )
    return Parts(x_train, y_train, x_test, y_test)


def _load_table(function: str, generator: np.random.Generator, *, stratify: bool) -> Parts:
    """Rows of a table that scikit-learn carries."""
    from sklearn import datasets

    inputs, targets = getattr(datasets, function)(return_X_y=True)
    return split_rows(inputs, targets, generator, stratify)


def _load_digits(generator: np.random.Generator) -> Parts:
    parts = _load_table("load_digits", generator, stratify=True)
    return replace(parts, x_ood=_ood_digits(parts.x_test, generator))


def _ood_digits(images: Array, generator: np.random.Generator) -> Array:
    """The first half of the images turned by 90 degrees, then as many images of uniform noise as are left."""
    half = len(images) // 2
    turned = np.rot90(images[:half].reshape(half, 8, 8), axes=(1, 2)).reshape(half, 64)
    noise = generator.uniform(*DIGIT_PIXEL_RANGE, (len(images) - half, 64))
    return np.concatenate([turned, noise])


def _load_toy(
    train: Callable[..., tuple[Array, Array]],
    test: Callable[..., tuple[Array, Array]],
    ood: Callable[..., Array],
    generator: np.random.Generator,
) -> Parts:
    seen, unseen, foreign = train(generator), test(generator), ood(generator)
    # Toy rows come class after class; shuffled, any first rows are a fair sample, as in the other data sets.
    return Parts(*_shuffled(*seen, generator), *_shuffled(*unseen, generator), foreign)


def _shuffled(inputs: Array, targets: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    order = generator.permutation(len(inputs))
    return inputs[order], targets[order]


DATASETS: dict[str, DataSet] = {
    "digits": DataSet(
        "digits",
        "classification",
        "1797 handwritten digits of 8 x 8 pixels in 10 classes; foreign: turned digits and noise.",
        _load_digits,
        epochs=20,
        one_scale=True,
        image_shape=(8, 8),
    ),
    "breast_cancer": DataSet(
        "breast_cancer",
        "classification",
        "569 tumours described by 30 measurements of their cells, malignant (0) or benign (1).",
        partial(_load_table, "load_breast_cancer", stratify=True),
        epochs=20,
    ),
    "wine": DataSet(
        "wine",
        "classification",
        "178 wines described by 13 chemical measurements, from 3 growers.",
        partial(_load_table, "load_wine", stratify=True),
        epochs=40,
    ),
    "diabetes": DataSet(
        "diabetes",
        "regression",
        "442 patients described by 10 measurements; the target is the progress of the disease in a year.",
        partial(_load_table, "load_diabetes", stratify=False),
        epochs=20,
    ),
    "sine_gap": DataSet(
        "sine_gap",
        "regression",
        "190 noisy points of x sin x in two intervals; foreign: the gap between them and both sides.",
        partial(
            _load_toy, partial(toy.sine_gap, num_per_side=45), partial(toy.sine_gap, num_per_side=50), toy.sine_gap_ood
        ),
        epochs=500,
    ),
    "five_gaussians": DataSet(
        "five_gaussians",
        "classification",
        "300 points in the plane from 5 Gaussians around a circle; foreign: its middle and a ring around it.",
        partial(
            _load_toy,
            partial(toy.five_gaussians, num_per_class=40),
            partial(toy.five_gaussians, num_per_class=20),
            toy.five_gaussians_ood,
        ),
        epochs=50,
    ),
    "two_moons": DataSet(
        "two_moons",
        "classification",
        "300 points in the plane from two interlocking half circles; foreign: a ring around both.",
        partial(
            _load_toy,
            partial(toy.two_moons, num=200, noise=0.2),
            partial(toy.two_moons, num=100, noise=0.2),
            toy.two_moons_ood,
        ),
        epochs=100,
    ),
}
"""Every data set by name, the default of the command line first."""
