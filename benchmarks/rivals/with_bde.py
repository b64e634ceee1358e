"""bde (JAX): the training of its members before it samples; every epoch is one step on all rows."""

import os

os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")  # as its guide says

import jax.numpy as jnp
from bde.bde_builder import BdeBuilder
from bde.task import TaskType
from server import serve


def make(case, x, y):
    sizes = case["sizes"]
    task = TaskType.CLASSIFICATION if sizes[-1] > 1 else TaskType.REGRESSION

    def train(epochs):
        builder = BdeBuilder(
            list(sizes[1:-1]),
            case["members"],
            task,
            0,
            act_fn="relu",
            patience=None,
            val_split=None,
            lr=1e-3,
            weight_decay=0.0,
        )
        builder.fit_members(jnp.asarray(x), jnp.asarray(y), epochs)

    return train


if __name__ == "__main__":
    serve(make)
