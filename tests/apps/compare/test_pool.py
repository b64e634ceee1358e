"""Runs side by side: the same results, the board, and processes that are ended from outside."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import bayesemble as be
from bayesemble.apps.compare.job import Job
from bayesemble.apps.compare.pool import Board, perform_all
from bayesemble.apps.compare.source import Source
from bayesemble.core import settings


@dataclass(frozen=True, kw_only=True)
class Vanishing(be.DeepEnsemble):
    """Ends its process, as the kernel does when memory is short; but never that of the tests."""

    tests: int = 0

    def step(self, state, batch, task, executor, clock):
        assert os.getpid() != self.tests
        os._exit(1)


def job(label: str, method: be.DeepEnsemble | be.MCDropout, root: Path) -> Job:
    dropout = 0.1 if isinstance(method, be.MCDropout) else 0.0
    source = Source("wine", 0, method=settings.dump(method), epochs=2, batch_size=64, dropout=dropout)
    return Job(label, method, source, root, label)


def test_a_process_that_is_ended_from_outside_is_a_failure_of_its_run_alone(tmp_path):
    # The processes do not know this file, so what is defined here is sent to them as it is.
    pytest.importorskip("cloudpickle").register_pickle_by_value(sys.modules[__name__])
    jobs = [
        job("vanishing", Vanishing(num_members=2, tests=os.getpid()), tmp_path),
        job("good", be.DeepEnsemble(num_members=2), tmp_path),
        job("masks", be.MCDropout(num_members=2), tmp_path),
    ]
    heard = []
    results = perform_all(jobs, 2, lambda job, result: heard.append(job.label))
    assert [result.label for result in results] == ["vanishing", "good", "masks"], "in the order of the jobs"
    assert sorted(heard) == sorted(result.label for result in results)
    assert results[0].failure == "its process was ended from outside, most likely for want of memory"
    alone = perform_all([replace(one, root=tmp_path / "alone") for one in jobs[1:]], 1, lambda job, result: None)
    assert [one.scores for one in results[1:]] == [one.scores for one in alone], "side by side or not, to the last bit"


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
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "progress").write_text("7")
    board = Board(jobs, shown=False)
    board.bar = Screen()
    board.look()
    assert board.bar.lines == {}, "what a killed run left is forgotten"
    for epoch in (0, 1):
        (tmp_path / "a" / "progress").write_text(str(epoch))
        board.look()
        assert board.bar.lines == {"a, seed 1": (epoch, 2)}
    (tmp_path / "a" / "progress").unlink()
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
    code = "from bayesemble.apps.compare.compare import compare; import sys; "
    code += "compare('two_moons', 'map', epochs=60, seeds=1, out=sys.argv[1])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
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
    assert "/60" in text
    assert "0:00:" in text, "the time that is left"
