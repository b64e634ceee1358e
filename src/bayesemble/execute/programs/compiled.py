"""A record as machine code: torch's Inductor makes it, and a folder keeps it, so that the next run starts with it.

The code is found again by the record itself (operations, shapes, constants), the versions, the processor and the number
of threads: nothing else goes into it. Numbers agree with those of the record to about 1e-5, and are always the same.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import ExecutionError
from bayesemble.core.files import cache_folder, replacing
from bayesemble.execute.programs.program import Replay, with_slots
from bayesemble.execute.programs.recorder import Layout, Record, Slot, slots_of
from bayesemble.execute.programs.turning import read_transposed

logger = logging.getLogger("bayesemble")

aten = torch.ops.aten
FOLDER = "BAYESEMBLE_COMPILED"  # an environment variable
_FORM = 4  # of the code that is made from a record
_LONG_ENOUGH = 16  # shorter reductions are taken apart
_NARROW = 16  # products with fewer columns are slow


def compiled(record: Record) -> Replay:
    """A function `(inputs) -> outputs`, compiled now or earlier."""
    path = folder() / f"{fingerprint(record)}.pt2"
    if not path.exists():
        _compile(record, path)
    run = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1).run
    made = _made(record)
    if all(place is not None for _, place in made):
        return lambda *inputs: tuple(run(list(inputs)))

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = run(list(inputs))
        return tuple(inputs[slot.number] if place is None else found[place] for slot, place in made)

    return replay


def folder() -> Path:
    """Where compiled programs are kept: the folder that $BAYESEMBLE_COMPILED names, or one in the user's cache."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else cache_folder() / "compiled"


def obstacle() -> str | None:
    """Why nothing can be compiled here, or None."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler (g++, or the one that $CXX names)"
    return None


def fingerprint(record: Record) -> str:
    """What tells a program from others: all that its code depends on."""
    digest = hashlib.sha256()
    place = (torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    digest.update(repr((_FORM, place, record.num_inputs, record.outputs)).encode())
    for number in (*range(record.num_inputs), *_constants(record)):
        one = record.layouts[number]
        digest.update(repr((number, one.shape, one.stride, one.dtype, one.device)).encode())
        if number in record.constants:
            value = record.values[number]
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for one in record.operations:
        digest.update(repr((str(one.function), one.args, sorted(one.kwargs.items()), one.given)).encode())
    return digest.hexdigest()[:40]


def _made(record: Record) -> list[tuple[Slot, int | None]]:
    """Each output, and where it is among those that the code gives; None is an input, which stays where it is."""
    found: list[tuple[Slot, int | None]] = []
    for slot in record.outputs:
        given = sum(place is not None for _, place in found)
        found.append((slot, given if slot.number >= record.num_inputs else None))
    return found


def _compile(record: Record, path: Path) -> None:
    found = obstacle()
    if found is not None:
        raise ExecutionError(found)
    logger.info("compiling a step, which takes some seconds; it is kept in %s", path.parent)
    import torch._inductor.config as config

    inputs = tuple(_room(layout) for layout in record.layouts[: record.num_inputs])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # what torch says of its own ways
        stack.enter_context(_silent("torch._inductor"))
        stack.enter_context(config.patch({"compile_threads": 1, "aot_inductor.compile_wrapper_opt_level": "O1"}))
        temporary = stack.enter_context(replacing(path, ExecutionError))
        program = torch.export.export(_Straight(record), inputs, strict=False)
        # The name has to end so; it is put in its place when all of it is there.
        made = torch._inductor.aoti_compile_and_package(program, package_path=f"{temporary}.pt2")
        Path(made).replace(temporary)


def _room(layout: Layout) -> Tensor:
    """A tensor without numbers of its own, which whoever looks at operations alone has no need of."""
    bare = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
    return torch.empty_like(bare, device=layout.device)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Nothing but errors is logged under this name."""
    speaker = logging.getLogger(name)
    before = speaker.level
    speaker.setLevel(logging.ERROR)
    try:
        yield
    finally:
        speaker.setLevel(before)


class _Straight(nn.Module):
    """The operations of a record, for Inductor to look at."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        for number in _constants(record):
            self.register_buffer(f"constant_{number}", record.values[number])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        tensors: dict[int | None, Tensor] = dict(enumerate(inputs))
        record = self.record
        tensors |= {number: getattr(self, f"constant_{number}") for number in _constants(record)}

        def tensor(slot: Slot) -> Tensor:
            return tensors[slot.number]

        turned = read_transposed(record)
        for index, one in enumerate(record.operations):
            args, kwargs = with_slots((one.args, one.kwargs), tensor)
            function = _turned_product if index in turned else _IN_PARTS.get(one.function, one.function)
            found = function(*args, **kwargs)
            tensors |= zip(one.given, [found] if one.single else found or (), strict=True)
        return tuple(tensors[slot.number] for slot, place in _made(record) if place is not None)


def _constants(record: Record) -> list[int]:
    """The constants that are read."""
    read = {number for one in record.operations for number in slots_of(one)} | {slot.number for slot in record.outputs}
    return sorted(record.constants & read)


def _turned_product(one: Tensor, other: Tensor) -> Tensor:
    """A product that lies in memory as its transpose does, so that whoever reads that goes straight through.

    If that transpose is narrow, the product is taken as it is and turned in a pass of its own, which is quicker. The
    compiler would leave such a pass out, and read across in all places, were it not told where the numbers have to lie.
    """
    rows, columns = other.shape[-1], one.shape[-2]
    if columns >= min(_NARROW, rows):
        return torch.bmm(other.mT, one.mT).mT
    from torch._inductor.inductor_prims import force_stride_order

    return force_stride_order(torch.bmm(one, other).mT, (rows * columns, columns, 1)).mT


def _adam(
    leaves: Sequence[Tensor],
    slopes: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    _: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool = False,
    **rest: Any,
) -> None:
    """One step of Adam in single operations, which the compiler fuses with what is around them."""
    # One number serves all leaves; the compiler would work its powers out anew for every coordinate.
    step = steps[0]
    rate = _worked_out(lr.to(leaves[0].dtype) / (1 - beta1**step))
    root = _worked_out((1 - beta2**step).rsqrt())
    decay = _worked_out(1 - lr.to(leaves[0].dtype) * weight_decay)
    for leaf, slope, first, second in zip(leaves, slopes, first_moments, second_moments, strict=True):
        if decoupled:
            leaf.mul_(decay)
        elif weight_decay:
            slope = slope + weight_decay * leaf
        first.lerp_(slope, 1 - beta1)
        second.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
        leaf.sub_(rate * first / (second.sqrt() * root + eps))


def _worked_out(number: Tensor) -> Tensor:
    """A number as the result of a reduction, which the compiler works out once instead of where it is used."""
    return number.expand(_LONG_ENOUGH).amax(0)


def _sgd(
    leaves: Sequence[Tensor],
    slopes: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Tensor,
    **rest: Any,
) -> None:
    rate = lr.to(leaves[0].dtype)
    for index, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
        if weight_decay:
            slope = slope + weight_decay * leaf
        if momentum:
            slope = momenta[index].mul_(momentum).add_(slope)
        leaf.sub_(rate * slope)


def _divided(one: Tensor, other: Tensor | float) -> Tensor:
    return one * (1 / other) if isinstance(other, int | float) and one.is_floating_point() and other else one / other


# Operations that do much at once, which the compiler would leave as they are.
_IN_PARTS = {
    aten._fused_adam_.tensor_lr: _adam,
    aten._fused_adamw_.tensor_lr: lambda *args, **kwargs: _adam(*args, **kwargs, decoupled=True),
    aten._fused_sgd_.tensor_lr: _sgd,
    aten._foreach_mul_.Scalar: lambda leaves, factor: [leaf.mul_(factor) for leaf in leaves] and None,
    # Vectors of numbers are multiplied in a fraction of the time that a division takes.
    aten._foreach_div_.Scalar: lambda leaves, factor: [leaf.mul_(1 / factor) for leaf in leaves] and None,
    aten.div.Tensor: _divided,
}
