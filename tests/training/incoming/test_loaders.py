"""What loaders bring; `training/test_batches.py` has whole sources."""

import pytest
import torch

from bayesemble.core.errors import DataError
from bayesemble.training.incoming.loaders import LoaderSource, batch_bounds, items_of, loader_of
from helpers import table


def test_a_last_row_alone_joins_the_batch_before_it():
    assert batch_bounds(33, 16) == [(0, 16), (16, 33)]
    assert batch_bounds(34, 16) == [(0, 16), (16, 32), (32, 34)]
    assert batch_bounds(3, 1) == [(0, 1), (1, 2), (2, 3)]
    assert batch_bounds(5, None) == [(0, 5)]


def test_what_a_loader_draws_derives_from_the_seed_alone():
    rows = list(zip(*table(12), strict=True))

    def order(seed: int) -> list[float]:
        return [float(x[0, 0]) for x, _ in items_of(loader_of(rows, 1, shuffle=True), seed)]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2)) == sorted(float(x[0]) for x, _ in rows)


def test_a_loader_of_triples_says_whether_the_third_are_weights():
    x, y = table(8)
    rows = [(a, b, torch.tensor(2.0)) for a, b in zip(x, y, strict=True)]
    source = LoaderSource(loader_of(rows, 4, shuffle=False), torch.float32, weighted=True)
    assert [batch.targets.weights.tolist() for batch in source.in_order(None)] == [[2.0] * 4] * 2
    with pytest.raises(DataError, match="if the third are weights of rows, fit takes them by weights=True"):
        next(LoaderSource(loader_of(rows, 4, shuffle=False), torch.float32).in_order(None))
