import torch

import bayesemble as be
from bayesemble.methods.repulsion.samplers import Sampler


def drawn(inputs, num: int = 64, seed: int = 0):
    return be.RowSampler(inputs, num)(torch.Generator().manual_seed(seed))


def test_rows_are_drawn_with_replacement_from_the_generator_alone():
    x = torch.arange(10.0).reshape(5, 2)
    rows = drawn(x)
    assert rows.shape == (64, 2)
    assert {tuple(row) for row in rows.tolist()} == {tuple(row) for row in x.tolist()}, "64 draws meet all five rows"
    assert torch.equal(rows, drawn(x))
    assert not torch.equal(rows, drawn(x, seed=1))


def test_all_parts_of_an_input_come_from_the_same_rows():
    x = torch.arange(20.0).reshape(10, 2)
    rows = drawn({"left": x, "right": (10 * x,)}, num=7)
    assert torch.equal(10 * rows["left"], rows["right"][0])


def test_any_function_of_a_generator_is_a_sampler():
    assert isinstance(be.RowSampler(torch.zeros(3, 2), 2), Sampler)
    assert isinstance(lambda generator: torch.zeros(2, 2), Sampler)
    assert not isinstance("batch", Sampler)
