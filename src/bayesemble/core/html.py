"""How objects look in a notebook: a small table of facts."""

from collections.abc import Mapping
from html import escape
from typing import Any


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """A table of names and values in HTML, in the style of whatever page it stands on."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    head = f'<thead><tr><th colspan="2" style="text-align: left">{escape(title)}</th></tr></thead>'
    return f"<table>{head}<tbody>{rows}</tbody></table>"
