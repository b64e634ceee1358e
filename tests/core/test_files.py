"""Files that appear whole, and files that carry a checksum."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesemble.core.errors import CheckpointError, DataError
from bayesemble.core.files import (
    CHECKSUM,
    UNSEALED,
    is_gone,
    json_text,
    make_folder,
    parse_json,
    process_tag,
    read_json,
    read_sealed,
    replacing,
    seal,
    sealed_json,
    understood,
    write_json,
    write_text,
)


@pytest.fixture(scope="module")
def gone() -> str:
    """The mark of a process that was."""
    tag = "import bayesemble.core.files as f; print(f.process_tag())"
    return subprocess.run([sys.executable, "-c", tag], capture_output=True, text=True, check=True).stdout.strip()


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "first")
    write_text(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_json_is_read_back(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"b": [1, 2.5, None]}
    assert list(json.loads((tmp_path / "a.json").read_text())) == [CHECKSUM, "b"]


def test_json_is_strict(tmp_path):
    nan, inf = float("nan"), float("inf")
    content = {"a": [1.5, nan, (inf, -inf)], "b": {"c": inf, "d": "NaN"}, "e": True}
    strict = {"a": [1.5, None, [None, None]], "b": {"c": None, "d": "NaN"}, "e": True}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == strict
    for text in (json_text(content), json_text(content, indent=None)):
        assert json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")) == strict


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}


def test_a_text_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path, done, flush, replace = tmp_path / "a.txt", [], os.fsync, Path.replace

    def flushed(handle):
        done.append(("flush", os.fstat(handle).st_size))
        flush(handle)

    def replaced(old, new):
        done.append(("replace", new.name))
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", replaced)
    write_text(path, "twelve bytes")
    assert done == [("flush", 12), ("replace", "a.txt")]


def test_a_disk_that_refuses_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"a\.txt cannot be written: No space left on device \(.* MB are free"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"], "and no trace of the new one"


def test_a_folder_is_flushed_file_by_file_before_it_gets_its_name(tmp_path, monkeypatch):
    done, flush = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.fstat(handle).st_size), flush(handle)))
    with replacing(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "a").write_bytes(b"12345")
        (temporary / "b").write_bytes(b"1234567")
        assert not (tmp_path / "folder").exists()
    assert sorted(done[:2]) == [5, 7]
    assert len(done) == 3, "the names in it as well"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "folder"]


def test_an_error_leaves_no_half_written_folder(tmp_path):
    def half_way():
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / "a").write_bytes(b"12345")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        half_way()
    assert not list(tmp_path.iterdir())


def test_what_the_system_refuses_names_the_path_in_the_error_that_is_asked_for(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"file/folder cannot be written: Not a directory"):
        make_folder(tmp_path / "file" / "folder")
    with pytest.raises(CheckpointError, match="file cannot be written: File exists"):
        make_folder(tmp_path / "file")
    with (
        pytest.raises(DataError, match=r"none/a\.csv cannot be written: No such file"),
        replacing(tmp_path / "none" / "a.csv", DataError) as temporary,
    ):
        temporary.write_text("new")


def test_processes_of_this_machine_are_known_to_be_gone(gone):
    host = process_tag().partition("@")[2]
    assert is_gone(gone)
    for alive in (process_tag(), f"1@{host}", f"{gone.partition('@')[0]}@another.machine", f"x@{host}", "", "1"):
        assert not is_gone(alive), alive


def test_what_a_killed_process_left_goes_when_the_same_file_is_written_and_nothing_else(tmp_path, gone):
    kept = [f".writing-b.txt-{gone}", ".writing-a.txt-mine", f".writing-a.txt-1@{gone.partition('@')[2]}", ".a.txt"]
    for name in (*kept, f".writing-a.txt-{gone}"):
        (tmp_path / name).write_text("half")
    folder, link = tmp_path / f".writing-c.txt-{gone}", tmp_path / f".writing-d.txt-{gone}"
    folder.mkdir()
    link.symlink_to(tmp_path / ".a.txt")
    for name in "acd":
        write_text(tmp_path / f"{name}.txt", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, folder.name, link.name, "a.txt", "c.txt", "d.txt"}


def test_every_flipped_bit_and_every_lost_byte_is_refused_by_name(tmp_path):
    path = tmp_path / "table.json"
    write_json(path, {"mean": 12.5, "name": "größer", "list": [1, {"checksum": UNSEALED}]})
    good = path.read_bytes()
    for place in range(len(good)):
        for bad in (good[:place], good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :]):
            path.write_bytes(bad)
            with pytest.raises(CheckpointError, match=r"table\.json is damaged"):
                read_json(path)
    path.write_bytes(good)
    assert read_json(path)["mean"] == 12.5


def test_an_edit_by_hand_is_told_so(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"nll": 2.5})
    path.write_text(path.read_text().replace("2.5", "0.1"))
    with pytest.raises(CheckpointError, match=r"edited it on purpose: it is a record .* takes no edits"):
        read_json(path)
    path.write_text('{"nll": 0.1}')
    with pytest.raises(CheckpointError, match="not of this library: it has no checksum"):
        read_json(path)
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_json(tmp_path)


def test_any_file_with_room_for_a_checksum_is_sealed(tmp_path):
    path = tmp_path / "tensors"
    content = b'\x08\xff{"x":{"checksum":"' + UNSEALED.encode() + b'"}}' + bytes(range(256)) * 100
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="tensors is damaged"):
        read_sealed(path)
    seal(path)
    sealed = read_sealed(path)
    assert len(sealed) == len(content)
    assert sealed == path.read_bytes() != content
    path.write_bytes(sealed[:-1] + b"x")
    with pytest.raises(CheckpointError, match="tensors is damaged"):
        read_sealed(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a":' + "[" * 100_000, "1" * 5000],
)
def test_what_is_no_object_of_strict_json_is_refused_by_name(text):
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        parse_json(Path("run.json"), text.encode())


def test_text_that_is_not_unicode_is_refused_by_name():
    with pytest.raises(CheckpointError, match=r"run\.json is damaged: 'utf-8' codec"):
        parse_json(Path("run.json"), b'{"a": "\xff"}')


@pytest.mark.parametrize(
    "error", [KeyError("a"), TypeError("a"), OverflowError("a"), RecursionError("a"), DataError("a")]
)
def test_what_makes_no_sense_is_laid_to_the_file(error):
    with pytest.raises(CheckpointError, match=r"a\.json does not fit: .*a"), understood("a.json", "does not fit"):
        raise error


def test_a_checksum_does_not_depend_on_what_else_looks_like_one():
    assert json.loads(sealed_json({"text": UNSEALED}))["text"] == UNSEALED


def test_a_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match="is a pipe or a device"):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
