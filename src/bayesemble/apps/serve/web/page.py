"""The pages of the service: whole in themselves, in the style of reports, filled by scripts from `/state`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from bayesemble import __version__

POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TEMPLATES = Path(__file__).parent / "templates"


def live_page() -> str:
    """The live page of all models."""
    return _page("live")


def api_page() -> str:
    """The description of the service as a person reads it."""
    return _page("api")


@cache
def _page(name: str) -> str:
    style = (files("bayesemble.apps.report") / "templates" / "style.css").read_text(encoding="utf-8")
    parts = {"style": style, "own": _read("live.css"), "script": _read("common.js") + _read(f"{name}.js")}
    page = _read(f"{name}.html")
    for part, text in (parts | {"version": __version__}).items():
        page = page.replace(f"<!--{part}-->", text).replace(f"/*{part}*/", text)
    return page


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
