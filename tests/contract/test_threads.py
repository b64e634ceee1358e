"""Any number of threads may use one ensemble, or train beside one another: all get the bits of a serial run."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.methods import METHODS, make_method
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table

SMALL = {
    "hmc": {"max_leapfrog": 5},
    "swag": {"start": 0.3, "rank": 2},
    "subspace": {"start": 0.3, "rank": 2, "dim": 1, "draws": 6, "warmup": 1},
}


@pytest.mark.parametrize("name", METHODS)
def test_predictions_in_threads_are_those_of_one_thread(name):
    method = make_method(name, **SMALL.get(name, {}))
    model = dropout_mlp if method.keeps_dropout else norm_mlp
    size = {"batch_size": None} if method.full_batch else {}
    ensemble, x = quick_fit(be.Task(model, be.Categorical()), table(), method, **size), table(64, seed=1)[0]

    def predict(index: int) -> torch.Tensor:
        return ensemble.predict(x[8 * (index % 8) :][:8], num_draws=3).probs

    alone = [predict(index) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(predict, range(48)))
    assert all(torch.equal(one, alone[index % 8]) for index, one in enumerate(found))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("model", [small_mlp, dropout_mlp])
def test_fits_in_threads_end_with_the_weights_of_serial_ones(model, executor):
    """Also with dropout and fresh networks, which draw from torch's global state, and with a shuffling loader."""
    task, x, y = be.Task(model, be.Categorical()), *table()

    def train(index: int) -> be.Ensemble:
        data = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True) if index % 2 else (x, y)
        size = None if index % 2 else 16
        return quick_fit(task, data, be.DeepEnsemble(num_members=2), seed=index, executor=executor, batch_size=size)

    alone = [train(index) for index in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(train, range(4)))
    assert [largest_difference(all_leaves(a), all_leaves(b)) for a, b in zip(alone, found, strict=True)] == [0] * 4


def test_the_random_stream_of_another_thread_is_left_alone_while_networks_train():
    """Factories, dropout and loaders draw from generators of their own, not from the one that all threads share."""
    x, y = table()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)

    def train() -> None:
        for executor in ("loop", "vmap"):
            quick_fit(be.Task(dropout_mlp, be.Categorical()), loader, executor=executor, batch_size=None)

    def draw() -> list[float]:
        return [torch.rand(()).item() for _ in range(3000)]

    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        expected = draw()
        torch.default_generator.manual_seed(1)
        with ThreadPoolExecutor(1) as pool:
            training = pool.submit(train)
            found = draw()
            training.result()
    assert found == expected


def test_a_factory_that_draws_by_numpy_or_random_is_seeded_too():
    class Own(nn.Linear):
        def reset_parameters(self) -> None:
            with torch.no_grad():
                self.weight.copy_(torch.tensor(np.random.randn(*self.weight.shape)))
                self.bias.copy_(torch.tensor([random.random() for _ in self.bias]))

    def train(seed: int) -> be.Ensemble:
        return quick_fit(be.Task(lambda: Own(table()[0].shape[1], 2), be.Categorical()), table(), seed=seed)

    before = random.getstate()[1], np.random.get_state()[1].copy()
    one, again, other = (all_leaves(train(seed)) for seed in (0, 0, 1))
    assert largest_difference(one, again) == 0
    assert largest_difference(one, other) > 0.1
    assert random.getstate()[1] == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
