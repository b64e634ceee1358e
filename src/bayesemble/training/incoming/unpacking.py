"""What a loader, a stream or a data set yields becomes inputs and targets: by the key of the targets, or a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bayesemble.core.errors import BayesembleError, DataError
from bayesemble.task.task import Task
from bayesemble.training.incoming.mappings import columns_of, inputs_of, with_targets


@dataclass(frozen=True)
class Unpacking:
    """How a task reads the batches that are yielded."""

    key: str | None = None
    """Of the targets in mappings."""
    function: Callable[[Any], Any] | None = None
    """What makes (inputs, targets) of a batch, or (inputs, targets, weights)."""

    @staticmethod
    def of(task: Task) -> Unpacking:
        """The way of a task."""
        return Unpacking(task.targets, task.unpack)

    def parts(self, item: Any, weighted: bool = False) -> Sequence[Any]:
        """Inputs, targets and, if rows are weighted, weights of a batch."""
        columns = None if self.function is not None else columns_of(item)
        if self.function is not None:
            found, verb, past = self._made(item), "unpack must give", "gave"
        else:
            found = item if columns is None else with_targets(columns, self.key)
            verb, past = "a DataLoader must yield", "yielded"
        wanted = "triples (inputs, targets, weights)" if weighted else "pairs (inputs, targets)"
        if not isinstance(found, list | tuple):
            raise DataError(f"{verb} {wanted}, it {past} {type(found).__name__}")
        if len(found) != 2 + weighted:
            raise DataError(f"{verb} {wanted}, it {past} {len(found)} items{self._hint(len(found), weighted, columns)}")
        return found

    def inputs(self, item: Any) -> Any:
        """The inputs of a batch; targets, if there are any, are left aside."""
        if self.function is not None:
            found = self._made(item)
            if not isinstance(found, list | tuple) or len(found) not in (2, 3):
                raise DataError(f"unpack must give pairs (inputs, targets), it gave {type(found).__name__}")
            return found[0]
        columns = columns_of(item)
        if columns is not None and (self.key is not None or columns is item):
            return inputs_of(columns, self.key)
        return item[0] if isinstance(item, list | tuple) and len(item) == 2 else item

    def whole(self, data: Any) -> Any:
        """Inputs that were handed over whole, as arrays are: such are not unpacked."""
        columns = columns_of(data)
        if columns is None:
            return data
        if self.function is not None and columns is not data:
            raise DataError(
                f"unpack is asked about what loaders and streams yield, but a {type(data).__name__} came whole; pass "
                "be.Stream([table]), or the inputs as arrays"
            )
        return inputs_of(columns, self.key) if self.key is not None or columns is data else data

    def _made(self, item: Any) -> Any:
        """What the function makes of a batch; of weights that are None, a pair."""
        assert self.function is not None
        try:
            found = self.function(item)
        except BayesembleError:
            raise
        except Exception as error:
            raise DataError(
                f"unpack could not read a batch ({type(item).__name__}): {type(error).__name__}: {error}; where a "
                "batch has no targets, as in predictions, it may give (inputs, None)"
            ) from error
        pair = isinstance(found, list | tuple) and len(found) == 3 and found[2] is None
        return found[:2] if pair else found

    def _hint(self, count: int, weighted: bool, columns: Any) -> str:
        if weighted and columns is not None:
            return "; say by Task(..., unpack=...) which of the columns are weights"
        if not weighted and count == 3:
            return "; if the third are weights of rows, fit takes them by weights=True, and scores count rows alike"
        return "" if self.function is not None else "; say by Task(..., unpack=...) what they are"


AS_YIELDED = Unpacking()
"""Pairs, as they come."""
