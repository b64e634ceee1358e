"""Files that appear whole."""

import json

import pytest

from bayesemble.core.files import write_json, write_text


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "first")
    write_text(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_json_is_read_back(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, 2.5, None]}


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, object())
    assert path.read_text() == "1\n"
