"""The same numbers, and the same up to rounding."""

import math

import pytest
import torch

from bayesemble.core.seeds import EagerMode
from bayesemble.execute.programs import alike
from bayesemble.execute.programs.alike import close, same

ONE = torch.tensor([1.0, math.nan, -3.0])


def test_the_same_numbers_in_the_same_shapes_are_the_same():
    assert same([ONE], [ONE.clone()])
    assert not same([ONE], [torch.tensor([1.0, 2.0, -3.0])])
    assert not same([ONE], [ONE.unsqueeze(0)])
    assert not same([ONE], [ONE, ONE])
    assert not same([torch.ones(2)], [torch.ones(2) * (1 + 1e-6)])


def test_what_is_close_differs_by_a_ten_thousandth_of_all_at_most():
    large, small = torch.full((3,), 100.0), torch.full((2,), 1e-3)
    assert close([large, small], [large * (1 + 9e-5), small])
    assert close([large, small], [large, 2 * small])
    assert not close([large, small], [large * (1 + 2e-4), small])
    assert not close([large], [large.unsqueeze(0)])


@pytest.mark.parametrize("size", [1e-30, 1e-15, 1.0, 1e25])
def test_what_is_close_is_so_at_any_size(size):
    one, nothing = torch.full((3,), size), torch.tensor([math.nan])
    for more in ([], [nothing], [torch.zeros(2)]):
        assert close([one, *more], [one * (1 + 9e-5), *more])
        assert not close([one, *more], [one * (1 + 2e-4), *more])
        assert not close([one.double(), *more], [one.double() * (1 + 2e-4), *more])


def test_numbers_of_all_kinds_are_compared():
    truth = torch.tensor([True, False])
    assert close([truth], [truth])
    assert not close([truth], [~truth])


@pytest.mark.parametrize("shape", [(5, 3), (5,), (5, 2, 1), (1, 12)])
def test_large_tensors_are_compared_to_the_last_row_a_few_at_a_time(monkeypatch, shape):
    monkeypatch.setattr(alike, "_AT_A_TIME", 4)
    one = torch.ones(shape)
    for place in (0, -1):
        other = one.clone()
        other[place] = 2
        assert same([one], [one.clone()])
        assert close([one], [one.clone()])
        assert not same([one], [other])
        assert not close([one], [other])


def test_a_comparison_takes_less_memory_than_what_is_compared(monkeypatch):
    class Largest(EagerMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and not func.is_view:
                self.numbers = max(self.numbers, found.numel())
            return found

    monkeypatch.setattr(alike, "_AT_A_TIME", 32)
    one, largest = torch.ones(100, 8), Largest()
    with largest:
        assert same([one], [one])
        assert close([one], [one])
    assert largest.numbers == 32
