"""How a process finds its job."""

import socket
import time

import pytest

from bayesemble.core.errors import ExecutionError
from bayesemble.execute.ranks import joining

JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def test_a_process_without_a_job_is_the_first(monkeypatch):
    for name in JOB:
        monkeypatch.delenv(name, raising=False)
    assert not joining.is_started()
    assert joining.rank_here() == 0


def test_a_rank_knows_itself_by_the_variables_of_torchrun(monkeypatch):
    for name, value in zip(JOB, ("3", "4", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert joining.is_started()
    assert joining.rank_here() == 3


def test_a_rank_whose_others_do_not_come_gives_up_in_a_sentence(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in zip(JOB, ("0", "2", "127.0.0.1", str(port)), strict=True):
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    with pytest.raises(ExecutionError, match="rank 0 of 2 did not meet the others within 1 s"):
        joining.join(1.0, "gloo")
    assert time.monotonic() - start < 30
