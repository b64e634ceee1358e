"""Rows and quick settings that the tests of both estimators share."""

import numpy as np

QUICK = {
    "num_members": 2,
    "width": 16,
    "depth": 0,
    "epochs": 6,
    "learning_rate": 0.03,
    "batch_size": 32,
    "validation_fraction": 0.1,
    "random_state": 0,
}

OWN = {
    "ecmp": {"method__draws": 4},
    "swag": {"method__draws": 4, "method__rank": 2, "method__start": 0.5},
}


def rows(num: int = 120) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num, 3))
    return x, 40 + 10 * (x[:, 0] - x[:, 1] + 0.3 * generator.normal(size=num))


def labels(y: np.ndarray) -> np.ndarray:
    return np.where(y > 40, "high", "low")
