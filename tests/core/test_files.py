"""Files that appear whole."""

import json
import os
from pathlib import Path

import pytest

from bayesemble.core.files import json_text, replacing, write_json, write_text


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "first")
    write_text(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_json_is_read_back(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, 2.5, None]}


def test_json_is_strict(tmp_path):
    nan, inf = float("nan"), float("inf")
    content = {"a": [1.5, nan, (inf, -inf)], "b": {"c": inf, "d": "NaN"}, "e": True}
    strict = {"a": [1.5, None, [None, None]], "b": {"c": None, "d": "NaN"}, "e": True}
    write_json(tmp_path / "a.json", content)
    for text in ((tmp_path / "a.json").read_text(), json_text(content), json_text(content, indent=None)):
        assert json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")) == strict


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, object())
    assert path.read_text() == "1\n"


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
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
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
