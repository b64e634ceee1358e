"""What a run tells while it is under way, on standard error: a bar where there is a terminal, or a line per epoch.

The logger "bayesemble" has a line per epoch too, at INFO.
"""

import logging
import math
import sys
import time
from types import TracebackType
from typing import Any, Self

logger = logging.getLogger("bayesemble")

_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 1.0  # at least so much lies between two lines: short epochs do not each have one


class Progress:
    """Shows epoch, the spread of the members' losses and the time left."""

    def __init__(self, epochs: int, total_steps: int, done_steps: int, shown: bool) -> None:
        self.epochs = epochs
        self.steps = done_steps
        self.last, self.last_line = 0.0, time.monotonic()
        self.bar: Any = self._make_bar() if shown else None
        self.told = False
        self.in_lines = shown and self.bar is None
        if self.bar is not None:
            self.line = self.bar.add_task("", total=total_steps, completed=done_steps, loss="")

    @staticmethod
    def _make_bar() -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        if not console.is_terminal:
            return None
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"))
        return Bar(*columns, TimeRemainingColumn(), console=console, transient=True)

    def say(self, words: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(words, style="dim", highlight=False)

    def step(self, epoch: int) -> None:
        """Count a step; redraw now and then."""
        self.steps += 1
        if self.bar is not None and time.monotonic() - self.last > _REFRESH_SECONDS:
            self.last = time.monotonic()
            self.bar.update(self.line, completed=self.steps, description=f"epoch {epoch}/{self.epochs}")

    def row(self, row: dict[str, Any]) -> None:
        """Tell the losses of a finished epoch: on the bar, and to the log."""
        if self.bar is None and not self.in_lines and not logger.isEnabledFor(logging.INFO):
            return
        losses = [loss for loss in row["loss"] if math.isfinite(loss)]  # that of a member left behind is not
        words = f"loss {min(losses):.4g} to {max(losses):.4g}" if len(losses) > 1 else f"loss {losses[0]:.4g}"
        if "repulsion_norm" in row:
            words += f", driving {_mean(row['driving_norm']):.2g}, repelling {_mean(row['repulsion_norm']):.2g}"
        if "validation_loss" in row:
            words += f", validation {row['validation_loss']:.4g}"
        line = f"epoch {row['epoch']} of {self.epochs}: {words}, {row['seconds']:.3g} s"
        logger.info("%s", line)
        if self.in_lines and not logger.isEnabledFor(logging.INFO) and self._is_time(row["epoch"]):
            print(line, file=sys.stderr, flush=True)
        if self.bar is not None:
            self.bar.update(self.line, completed=self.steps, loss=words)

    def _is_time(self, epoch: int) -> bool:
        """Whether a line is due: some time after the last, or at the end of a run that has had one."""
        now = time.monotonic()
        due = now - self.last_line >= _LINE_SECONDS or (epoch == self.epochs and self.told)
        if due:
            self.last_line, self.told = now, True
        return due

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
