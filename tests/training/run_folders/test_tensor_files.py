"""Tensors in files: what is read is owned, and files that are damaged are named."""

import os

import pytest
import torch

from bayesemble.core.errors import CheckpointError
from bayesemble.training.run_folders.tensor_files import UNNAMED, read_tensors, write_tensors
from helpers import largest_file

TENSORS = {
    "a": torch.arange(300.0).reshape(3, 100),
    "b": torch.tensor(2.5, dtype=torch.float64),
    "c": torch.empty(0, 4),
}


def test_names_come_back_in_order_each_time(tmp_path):
    """Random numbers are drawn leaf by leaf, so the order of leaves is part of a result."""
    names = [f"{number:02d}" for number in range(40)]
    write_tensors(tmp_path / "t", {name: torch.zeros(1) for name in reversed(names)})
    for content in (*[(tmp_path / "t").read_bytes()] * 5, None):
        assert list(read_tensors(tmp_path / "t", content)) == names


def test_tensors_come_back_aligned_as_those_of_torch_and_are_nobody_elses(tmp_path):
    path = tmp_path / "t"
    write_tensors(path, {name: leaf.requires_grad_() for name, leaf in TENSORS.items()}, {"shared": "a"})
    found, mapped = read_tensors(path, path.read_bytes()), read_tensors(path, None)
    path.write_bytes(bytes(path.stat().st_size))
    for name, leaf in TENSORS.items():
        assert torch.equal(found[name], leaf)
        assert found[name].dtype == leaf.dtype
        assert found[name].data_ptr() % 64 == 0
    assert not torch.equal(mapped["a"], TENSORS["a"]), "which is the risk of a mapped file"


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "t"
    write_tensors(path, TENSORS)
    good = path.read_bytes()
    for bad in (b"", good[:5], good[:40], good[:-1], b"\xff" * 8 + good[8:], good.replace(b"F32", b"F99")):
        path.write_bytes(bad)
        for content in (bad, None):
            with pytest.raises(CheckpointError, match="t is damaged"):
                read_tensors(path, content)


def test_what_the_disk_refuses_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "none" / "t", TENSORS)
    with largest_file(1000), pytest.raises(OSError, match="File too large"):
        write_tensors(tmp_path / "t", TENSORS)


def test_the_name_of_an_unfinished_file_is_known(tmp_path):
    assert UNNAMED.fullmatch(".tmpa1B2c3")
    assert not any(map(UNNAMED.fullmatch, (".tmp", ".tmpa1B2c3d", "xtmpa1B2c3", ".tmpa1B2c3.txt")))
    assert os.listdir(tmp_path) == []
