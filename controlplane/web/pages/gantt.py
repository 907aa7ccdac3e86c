"""Timeline chart: bars in lanes become the data of a Plotly figure. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

PALETTE = (
    "#2f7f93",
    "#5b74c4",
    "#b0772e",
    "#4f8f5a",
    "#a05a8c",
    "#8a6d4b",
    "#3f8fc0",
    "#b4605a",
    "#6f7f3a",
    "#7a68b8",
)
"""Calm colours with enough contrast on light and dark ground; a job keeps its colour."""

OTHERS = "#8f9bac"
"""Colour of other teams' jobs."""

LANE_PX = 34
"""Height of a lane in pixels."""

BAR_HEIGHT = 0.72
"""Height of a bar, as a fraction of its lane."""

GAP = 0.04
"""Gap between the rows of a lane, as a fraction of it: two jobs may have the same colour."""

LONGEST_LABEL = 40
"""Most characters of a lane's name on the axis; the whole name is shown under the pointer."""

KINDS = ("ran", "running", "profiling", "planned", "coming")
"""Kinds of bars, in the order of their drawing."""

WORDS = {"planned": "expected", "profiling": "measured its kind", "coming": "expected to run"}
"""Kinds that people know by other words."""

OPACITY = {"planned": 0.35, "coming": 0.6}
"""Kinds that are not drawn opaque."""

HATCHED = {"profiling": "\\", "coming": "/"}
"""Kinds that are hatched, with Plotly's pattern."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Job on a GPU (`lane`), in epoch seconds.

    `key`: gives the colour; "" for a job of another team. `hover`: more text under the pointer. A
    bar that shares its GPU has the `row`, from 0 at the top, of the lane's `rows`.
    """

    lane: str
    key: str
    name: str
    from_s: float
    to_s: float
    kind: str
    hover: str = ""
    row: int = 0
    rows: int = 1


def plain(text: str) -> str:
    """Return a text with entities, so that Plotly makes no links and markup of it.

    Quotes stay, as Plotly knows no entities for them.
    """
    return escape(text, quote=False)


def row_of(slot: int, share: float) -> tuple[int, int]:
    """Return (row, rows) for this slot and share: as many rows as such shares fit on a GPU."""
    rows = round(1.0 / share) if share > 0.0 else 1
    return slot, max(rows, slot + 1)


def figure(
    bars: Sequence[Bar], lanes: Sequence[str], since_s: float, until_s: float, now_s: float
) -> dict[str, Any]:
    """Return Plotly's {data, layout}: a trace per kind of bar, lanes downward, a line at now."""
    now = _moment(now_s)
    traces = []
    for kind in KINDS:
        traces.append(_trace(kind, [bar for bar in bars if bar.kind == kind]))
    return {
        "data": traces,
        "layout": {
            "barmode": "overlay",
            "bargap": 1.0 - BAR_HEIGHT,
            "height": 110 + LANE_PX * max(1, len(lanes)),
            "showlegend": False,
            "hovermode": "closest",
            "margin": {"l": 10, "r": 20, "t": 10, "b": 50},
            "xaxis": {
                "type": "date",
                "range": [_moment(since_s), _moment(until_s)],
                "title": {"text": "UTC"},
            },
            # The range keeps lanes without work on the chart.
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": list(reversed(lanes)),
                "range": [-0.5, len(lanes) - 0.5],
                "tickmode": "array",
                "tickvals": list(lanes),
                "ticktext": [plain(_label(lane)) for lane in lanes],
                "automargin": True,
            },
            "uniformtext": {"mode": "hide", "minsize": 10},
            "shapes": [
                {
                    "type": "line",
                    "x0": now,
                    "x1": now,
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "line": {"width": 1.5, "dash": "dot"},
                }
            ],
        },
    }


def colour(key: str) -> str:
    """Return the colour of a job, the same on every page and day."""
    if not key:
        return OTHERS
    first_byte = hashlib.sha256(key.encode()).digest()[0]
    return PALETTE[first_byte % len(PALETTE)]


def _trace(kind: str, bars: Sequence[Bar]) -> dict[str, Any]:
    """Return Plotly's trace of the bars of one kind."""
    # 1. Colour and pattern.
    colours = [colour(bar.key) for bar in bars]
    marker: dict[str, Any] = {"color": colours, "opacity": OPACITY.get(kind, 1.0)}
    if kind in HATCHED:
        marker["pattern"] = {"shape": HATCHED[kind], "size": 6, "solidity": 0.35}
    if kind == "running":
        marker["line"] = {"width": 1.5, "color": colours}

    # 2. Height and place of each bar in its lane, whose rows go downward from BAR_HEIGHT / 2.
    widths = []
    offsets = []
    for bar in bars:
        row_height = BAR_HEIGHT / bar.rows
        gap = GAP if bar.rows > 1 else 0.0
        widths.append(row_height - gap)
        offsets.append(BAR_HEIGHT / 2 - (bar.row + 1) * row_height)

    # 3. A bar of less than a millisecond would not be drawn.
    lengths_ms = [max(1.0, 1000 * (bar.to_s - bar.from_s)) for bar in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [bar.lane for bar in bars],
        "width": widths,
        "offset": offsets,
        "base": [_moment(bar.from_s) for bar in bars],
        "x": lengths_ms,
        "text": ["" if kind == "planned" else plain(bar.name) for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "start",
        "constraintext": "inside",
        "cliponaxis": True,
        "textangle": 0,
        "hovertext": [_hover(bar) for bar in bars],
        "hoverinfo": "text",
        "marker": marker,
    }


def _label(lane: str) -> str:
    """Return the name of a lane, "node · GPU"; in a long one the node's is cut in the middle."""
    if len(lane) <= LONGEST_LABEL:
        return lane
    node, dot, gpu = lane.rpartition(" · ")
    room = max(8, LONGEST_LABEL - len(dot + gpu) - 1)
    if len(node) <= room + 1:
        return lane
    end_length = room // 3
    begin = node[: room - end_length]
    end = node[len(node) - end_length :]
    return f"{begin}…{end}{dot}{gpu}"


def _hover(bar: Bar) -> str:
    """Return the text under the pointer: job, lane, kind with its times, and the bar's own."""
    words = WORDS.get(bar.kind, bar.kind)
    begin = datetime.fromtimestamp(bar.from_s, UTC)
    end = datetime.fromtimestamp(bar.to_s, UTC)
    lines = [
        f"<b>{plain(bar.name)}</b>",
        plain(bar.lane),
        f"{words}, {begin:%H:%M:%S} to {end:%H:%M:%S}",
        plain(bar.hover),
    ]
    return "<br>".join(line for line in lines if line)


def _moment(seconds: float) -> str:
    """Return a time for Plotly, in UTC with milliseconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3]
