"""Runs side by side: the same results, the board, and processes that are ended from outside."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bayesemble as be
from bayesemble.apps.compare.job import Job
from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.apps.compare.pool import Board, perform_all
from bayesemble.apps.compare.request import Request
from bayesemble.methods import METHODS

# A file that a person may have written; each process has to load it.
VANISHING = """
import os
from dataclasses import dataclass

import bayesemble as be


@dataclass(frozen=True, kw_only=True)
class Vanishing(be.DeepEnsemble):
    '''Ends its process, as the kernel does when memory is short; but never that of the tests.'''

    tests: int = 0

    def step(self, state, batch, context):
        assert os.getpid() != self.tests
        os._exit(1)


be.METHODS["vanishing"] = Vanishing
"""


def job(label: str, method: be.DeepEnsemble | be.MCDropout, root: Path) -> Job:
    return Job(label, Request(data="wine").source(method, seed=0, epochs=2), root)


def test_a_process_that_is_ended_from_outside_is_a_failure_of_its_run_alone(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "vanishing_method", raising=False)
    monkeypatch.setitem(METHODS, "vanishing", None)  # so that it is gone afterwards
    (tmp_path / "vanishing_method.py").write_text(VANISHING)
    plugins = [str(tmp_path / "vanishing_method.py")]
    load_plugins(plugins)
    jobs = [
        job("vanishing", METHODS["vanishing"](num_members=2, tests=os.getpid()), tmp_path),
        job("good", be.DeepEnsemble(num_members=2), tmp_path),
        job("masks", be.MCDropout(num_members=2), tmp_path),
    ]
    heard = []
    results = perform_all(jobs, 2, lambda job, result: heard.append(job.label), plugins)
    assert [result.label for result in results] == ["vanishing", "good", "masks"], "in the order of the jobs"
    assert sorted(heard) == sorted(result.label for result in results)
    assert results[0].failure == "its process was ended from outside, most likely for want of memory"
    alone = perform_all([replace(one, root=tmp_path / "alone") for one in jobs[1:]], 1, lambda job, result: None)
    assert [one.scores for one in results[1:]] == [one.scores for one in alone], "side by side or not, to the last bit"


class Forgetful:
    """An engine in this process that loses a worker after each result, and counts what it was given."""

    def __init__(self):
        self.given = []

    def __call__(self, function, tasks, processes):
        self.given.append([task[1].label for task in tasks])
        yield function(*tasks[0])
        if len(tasks) > 1:
            function(*tasks[1])  # it is finished, but its result gets lost on the way
            raise ConnectionError("a worker is gone")


def test_an_engine_that_loses_workers_is_asked_again_for_what_is_not_finished(tmp_path):
    jobs = [job(label, be.DeepEnsemble(num_members=1), tmp_path) for label in "abcd"]
    engine, told = Forgetful(), []
    results = perform_all(jobs, 1, lambda job, result: told.append(job.label), retries=0, engine=engine)
    assert told == ["a", "b", "c", "d"]
    assert [one.failure for one in results[:2]] == [None] * 2
    assert results[2].failure == (
        "the engine lost it: ConnectionError: a worker is gone; the same command goes on with it"
    )
    more = [job("e", be.DeepEnsemble(num_members=1), tmp_path)]
    again = perform_all(jobs + more, 1, lambda job, result: None, retries=1, engine=engine)
    assert engine.given == [["a", "b", "c", "d"], ["c", "d", "e"], ["e"]], "what is finished is not given again"
    assert [one.failure for one in again] == [None] * 5
    assert [one.scores for one in again[:2]] == [one.scores for one in results[:2]]


class Screen:
    """Stands for the bars of rich."""

    def __init__(self):
        self.lines = {}

    def add_task(self, words, total, completed=0):
        self.lines[words] = (completed, total)
        return words

    def update(self, line, completed):
        self.lines[line] = (completed, self.lines[line][1])

    def remove_task(self, line):
        del self.lines[line]


def test_the_board_has_a_line_for_each_run_under_way(tmp_path):
    jobs = [job("a", be.DeepEnsemble(), tmp_path), job("b", be.DeepEnsemble(), tmp_path)]
    jobs[0].folder.mkdir(parents=True)
    (jobs[0].folder / "progress").write_text("7")
    board = Board(jobs, shown=False)
    board.bar = Screen()
    board.look()
    assert board.bar.lines == {}, "what a killed run left is forgotten"
    for epoch in (0, 1):
        (jobs[0].folder / "progress").write_text(str(epoch))
        board.look()
        assert board.bar.lines == {"a, seed 1": (epoch, 2)}
    (jobs[0].folder / "progress").unlink()
    board.look()
    assert board.bar.lines == {}


def test_the_board_is_silent_where_there_is_no_terminal(tmp_path, capsys):
    with Board([job("a", be.DeepEnsemble(), tmp_path)], shown=True) as board:
        board.count()
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_on_a_terminal_the_bars_and_the_time_left_are_shown(tmp_path):
    import pty
    import subprocess

    ours, theirs = pty.openpty()
    options = ["--data", "two_moons", "--methods", "map", "--epochs", "150", "--seeds", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesemble", "compare", *options, "--jobs", "1", "--json"],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            break
    assert process.wait() == 0
    os.close(ours)
    text = shown.decode()
    assert "all runs" in text
    assert "map, seed 1" in text
    assert "/150" in text
    assert "0:00:" in text, "the time that is left"
