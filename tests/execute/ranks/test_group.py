"""What two processes tell one another, against plain tensors."""

import pytest
import torch

from bayesemble.core.errors import ExecutionError
from bayesemble.execute.ranks import group
from bayesemble.execute.ranks.group import _ask, _buckets, shared_out
from ranks_job import found


@pytest.fixture(scope="module")
def exchanged():
    return found()["exchanged"]


def test_members_are_shared_out_in_order(exchanged):
    assert (exchanged["here"], exchanged["first"]) == (3, 0)
    assert [shared_out(7, places) for places in (1, 2, 3, 7)] == [[7], [4, 3], [3, 2, 2], [1] * 7]


def test_what_is_gathered_is_not_rounded(exchanged):
    assert exchanged["everyone"] == 0
    assert exchanged["truth values"] == 0


def test_no_rank_has_all_coordinates_and_products_come_out(exchanged):
    assert exchanged["columns"] == 4  # of 7, on two ranks
    assert exchanged["products"] < 1e-12
    assert exchanged["back"] == 0


def test_the_largest_number_is_that_of_any_rank(exchanged):
    assert exchanged["largest"] == 13


def test_small_leaves_are_told_together_and_large_ones_in_blocks():
    """Products are a message and a sum; the push, and gradients that are shared, are a message there and one back."""
    together, in_blocks = found()["blocks"].values()
    assert together[0] == 2 + 4
    assert in_blocks[0] == (5 + 1) + 4 * 5  # blocks of 12 + 4 coordinates, of 20 twice, of 10 and of 19
    assert in_blocks[1] <= 5 * 20
    assert max(together[2], in_blocks[2]) <= 1e-12


def test_gradients_of_members_that_count_alike_are_added_up_over_ranks():
    assert found()["evenly"] <= 1e-12


def test_buckets_keep_order_and_number_types_apart():
    parts = [torch.zeros(3), torch.zeros(1 << 22), torch.zeros(2, dtype=torch.float64), torch.zeros(1)]
    assert [[part.numel() for part in bucket] for bucket in _buckets(parts)] == [[3], [1 << 22], [2], [1]]


def test_a_rank_that_does_not_answer_is_told_of_in_a_sentence(monkeypatch):
    def timed_out():
        raise RuntimeError("Timed out waiting 8000ms for recv operation to complete")

    monkeypatch.setattr(group.dist, "get_rank", lambda: 0)
    with pytest.raises(ExecutionError, match=r"rank 0 waited for another one .*8000ms.* resume=True"):
        _ask(timed_out)
