"""HTML pages with everything that they need: style, charts, and Plotly's script."""

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from controlplane.web.pages.plotly_script import SCRIPT, plotly_folder

ERROR_BARS = "#7a8594"
"""Colour that is visible on light and dark ground."""

PAGES = Path(__file__).with_name("pages")


def standalone_page(title: str, main: str, figures: Mapping[str, object]) -> str:
    """Return a page of this content.

    `main`: HTML, in which an element with `data-figure` shows the figure of that name.
    """
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    plotly = (plotly_folder() / SCRIPT).read_text(encoding="utf-8")
    values = {
        "title": escape(title),
        "main": main,
        # Nothing in a script or in the data may end the element that it is put into.
        "figures": data.replace("<", "\\u003c"),
        "plotly": plotly.replace("</script", "<\\/script"),
        "css": (PAGES / "report.css").read_text(encoding="utf-8"),
        "js": (PAGES / "report.js").read_text(encoding="utf-8"),
    }
    return filled("page.html", values)


def filled(page: str, values: Mapping[str, str]) -> str:
    """Return a page with each %%name%% replaced by its value; values are not searched."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.sub(r"%%(\w+)%%", lambda match: values[match[1]], text)


def chart_section(name: str, title: str, note: str = "") -> str:
    """Return a section in which the figure of this name is drawn."""
    return (
        f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        f'<div class="chart" id="chart-{name}" data-figure="{name}"></div></section>'
    )
