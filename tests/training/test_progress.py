import logging
import os
import pty
import re
import subprocess
import sys

import pytest

import bayesemble as be
from bayesemble.training import progress
from helpers import quick_fit, small_mlp, table, with_tests_on_path

SCRIPT = """
from helpers import quick_fit, small_mlp, table
import bayesemble as be
task = be.Task(small_mlp, be.Categorical())
for progress in (False, True):
    print("training", progress)
    quick_fit(task, table(), epochs=30, progress=progress, validation=table(), executor="auto")
"""


def run_in_terminal() -> str:
    """What a person would see on the screen."""
    master, slave = pty.openpty()
    environment = with_tests_on_path() | {"TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stderr=slave, stdout=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait() == 0, seen.decode()
    os.close(master)
    return seen.decode()


def test_a_terminal_shows_epoch_losses_and_the_executor_unless_progress_is_false():
    quiet, screen = run_in_terminal().split("training True")
    assert quiet.split() == ["training", "False"]
    assert "executor:" in screen
    assert "numbers a member and step" in screen
    assert "epoch" in screen
    assert "loss" in screen
    assert "validation" in screen


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 3), (1e9, 0)])
def test_without_a_terminal_there_is_a_line_per_epoch_unless_they_are_short(seconds, lines, capfd, monkeypatch):
    assert not sys.stderr.isatty()
    monkeypatch.setattr(progress, "_LINE_SECONDS", seconds)
    task = be.Task(small_mlp, be.Categorical())
    quick_fit(task, table(), epochs=3, progress=True, validation=table(), executor="auto")
    out, told = capfd.readouterr()
    assert out == ""
    assert len(told.splitlines()) == lines
    assert all(re.match(r"epoch [123] of 3: loss [\d.]+ to", line) for line in told.splitlines())
    quick_fit(task, table(), epochs=3, progress=False)
    assert capfd.readouterr() == ("", "")


def test_the_log_has_a_line_for_each_epoch(caplog):
    task = be.Task(small_mlp, be.Categorical())
    with caplog.at_level(logging.INFO, logger="bayesemble"):
        quick_fit(task, table(), epochs=3, validation=table())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert re.fullmatch(r"epoch 2 of 3: loss [\d.]+ to [\d.]+, validation [\d.]+, [\d.e-]+ s", lines[1])
