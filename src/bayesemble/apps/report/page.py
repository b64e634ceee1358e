"""What all pages share: figures as inline drawings that follow the colours of the page, and templates.

Everything that matplotlib draws in black takes the colour of the text around it, so that a dark page needs no second
drawing. What belongs to one method of a comparison is marked with `data-method`, by which the page switches it on and
off. Titles of figures, and how to read them, stand in the templates.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.core.files import write_text
from bayesemble.core.lazy import import_extra
from bayesemble.diagnostics.plots.style import load_pyplot

_TEMPLATES = Path(__file__).parent / "templates"
_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text: small, searchable, and read aloud
    "svg.hashsalt": "bayesemble",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in the name of a method is a dollar
}


def drawing(name: str, draw: Callable[..., Any], *, size: tuple[float, float] = (4.6, 3.4)) -> str:
    """An inline drawing: `draw` is called with the axes, and the name makes its ids unique."""
    load_pyplot()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.subplots()
        for part in (figure, ax):
            part.patch.set_alpha(0)
        draw(ax)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(drawn.getvalue(), name)


def _inline(text: str, name: str) -> str:
    """A drawing as it stands in a page: no header, ids of its own, colours of the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="method-([^"]*)"', r'data-method="\1"', text)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\1{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
    return text.replace("#000000", "currentColor").replace("<svg", '<svg aria-hidden="true"', 1)


def render(template: str, **context: Any) -> str:
    """Fill a template."""
    jinja2 = import_extra("jinja2", "pages need jinja2", "'bayesemble[report]'")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return str(environment.get_template(template).render(**context))


def write(path: Path, text: str) -> None:
    """Write a page under its name in one go; a file that is no page by its name is not replaced."""
    if path.is_file() and path.suffix.lower() not in (".html", ".htm"):
        raise SettingError(f"the page would replace {path}, which is no page by its name; choose another name")
    write_text(path, text)
