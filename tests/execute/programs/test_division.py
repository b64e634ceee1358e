"""What members have in common is worked out once, and each gets what the whole function gives it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayesemble.core.seeds import EagerMode
from bayesemble.execute.programs.division import divided
from bayesemble.execute.programs.recorder import Recorder


class Products(EagerMode):
    """Counts the matrix products that are carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def trunk_and_head(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    return (x @ trunk).relu() @ head


def in_place_in_the_trunk(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    return (x @ trunk).relu_().mul_(2) @ head


def in_place_through_a_view(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    hidden = x @ trunk
    hidden.view(-1)[::2].mul_(3)
    return hidden @ head


def head_writes_into_the_trunk(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    hidden = x @ trunk
    return hidden.add_(head.sum()) @ head


def head_reads_before_the_trunk_is_changed(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    hidden = x @ trunk
    first = hidden @ head
    hidden.relu_()
    return first + hidden @ head


def head_writes_into_a_view_of_the_trunk(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    hidden = x @ trunk
    before = hidden.clone()
    hidden[:, 0] = head[0, 0]
    return before @ head + hidden @ head


def nothing_of_its_own(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    return x @ trunk


def several_results(x: Tensor, trunk: Tensor, head: Tensor) -> Tensor:
    largest, places = (x @ trunk).max(1, keepdim=True)
    return (largest + places) @ head[:1]


CASES = {
    trunk_and_head: 1,
    in_place_in_the_trunk: 1,
    in_place_through_a_view: 1,
    head_writes_into_the_trunk: 2,
    head_reads_before_the_trunk_is_changed: 3,
    head_writes_into_a_view_of_the_trunk: 3,
    nothing_of_its_own: 0,
    several_results: 1,
}


def record_of(function: Callable[..., Tensor], *inputs: Tensor):
    recorder = Recorder(inputs)
    with recorder:
        outputs = function(*inputs)
    return recorder.finish([outputs])


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_each_member_gets_what_the_whole_function_gives_it(function):
    generator = torch.Generator().manual_seed(0)
    x, trunk = torch.randn(5, 3, generator=generator), torch.randn(3, 4, generator=generator)
    heads = [torch.randn(4, 2, generator=generator) for _ in range(3)]
    common, own = divided(record_of(function, x, trunk, heads[0]), 2)
    kept = common(x, trunk)
    with Products() as products:
        found = [own(x, trunk, head, *kept)[0] for head in heads]
    assert all(torch.equal(one, function(x, trunk, head)) for one, head in zip(found, heads, strict=True))
    assert products.count == 3 * CASES[function], (
        "products with the head, and those that could not be worked out before"
    )


def test_what_writes_into_its_inputs_is_not_divided():
    x, weight = torch.ones(2, 2), torch.ones(2, 2)
    assert divided(record_of(lambda a, b: a.add_(b), x, weight), 1) is None
    kept = torch.zeros(2, 2)
    assert divided(record_of(lambda a, b: kept.add_(a) + b, x, weight), 1) is None
