"""HTML pages that hold everything they need: style, charts, and Plotly's script."""

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
    """Page of this content; an element with `data-figure` shows the figure of that name."""
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    css, js = ((PAGES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # Nothing in a script or in the data may end the element that it is put into.
    plotly = (
        (plotly_folder() / SCRIPT).read_text(encoding="utf-8").replace("</script", "<\\/script")
    )
    values = {"title": escape(title), "main": main, "figures": data, "plotly": plotly}
    return filled("page.html", {**values, "css": css, "js": js})


def filled(page: str, values: Mapping[str, str]) -> str:
    """Replace every %%name%% of the page once; inserted text is not searched."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.sub(r"%%(\w+)%%", lambda found: values[found[1]], text)


def chart_section(name: str, title: str, note: str = "") -> str:
    """A section in which the figure of this name is drawn."""
    return (
        f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        f'<div class="chart" id="chart-{name}" data-figure="{name}"></div></section>'
    )
