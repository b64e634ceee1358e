"""A team of several processes, over `torch.distributed`: members along one axis of ranks, rows along the other.

Rank r holds the members of place r // data and sees the rows of place r % data. Ranks with the same members make a
group of the data axis, ranks with the same rows one of the member axis.

What is told, with M members, P weights and R ranks along the member axis: function space gathers outputs, weight space
hands each rank 1 / R of the coordinates of all members and gets forces back, so that no rank ever has all weights:
each sends 2 P M / R numbers, or 3 where members share their gradients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bayesemble.core.errors import ExecutionError
from bayesemble.core.types import Batch, Leaves, WeightedTargets, total_weight
from bayesemble.execute.ranks.team import Team

_LONGEST = 4096  # bytes of what a rank says
_BUCKET = 1 << 22  # numbers that are summed in one message


def shared_out(num: int, places: int) -> list[int]:
    """How many of some things each place gets, the first ones one more if they do not come out even."""
    return [num // places + (place < num % places) for place in range(places)]


@dataclass(frozen=True, eq=False)
class RankTeam(Team):
    """The processes of a job, of which this is one."""

    members: dist.ProcessGroup
    """Ranks that see the same rows, in the order of their members."""
    rows: dist.ProcessGroup
    """Ranks that hold the same members, in the order of their rows."""
    everybody: dist.ProcessGroup
    counts: tuple[int, ...]
    """How many members each place of the member axis holds."""

    @property
    def num_processes(self) -> int:  # type: ignore[override]
        """How many processes hold members or see rows."""
        return dist.get_world_size(self.everybody)

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        """Whether this process is the one that speaks and writes for all."""
        return dist.get_rank(self.everybody) == 0

    @property
    def writes(self) -> bool:  # type: ignore[override]
        """Of those that hold the same members, the first."""
        return dist.get_rank(self.rows) == 0

    @property
    def is_even(self) -> bool:  # type: ignore[override]
        """Whether all processes hold equally many members."""
        return len(set(self.counts)) == 1

    @property
    def exchanges(self) -> bool:  # type: ignore[override]
        """Gradients are added up in each step where ranks see different rows."""
        return dist.get_world_size(self.rows) > 1

    @property
    def place(self) -> int:
        """Where this process stands on the member axis."""
        return dist.get_rank(self.members)

    @property
    def first(self) -> int:
        """The number of the first member here."""
        return sum(self.counts[: self.place])

    def total(self, num: int) -> int:
        """How many members there are on all ranks."""
        return sum(self.counts)

    def everyone(self, here: Tensor) -> Tensor:
        """Gathered along the member axis, as bytes: any number type will do, and nothing is rounded."""
        if len(here) != self.counts[self.place]:
            raise ExecutionError(f"{len(here)} rows were to be gathered from {self.counts[self.place]} members")
        if len(self.counts) == 1:
            return here
        each = here[0].numel() * here.element_size()
        sent = torch.zeros(max(self.counts) * each, dtype=torch.uint8, device=here.device)
        own = here.detach().contiguous().reshape(-1).view(torch.uint8)
        sent[: len(own)] = own
        found = [torch.empty_like(sent) for _ in self.counts]
        _ask(dist.all_gather, found, sent, group=self.members)
        joined = torch.cat([part[: count * each] for part, count in zip(found, self.counts, strict=True)])
        return joined.view(here.dtype).reshape(sum(self.counts), *here.shape[1:])

    def words(self, own: str) -> list[str]:
        """What the ranks of the member axis say."""
        content = own.encode()
        if len(content) > _LONGEST:
            raise ExecutionError(f"ranks tell one another at most {_LONGEST} bytes, these are more: {own}")
        row = torch.zeros(_LONGEST, dtype=torch.uint8)
        row[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        found = [torch.empty_like(row) for _ in self.counts]
        _ask(dist.all_gather, found, row, group=self.members)
        return [bytes(one.tolist()).rstrip(b"\0").decode() for one in found]

    def own(self, everyone: Tensor) -> Tensor:
        """Those of the members here, a view."""
        return everyone.narrow(0, self.first, self.counts[self.place])

    def columns(self, rows: Tensor) -> Tensor:
        """Each rank sends every other one that one's share of coordinates: no rank gets all."""
        places, here = len(self.counts), len(rows)
        width = -(-rows.shape[1] // places)
        wide = rows.new_zeros(here, places * width)
        wide[:, : rows.shape[1]] = rows
        sent = wide.view(here, places, width).transpose(0, 1).contiguous()
        found = rows.new_empty(sum(self.counts), width)
        sizes = [count * width for count in self.counts]
        _ask(dist.all_to_all_single, found.view(-1), sent.view(-1), sizes, [here * width] * places, group=self.members)
        return found

    def from_columns(self, columns: Tensor, num_coordinates: int) -> Tensor:
        """Each rank sends every other one what it has of that one's members."""
        places, here, width = len(self.counts), self.counts[self.place], columns.shape[1]
        found = columns.new_empty(places, here, width)
        sizes = [count * width for count in self.counts]
        sent = columns.contiguous().view(-1)
        _ask(dist.all_to_all_single, found.view(-1), sent, [here * width] * places, sizes, group=self.members)
        return found.transpose(0, 1).reshape(here, places * width)[:, :num_coordinates]

    def summed(self, partial: Tensor) -> Tensor:
        """The sum along the member axis, the same bits on each rank."""
        total = partial.detach().clone()
        _ask(dist.all_reduce, total, group=self.members)
        return total

    def largest(self, number: int) -> int:
        """The largest of the numbers that all processes have."""
        found = torch.tensor(number, dtype=torch.int64)
        _ask(dist.all_reduce, found, op=dist.ReduceOp.MAX, group=self.everybody)
        return int(found)

    def share(self, batch: Batch) -> tuple[Batch, float]:
        """Rows that follow one another; the first ranks have one more if they do not come out even."""
        places, place = dist.get_world_size(self.rows), dist.get_rank(self.rows)
        if places == 1:
            return batch, 1.0
        if batch.num_rows < places:
            raise ExecutionError(f"a batch of {batch.num_rows} rows cannot be shared out among {places} ranks")
        sizes = shared_out(batch.num_rows, places)
        own = batch.rows_between(sum(sizes[:place]), sum(sizes[: place + 1]))
        if not isinstance(batch.targets, WeightedTargets):
            return own, own.num_rows / batch.num_rows
        return own, total_weight(own.targets) / total_weight(batch.targets)

    def over_rows(self, values: Tensor, gradients: Leaves, share: float) -> tuple[Tensor, Leaves]:
        """Sums of means that count by their shares, some leaves in each message; gradients are overwritten."""
        if dist.get_world_size(self.rows) == 1:
            return values, gradients
        parts = [values.clone(), *gradients.values()]
        if share:
            torch._foreach_mul_(parts, share)
        else:  # rows without weight have no mean, not even 0 times it
            torch._foreach_zero_(parts)
        for bucket in _buckets(parts):
            flat = torch.cat([part.reshape(-1) for part in bucket])
            _ask(dist.all_reduce, flat, group=self.rows)
            for part, summed in zip(bucket, flat.split([part.numel() for part in bucket]), strict=True):
                part.copy_(summed.view(part.shape))
        return parts[0], gradients


def _ask(operation: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Carry out an operation of all ranks, or say in a sentence that one of them is gone."""
    try:
        operation(*arguments, **options)
    except RuntimeError as error:
        words = str(error).strip().splitlines()[0].rpartition("] ")[2]  # where in its source is of no use here
        raise ExecutionError(
            f"rank {dist.get_rank()} waited for another one that is gone or did not answer in time ({words}); start "
            "the job again with resume=True, or with torchrun --max-restarts, to go on from its last checkpoint"
        ) from error


def _buckets(parts: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one number type that go together into a message."""
    bucket: list[Tensor] = []
    for part in parts:
        if bucket and (bucket[0].dtype != part.dtype or sum(p.numel() for p in bucket) + part.numel() > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(part)
    if bucket:
        yield bucket
