"""The JAX side of `benchmarks/splits.py`: all members of all splits by vmap, all epochs in one compiled scan."""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

FILES = {"boston": "bostonHousing", "wine": "wine-quality-red", "power": "power-plant"}
BATCH = 100


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised training parts, `(split, row, feature)` and `(split, row, 1)`."""
    with np.load(folder / "uci" / f"{FILES.get(name, name)}.npz") as held:
        rows = np.stack([held[f"train_{i}"] for i in range(sum(key.startswith("train_") for key in held.files))])
        x, y = held["data"][rows][..., :-1], held["data"][rows][..., -1:]
    return tuple(((part - part.mean(1, keepdims=True)) / part.std(1, keepdims=True)).astype("f") for part in (x, y))


def loss(params, x, y):
    (w1, b1), (w2, b2) = params
    return ((jax.nn.relu(x @ w1 + b1) @ w2 + b2 - y) ** 2).mean()


gradients = jax.vmap(jax.vmap(jax.value_and_grad(loss), in_axes=(0, None, None)))  # over splits, and over members


@jax.jit
def train(params, orders, x, y):
    """Adam through all epochs; `orders` are `(epoch, split, row)`."""
    num_rows = x.shape[1]

    def step(carry, rows):
        params, first, second, count = carry
        chosen = (jnp.take_along_axis(part, rows[:, :, None], 1) for part in (x, y))
        value, slopes = gradients(params, *chosen)
        slopes = jax.tree.map(lambda slope, own: slope + own / num_rows, slopes, params)  # a standard normal prior
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slopes)

        def moved(p, m, v):
            return p - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return (jax.tree.map(moved, params, first, second), first, second, count), value

    def epoch(carry, order):
        whole = num_rows // BATCH * BATCH
        batches = order[:, :whole].reshape(len(order), -1, BATCH).transpose(1, 0, 2)
        carry, values = jax.lax.scan(step, carry, batches)
        if whole < num_rows:
            carry, _ = step(carry, order[:, whole:])
        return carry, values.mean()

    zeros = jax.tree.map(jnp.zeros_like, params)
    carry, values = jax.lax.scan(epoch, (params, zeros, zeros, jnp.float32(0)), orders)
    return carry[0], values


def run(x, y, members, epochs):
    rng = np.random.default_rng(0)
    params = []
    for fan_in, fan_out in ((x.shape[-1], 50), (50, 1)):
        bound = fan_in**-0.5
        shapes = (len(x), members, fan_in, fan_out), (len(x), members, fan_out)
        params.append(tuple(rng.uniform(-bound, bound, shape).astype("f") for shape in shapes))
    orders = np.stack([[rng.permutation(x.shape[1]) for _ in x] for _ in range(epochs)])
    return jax.block_until_ready(train(params, orders, x, y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--set", default="yacht")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--cache", help="where compiled programs are kept between processes")
    arguments = parser.parse_args()
    if arguments.cache:
        jax.config.update("jax_compilation_cache_dir", arguments.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    x, y = load(arguments.folder, arguments.set)
    kept = ", programs kept on disk" if arguments.cache else ""
    for words in (f"JAX with compilation{kept}", "JAX, again"):
        start, spent = time.perf_counter(), time.process_time()
        run(x, y, arguments.members, arguments.epochs)
        took, worked = time.perf_counter() - start, time.process_time() - spent
        print(f"{words:<40} {took:8.2f} s {worked:8.2f} processor s", flush=True)


if __name__ == "__main__":
    main()
