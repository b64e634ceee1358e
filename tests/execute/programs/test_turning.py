"""Products that are read transposed are taken the other way round, to the same bits."""

import pytest
import torch
from torch import Tensor

from bayesemble.execute.programs import turning
from bayesemble.execute.programs.program import replayed, tidy
from bayesemble.execute.programs.turning import read_transposed, turned
from execute.programs.test_recorder import normal, recorded

aten = torch.ops.aten


def gradient(weight: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """That of a dense layer, laid out as its weights are; and a product that is read both ways."""
    laid_out = torch.empty_like(weight).copy_(torch.bmm(x.mT, slope).mT)
    both_ways = torch.bmm(slope.mT, x)
    return laid_out / -7 + both_ways, both_ways.mT + 1


def factors(members: int, rows: int, inputs: int, outputs: int) -> list[Tensor]:
    return [normal(members, outputs, inputs), normal(members, rows, inputs), normal(members, rows, outputs)]


def functions(record) -> list[str]:
    return [str(one.function) for one in record.operations]


def test_a_product_that_is_read_transposed_and_by_nothing_else_is_found():
    record = tidy(recorded(gradient, *factors(2, 5, 4, 3)))
    products = [index for index, one in enumerate(record.operations) if one.function is aten.bmm.default]
    assert read_transposed(record) == {products[0]}


@pytest.mark.parametrize("shared", [False, True])
def test_it_is_taken_the_other_way_round_without_a_copy(shared):
    weight, x, slope = factors(3, 32, 40, 24)
    x = x[:1].expand(3, 32, 40) if shared else x
    record = tidy(recorded(gradient, weight, x, slope))
    found = turned(record)
    assert "aten.copy_.default" in functions(record)
    assert "aten.copy_.default" not in functions(found)
    assert "aten.empty_like.default" not in functions(found)
    for one, other in zip(replayed(found)(weight, x, slope), gradient(weight, x, slope), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_a_product_that_rounds_otherwise_is_left_as_it_is(monkeypatch):
    record = tidy(recorded(gradient, *factors(3, 32, 40, 24)))
    monkeypatch.setattr(turning, "_same_bits", lambda *_: False)
    assert functions(turned(record)) == functions(record)


@pytest.mark.parametrize(
    "function",
    [
        lambda weight, x, slope: torch.ones_like(weight).copy_(torch.bmm(x.mT, slope).mT),
        lambda weight, x, slope: weight.copy_(torch.bmm(x.mT, slope).mT),
        lambda weight, x, slope: torch.empty_like(weight).copy_((product := torch.bmm(x.mT, slope)).mT) * product.sum(),
        lambda weight, x, slope: torch.empty_like(weight).copy_(turn := torch.bmm(x.mT, slope).mT) * turn,
        lambda weight, x, slope: torch.empty_like(weight.mT).mT.copy_(torch.bmm(x.mT, slope).mT),
    ],
)
def test_where_more_than_a_copy_into_fresh_memory_is_done_with_it_nothing_changes(function):
    given = factors(3, 32, 40, 24)
    record = tidy(recorded(function, *[one.clone() for one in given]))
    assert functions(turned(record)) == functions(record)
    (one,), other = replayed(turned(record))(*[one.clone() for one in given]), function(*given)
    assert torch.equal(one, other)


def test_another_axis_that_is_exchanged_is_no_transpose():
    x, slope = normal(5, 7, 5), normal(5, 7, 5)

    def function(x: Tensor, slope: Tensor) -> Tensor:
        return torch.empty_like(x[:, :5]).copy_(torch.bmm(x.mT, slope).transpose(0, 1)) * 2

    record = tidy(recorded(function, x, slope))
    assert functions(turned(record)) == functions(record)
    assert torch.equal(replayed(turned(record))(x, slope)[0], function(x, slope))


@pytest.mark.parametrize("sizes", [(128, 784, 100), (128, 100, 10), (7, 13, 50), (33, 5, 64)])
def test_the_look_at_bits_is_right_for_other_numbers_too(sizes):
    _, x, slope = factors(4, *sizes)
    record = recorded(lambda x, slope: torch.bmm(x.mT, slope), x, slope)
    one, other = (record.layouts[slot.number] for slot in record.operations[-1].args)
    alike = torch.equal(torch.bmm(x.mT, slope).mT, torch.bmm(slope.mT, x))
    assert turning._same_bits(one, other) <= alike
