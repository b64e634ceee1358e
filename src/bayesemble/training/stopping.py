"""Requests to stop: Ctrl-C and SIGTERM wait until a step of training is whole."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

logger = logging.getLogger("bayesemble")
_Item = TypeVar("_Item")


@dataclass
class StopRequest:
    """Whether somebody asked for an end."""

    signal: int | None = None
    """The signal that did."""

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A `KeyboardInterrupt` that is raised inside, by a callback or by data, is noted as a first Ctrl-C is."""
        try:
            yield
        except KeyboardInterrupt:
            if self.signal is not None:
                raise
            self.signal = signal.SIGINT

    def until(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Items, up to where getting the next one raises a `KeyboardInterrupt`."""
        with self.noting():
            yield from items


@contextmanager
def stop_requests(by_sigterm: bool) -> Iterator[StopRequest]:
    """Inside the block the first Ctrl-C, and the first SIGTERM if asked for, is only noted; a second one acts at once.

    A SIGTERM that was noted ends the process when the block is left. Only the main thread gets signals, and handlers
    that are not Python's own are left alone. Children that are forked meanwhile leave the first one to their parent.
    """
    request, owner = StopRequest(), os.getpid()
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    usual |= {signal.SIGTERM: signal.SIG_DFL} if by_sigterm else {}
    here = threading.current_thread() is threading.main_thread()
    taken = {number: handler for number, handler in usual.items() if here and signal.getsignal(number) == handler}

    def note(number: int, _: FrameType | None) -> None:
        signal.signal(number, taken[number])
        if os.getpid() == owner:
            request.signal = number

    for number in taken:
        signal.signal(number, note)
    try:
        yield request
    except Exception as error:
        if request.signal == signal.SIGTERM:
            logger.error("%s", error)  # the process ends before anybody else can tell
        raise
    finally:
        for number, handler in taken.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if request.signal == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)
