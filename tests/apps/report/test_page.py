"""Drawings that stand in a page: colours that follow it, ids of their own, methods that can be switched."""

import re
import sys

import pytest

import bayesemble as be
from bayesemble.apps.report import page

pytest.importorskip("matplotlib")


def line(ax):
    (drawn,) = ax.plot([0, 1], [0, 1], color="#000000")
    drawn.set_gid("method-deep ensemble")
    ax.set_xlabel("input")


def test_black_follows_the_page_and_methods_are_marked():
    text = page.drawing("loss", line)
    assert "#000000" not in text
    assert "currentColor" in text
    assert 'data-method="deep ensemble"' in text
    assert ">input</text>" in text  # words stay words
    assert text.startswith("<svg")


def test_ids_differ_between_drawings_and_references_follow_them():
    one, other = page.drawing("one", line), page.drawing("other", line)
    ids = set(re.findall(r'\bid="([^"]+)"', one))
    assert not ids & set(re.findall(r'\bid="([^"]+)"', other))
    assert set(re.findall(r"url\(#([^)]+)\)", one)) <= ids
    assert set(re.findall(r'xlink:href="#([^"]+)"', one)) <= ids


def test_the_same_drawing_is_the_same_text():
    assert page.drawing("one", line) == page.drawing("one", line)


def test_pages_are_written_in_one_go(tmp_path):
    page.write(tmp_path / "deep" / "page.html", "text")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["page.html"]


def test_a_page_replaces_pages_alone(tmp_path):
    for name in ("table.json", "thesis", "rows.csv"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(be.SettingError, match="is no page by its name"):
            page.write(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "mine"


def test_a_missing_jinja_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(be.MissingExtraError, match=r"bayesemble\[report\]"):
        page.render("landscape.html")


def test_a_dollar_is_drawn_as_a_dollar():
    """A formula of matplotlib that is none, in the name of a method, would end the page."""
    name = r"$\frac{$map"

    def named(ax):
        ax.plot([0, 1], [0, 1], label=name)
        ax.set_title(name)
        ax.set_xticks([0, 1], [name, "b"])
        ax.legend()

    assert page.drawing("one", named).count(f">{name}</text>") == 3
