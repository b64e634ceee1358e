import os
import pty
import subprocess
import sys

from helpers import with_tests_on_path

SCRIPT = """
from helpers import quick_fit, small_mlp, table
import bayesemble as be
task = be.Task(small_mlp, be.Categorical())
quick_fit(task, table(), epochs=30, progress=PROGRESS, validation=table(), executor="auto")
"""


def run_in_terminal(progress: bool) -> str:
    """What a person would see on the screen."""
    master, slave = pty.openpty()
    environment = with_tests_on_path() | {"TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", SCRIPT.replace("PROGRESS", str(progress))]
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


def test_a_terminal_shows_epoch_losses_and_the_executor():
    screen = run_in_terminal(progress=True)
    assert "executor:" in screen
    assert "ms a step" in screen
    assert "epoch" in screen
    assert "loss" in screen
    assert "validation" in screen


def test_progress_false_is_silent_in_a_terminal():
    assert run_in_terminal(progress=False) == ""


def test_without_a_terminal_it_is_silent():
    environment = with_tests_on_path()
    command = [sys.executable, "-c", SCRIPT.replace("PROGRESS", "True")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert result.stderr == result.stdout == ""
