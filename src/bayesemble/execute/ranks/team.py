"""The processes that hold an ensemble together, each some of its members; here, the one that holds them all.

A method asks its team wherever it looks across members. In one process all answers are what was asked, so that a
method neither knows nor cares how many there are. `group.py` has the team of several processes.
"""

from torch import Tensor

from bayesemble.core.types import Batch, Leaves


class Team:
    """One process that holds all members and sees all rows."""

    num_processes = 1
    """How many processes hold members or see rows."""
    is_first = True
    """Whether this process is the one that speaks and writes for all."""
    writes = True
    """Whether this process is the one that writes the members that it holds."""
    is_even = True
    """Whether all processes hold equally many members."""
    exchanges = False
    """Whether each step waits for other processes, whatever the method."""

    @property
    def first(self) -> int:
        """The number of the first member here."""
        return 0

    def total(self, num: int) -> int:
        """How many members there are, if `num` are here."""
        return num

    def everyone(self, here: Tensor) -> Tensor:
        """What all members have, `(member, ...)`, from what those here have."""
        return here

    def words(self, own: str) -> list[str]:
        """What the processes that hold members say, in the order of their members."""
        return [own]

    def own(self, everyone: Tensor) -> Tensor:
        """What the members here have, of what all have, `(member, ...)`."""
        return everyone

    def columns(self, rows: Tensor) -> Tensor:
        """A share of the coordinates of all members, from all coordinates `(member, coordinate)` of those here.

        Every coordinate is in the share of one process; shares may be filled up with zeros.
        """
        return rows

    def from_columns(self, columns: Tensor, num_coordinates: int) -> Tensor:
        """The way back: all coordinates of the members here."""
        return columns

    def summed(self, partial: Tensor) -> Tensor:
        """The sum of what the processes have."""
        return partial

    def largest(self, number: int) -> int:
        """The largest of the numbers that the processes have."""
        return number

    def share(self, batch: Batch) -> tuple[Batch, float]:
        """The rows of a batch that this process sees, and what their mean counts for in the mean over all rows."""
        return batch, 1.0

    def over_rows(self, values: Tensor, gradients: Leaves, share: float) -> tuple[Tensor, Leaves]:
        """Means over all rows, from those over the rows that each process sees."""
        return values, gradients


ALONE = Team()
