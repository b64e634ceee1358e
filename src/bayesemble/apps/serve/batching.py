"""Requests that wait for one another: whatever has come in while a batch is computed makes the next one.

One thread for each model computes; requests are answered in the order in which they came. The queue is bounded in rows:
what does not fit is refused at once, so that whoever is taken is answered in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayesemble.apps.serve.answers import Answered, Model
from bayesemble.data.table_files import Chunk

MOST_ROWS = 512
"""Rows of a batch, unless a single request has more."""
_PAUSE = 1e-4
"""Seconds that a refusal gives to the threads that compute.

What it sends and receives lets go of the interpreter for shorter than another thread takes to wake up: refusals that
follow one another without a pause would leave nearly no time for answers.
"""
logger = logging.getLogger("bayesemble.serve")


class OverloadedError(Exception):
    """There is no room, or no time left; worth another try after some seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(eq=False)
class _Waiting:
    model: Model
    chunk: Chunk
    until: float
    future: asyncio.Future[list[dict[str, Any]]]
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.chunk.rows)


class Batcher:
    """The queue of one model, and the thread that empties it."""

    def __init__(
        self,
        name: str,
        queue_rows: int,
        linger: float,
        on_batch: Callable[[Model, Chunk, Answered, float], None],
    ) -> None:
        self._most, self._linger, self._on_batch = queue_rows, linger, on_batch
        self._queue: deque[_Waiting] = deque()
        self._rows, self._rate, self._full = 0, 0.0, False
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"batches of {name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many rows wait for their turn."""
        return self._rows

    def check_room(self) -> None:
        """Refuse before anything is read, if a request has been refused and none was computed since."""
        if self._full:
            raise self._refusal()

    async def submit(self, model: Model, chunk: Chunk, seconds: float) -> list[dict[str, Any]]:
        """The answers to a chunk, or `OverloadedError`."""
        future: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(model, chunk, time.monotonic() + seconds, future)
        if not self._take(waiting):
            raise self._refusal()
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise OverloadedError(f"the answer took longer than {seconds:g} s", self._retry_after()) from None

    def close(self) -> None:
        """Answer what has been taken, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _take(self, waiting: _Waiting) -> bool:
        """Queue a request if there is room for it."""
        with self._changed:
            if self._closed or self._rows + waiting.rows > self._most:
                self._full = True
                return False
            self._queue.append(waiting)
            self._rows += waiting.rows
            self._changed.notify()
            return True

    def _refusal(self) -> OverloadedError:
        time.sleep(_PAUSE)
        return OverloadedError(f"{self._rows:,} rows wait already, and {self._most:,} may", self._retry_after())

    def _retry_after(self) -> int:
        """About how many seconds the rows that wait will take."""
        return min(60, max(1, math.ceil(self._rows / self._rate))) if self._rate else 1

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._answer(batch)
            except Exception as error:
                if len(batch) == 1:
                    logger.exception("a batch failed")
                    _settle([(batch[0], error)])
                    continue
                for one in batch:  # one request must not spoil the others
                    try:
                        self._answer([one])
                    except Exception as own:
                        logger.exception("a request failed")
                        _settle([(one, own)])

    def _next(self) -> list[_Waiting]:
        """The oldest requests that one model can answer together; none when it is over."""
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                batch = self._gather()
                if batch or self._closed:
                    return batch

    def _gather(self) -> list[_Waiting]:
        if self._linger and not self._closed and self._rows < MOST_ROWS:
            self._changed.wait_for(lambda: self._rows >= MOST_ROWS or self._closed, self._linger)
        self._full = False
        batch: list[_Waiting] = []
        rows, now = 0, time.monotonic()
        while self._queue:
            one = self._queue[0]
            if one.until < now or one.future.cancelled():
                self._rows -= self._queue.popleft().rows  # nobody waits for it any more
            elif batch and (one.model is not batch[0].model or rows + one.rows > MOST_ROWS):
                break
            else:
                batch.append(self._queue.popleft())
                rows += one.rows
                self._rows -= one.rows
        return batch

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        begin, model = time.perf_counter(), batch[0].model
        chunk = joined([one.chunk for one in batch])
        answered = model.answer(chunk)
        took = time.perf_counter() - begin
        rate = len(chunk.rows) / took
        self._rate = rate if not self._rate else 0.9 * self._rate + 0.1 * rate
        try:
            self._on_batch(model, chunk, answered, took)  # it gives each answer its id
        except Exception:
            logger.exception("a batch was answered, but not watched")
        results: list[tuple[_Waiting, Any]] = []
        place = 0
        for one in batch:
            results.append((one, answered.answers[place : place + one.rows]))
            place += one.rows
        _settle(results)


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Rows of several requests, one after the other, numbered from 0."""
    if len(chunks) == 1:
        return chunks[0]
    columns = {name: [cell for chunk in chunks for cell in chunk.columns[name]] for name in chunks[0].columns}
    return Chunk("the request", columns, range(sum(len(chunk.rows) for chunk in chunks)))


def _settle(results: Sequence[tuple[_Waiting, Any]]) -> None:
    """Hand results over to the loop that waits for them, in one go."""

    def hand_over() -> None:
        for waiting, result in results:
            if waiting.future.done():
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)

    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
        results[0][0].future.get_loop().call_soon_threadsafe(hand_over)
