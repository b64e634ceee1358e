import asyncio
import os
import socket
import threading

import pytest

from bayesemble.apps.serve.answers import Answered
from bayesemble.apps.serve.batching import MOST_ROWS, Batcher, OverloadedError, joined
from bayesemble.data.table_files import Chunk


def chunk(*texts):
    return Chunk("the request", {"x": list(texts)}, range(len(texts)))


class Doubled:
    """Stands for a model: it answers each text twice, once it may, and remembers its batches."""

    def __init__(self, open=True):
        self.batches, self.may = [], threading.Event()
        if open:
            self.may.set()

    def answer(self, rows):
        assert self.may.wait(20)
        self.batches.append(len(rows.rows))
        if "bad" in rows.columns["x"]:
            raise ValueError("a bad row")
        return Answered([{"twice": text * 2} for text in rows.columns["x"]], None, {})


@pytest.fixture
def batcher():
    made = Batcher("test", 600, 0.0, lambda *_: None)
    yield made
    made.close()


def run(*tasks):
    async def gathered():
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(gathered())


def test_what_waits_is_computed_together_and_each_gets_its_own(batcher):
    model = Doubled(open=False)

    async def storm():
        tasks = [asyncio.create_task(batcher.submit(model, chunk(f"a{i}", f"b{i}"), 20)) for i in range(40)]
        await asyncio.sleep(0.05)  # the first batch is being computed, all others wait
        model.may.set()
        return await asyncio.gather(*tasks)

    found = asyncio.run(storm())
    assert [[one["twice"] for one in part] for part in found] == [[f"a{i}a{i}", f"b{i}b{i}"] for i in range(40)]
    assert sum(model.batches) == 80
    assert len(model.batches) <= 3


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(batcher):
    model = Doubled(open=False)

    async def storm():
        first = asyncio.create_task(batcher.submit(model, chunk("x"), 20))
        await asyncio.sleep(0.05)  # it is being computed
        full = asyncio.create_task(batcher.submit(model, chunk(*["y"] * 600), 20))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as refused:
            await batcher.submit(model, chunk("z"), 20)
        assert refused.value.retry_after >= 1
        model.may.set()
        assert len(await full) == 600
        return await first

    assert asyncio.run(storm()) == [{"twice": "xx"}]


def test_whoever_waits_too_long_is_told_and_not_computed(batcher):
    model = Doubled(open=False)

    async def storm():
        first = asyncio.create_task(batcher.submit(model, chunk("x"), 20))
        await asyncio.sleep(0.02)
        with pytest.raises(OverloadedError, match="longer"):
            await batcher.submit(model, chunk("late"), 0.05)
        model.may.set()
        await first
        return await batcher.submit(model, chunk("y"), 20)

    assert asyncio.run(storm()) == [{"twice": "yy"}]
    assert sum(model.batches) == 2


def test_a_request_that_fails_spoils_no_other(batcher):
    model = Doubled(open=False)

    async def storm():
        tasks = [asyncio.create_task(batcher.submit(model, chunk(text), 20)) for text in ("x", "bad", "y", "z")]
        await asyncio.sleep(0.02)
        model.may.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, bad, *others = asyncio.run(storm())
    assert isinstance(bad, ValueError)
    assert [first, *others] == [[{"twice": "xx"}], [{"twice": "yy"}], [{"twice": "zz"}]]


def test_each_request_is_answered_by_the_model_it_was_checked_for(batcher):
    one, two = Doubled(), Doubled()
    run(*(batcher.submit(model, chunk("x"), 20) for model in (one, two, one)))
    assert (sum(one.batches), sum(two.batches)) == (2, 1)


def test_a_request_larger_than_a_batch_is_answered(batcher):
    model = Doubled()
    (found,) = run(batcher.submit(model, chunk(*["x"] * (MOST_ROWS + 1)), 20))
    assert len(found) == MOST_ROWS + 1


def test_closing_answers_what_was_taken_and_then_refuses():
    made, model = Batcher("test", 600, 0.0, lambda *_: None), Doubled(open=False)

    async def storm():
        tasks = [asyncio.create_task(made.submit(model, chunk(str(i)), 20)) for i in range(10)]
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(asyncio.to_thread(made.close))
        await asyncio.sleep(0.02)
        model.may.set()
        found = await asyncio.gather(*tasks)
        await closing
        with pytest.raises(OverloadedError):
            await made.submit(model, chunk("late"), 1)
        return found

    assert len(asyncio.run(storm())) == 10


def test_lingering_gathers_more():
    made, model = Batcher("test", 600, 0.2, lambda *_: None), Doubled()

    async def storm():
        async def later(i):
            await asyncio.sleep(0.01 * i)
            return await made.submit(model, chunk(str(i)), 20)

        return await asyncio.gather(*(later(i) for i in range(5)))

    asyncio.run(storm())
    made.close()
    assert model.batches == [5]


def test_refusals_let_other_threads_compute(batcher):
    """What a refusal sends and receives lets go of the interpreter, but too shortly for another thread to wake up."""
    over, turns, (here, there) = threading.Event(), [0], socket.socketpair()

    def compute():
        while not over.is_set():
            os.sched_yield()  # lets go of the interpreter for a moment, as each operation of torch does
            turns[0] += 1

    run(batcher.submit(Doubled(), chunk(*["x"] * 601), 20))  # more than there is room for
    thread = threading.Thread(target=compute)
    thread.start()
    before, refusals = turns[0], 1000
    for _ in range(refusals):
        here.send(b"a request" * 600)
        there.recv(10_000)
        with pytest.raises(OverloadedError):
            batcher.check_room()
        there.send(b"a refusal" * 20)
        here.recv(10_000)
    found = (turns[0] - before) / refusals
    over.set()
    thread.join()
    here.close()
    there.close()
    assert found > 0.1  # it was 0.01 before refusals made a pause


def test_joined_rows_are_numbered_anew():
    found = joined([chunk("a", "b"), chunk("c")])
    assert (found.columns["x"], list(found.rows)) == (["a", "b", "c"], [0, 1, 2])
