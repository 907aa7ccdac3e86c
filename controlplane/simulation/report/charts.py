"""Charts of a study's report as Plotly's {data, layout}; deterministic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.report.standalone import ERROR_BARS
from controlplane.simulation.report.summary import LEVELS, Summary, Timeline
from controlplane.web.pages.gantt import LANE_PX, PALETTE, colour, plain
from policies.contract.snapshot import Floats

HOUR_S = 3600.0
FRACTIONS = {"tickformat": ".0%", "range": [0, 1.02]}
Figure = dict[str, Any]
BARS: Figure = {
    "type": "bar", "orientation": "h", "textposition": "inside", "insidetextanchor": "start",
    "constraintext": "inside", "textangle": 0, "hoverinfo": "text+y",
}  # fmt: skip
LANES: Figure = {"type": "category", "categoryorder": "array", "automargin": True}
TIMELINE: Figure = {
    "barmode": "overlay", "bargap": 0.25, "showlegend": False, "hovermode": "closest",
    "uniformtext": {"mode": "hide", "minsize": 9},
    "xaxis": {"title": {"text": "hours"}, "rangemode": "tozero"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart: element id, heading, note and figure."""

    id: str
    title: str
    note: str
    figure: Figure


def charts_of(summary: Summary) -> list[Chart]:
    """Charts but for the timelines."""
    policies, seeds = summary.policies, summary.study.seeds
    first = f"seed {seeds[0]}"
    over, error = first, ""
    if len(seeds) > 1:
        over = f"mean over {len(seeds)} seeds"
        error = ", with the 95% confidence interval of the total"
    jct = {p.choice.label: _mean_by_level(p.jct_s) for p in policies}
    slow = {p.choice.label: _mean_by_level(p.bounded_slowdown) for p in policies}
    completed = f"part of the jobs completed within, {over}"
    ratio = "times the best run time"
    return [
        Chart("cost", "Cost", f"{over}{error}", _costs(summary)),
        Chart("jct", "Completion time", completed, _distribution(jct, "hours", HOUR_S)),
        Chart(
            "slowdown",
            "Bounded slowdown",
            f"part of the jobs below, {over}",
            _distribution(slow, ratio),
        ),
        Chart("gpus", "GPUs in use", first, _in_use(summary)),
    ]


def timelines_of(summary: Summary) -> list[Chart]:
    """Timelines by policy, in the first seed."""
    shown = [(p.choice.label, p.timeline) for p in summary.policies if p.timeline is not None]
    return [
        Chart(f"timeline-{i}", label, _left_out(t), _stays(t)) for i, (label, t) in enumerate(shown)
    ]


def _mean_by_level(by_seed: Mapping[int, Floats]) -> Floats:
    """Mean of the seeds at each level; seeds without figures (nan) do not count."""
    known = [values for values in by_seed.values() if np.isfinite(values).all()]
    return np.array(np.mean(known, axis=0) if known else ())


def _costs(summary: Summary) -> Figure:
    means = [p.intervals for p in summary.policies]
    parts = (
        ("energy_cost", "energy", PALETTE[0]),
        ("unfinished_cost", "unfinished jobs, at least", PALETTE[7]),
        ("tardiness_cost", "tardiness", PALETTE[2]),
    )
    data: list[Figure] = [
        {
            "type": "bar",
            "name": words,
            "x": [plain(p.choice.label) for p in summary.policies],
            "y": [_number(m[name].mean) for m in means],
            "marker": {"color": tone},
        }
        for name, words, tone in parts
    ]
    halves = [m["total_cost"].half_width or 0.0 for m in means]
    data[-1]["error_y"] = {"type": "data", "array": halves, "color": ERROR_BARS, "visible": True}
    currency = {"title": {"text": plain(summary.study.scenario.currency)}, "rangemode": "tozero"}
    xaxis = {"type": "category", "automargin": True}
    return {"data": data, "layout": {"barmode": "stack", "yaxis": currency, "xaxis": xaxis}}


def _distribution(by_label: Mapping[str, Floats], unit: str, scale: float = 1.0) -> Figure:
    data = [
        _line(i, label, [_number(v / scale) for v in values.tolist()], LEVELS.tolist())
        for i, (label, values) in enumerate(by_label.items())
    ]
    axis: Figure = {"title": {"text": unit}}
    if all(values.min() > 0.0 for values in by_label.values() if len(values)):
        axis |= {"type": "log", "dtick": "D2"}
    return {"data": data, "layout": {"xaxis": axis, "yaxis": FRACTIONS}}


def _in_use(summary: Summary) -> Figure:
    data = []
    for i, policy in enumerate(summary.policies):
        if (t := policy.timeline) is not None:
            parts = [_number(v / max(1, t.gpus)) for v in t.in_use.tolist()]
            hours = [round(s / HOUR_S, 6) for s in t.edges_s[:-1].tolist()]
            data.append(_line(i, policy.choice.label, hours, parts, shape="hv"))
    layout = {"xaxis": {"title": {"text": "hours"}}, "yaxis": FRACTIONS}
    return {"data": data, "layout": layout}


def _stays(timeline: Timeline) -> Figure:
    lanes, stays = [plain(lane) for lane in timeline.lanes], timeline.stays
    hover = [f"<b>{plain(j)}</b><br>{a:,.0f} s to {b:,.0f} s" for _, j, a, b in stays]
    bars = {
        **BARS,
        "y": [lanes[lane] for lane, _, _, _ in stays],
        "base": [round(from_s / HOUR_S, 6) for _, _, from_s, _ in stays],
        "x": [round((to_s - from_s) / HOUR_S, 6) for _, _, from_s, to_s in stays],
        "text": [plain(job) for _, job, _, _ in stays],
        "hovertext": hover,
        "marker": {"color": [colour(job) for _, job, _, _ in stays], "line": {"width": 0.5}},
    }
    yaxis = {"categoryarray": list(reversed(lanes)), "range": [-0.5, len(lanes) - 0.5], **LANES}
    height = 100 + LANE_PX * max(1, len(lanes))
    return {"data": [bars], "layout": {**TIMELINE, "height": height, "yaxis": yaxis}}


def _left_out(timeline: Timeline) -> str:
    counts = ((timeline.hidden_lanes, "GPUs"), (timeline.hidden_stays, "later stays"))
    hidden = [f"{count:,} {words}" for count, words in counts if count]
    return f"not shown: {' and '.join(hidden)}" if hidden else ""


def _line(
    i: int, label: str, x: Sequence[float | None], y: Sequence[float | None], **style: str
) -> Figure:
    line = {"color": PALETTE[i % len(PALETTE)], "width": 2, **style}
    return {"type": "scatter", "mode": "lines", "name": plain(label), "x": x, "y": y, "line": line}


def _number(value: float) -> float | None:
    """Round to six digits; None for nan, which JSON lacks."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
