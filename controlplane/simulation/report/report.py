"""A study's report: one self-contained HTML file, the same for the same study."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from math import isfinite, nan
from typing import TypeVar

from controlplane.simulation.report.charts import Chart, charts_of, timelines_of
from controlplane.simulation.report.metrics import (
    METRICS,
    PART,
    Interval,
    Metric,
    fewest_unfinished,
)
from controlplane.simulation.report.standalone import chart_section, filled, standalone_page
from controlplane.simulation.report.summary import PolicySummary, Summary

T = TypeVar("T")

LISTED = 50
"""Bad lines, unplaceable jobs and failed runs that the page lists; it counts them all."""

_UNITS_S = ((86_400.0, 3.0, "d"), (3600.0, 2.0, "h"), (60.0, 2.0, "min"))
"""(seconds, from how many of them on, unit)."""


def report_of(summary: Summary) -> str:
    """The page."""
    charts, timelines = charts_of(summary), timelines_of(summary)
    sections = "".join(chart_section(c.id, c.title, c.note) for c in charts)
    main = filled(
        "report.html",
        {
            "title": escape(summary.study.name),
            "lead": escape(_lead(summary)),
            "notices": "".join(_notices(summary)),
            "table_note": _table_note(summary),
            "table": _table(summary),
            "charts": f'<div class="charts">{sections}</div>' if summary.workloads else "",
            "timelines": _timelines(timelines),
            "facts": _facts(summary),
            "lists": "".join(_lists(summary)),
        },
    )
    figures = {c.id: {"note": c.note, "figure": c.figure} for c in (*charts, *timelines)}
    return standalone_page(summary.study.name, main, figures)


def _lead(summary: Summary) -> str:
    study = summary.study
    policies = f"{len(study.policies)} {'policies' if len(study.policies) > 1 else 'policy'}"
    seeds = f"{len(study.seeds)} {'seeds' if len(study.seeds) > 1 else 'seed'}"
    jobs = sorted({w.jobs for w in summary.workloads.values()})
    counted = f" of {_span(jobs)} jobs" if jobs else ""
    nodes, gpus = len(study.scenario.nodes), _gpus(summary)
    return f"{policies}, {seeds}{counted} on {nodes:,} nodes with {gpus:,} GPUs"


def _gpus(summary: Summary) -> int:
    return sum(len(node.devices) for node in summary.study.scenario.nodes)


def _span(counts: list[int]) -> str:
    return f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"


def _notices(summary: Summary) -> Iterable[str]:
    if summary.failures:
        yield (
            f'<p class="notice bad">{len(summary.failures)} of {_runs(summary)} runs failed; they'
            " are in none of the figures.</p>"
        )
    never = max((len(jobs) for jobs in summary.unplaceable.values()), default=0)
    if never:
        yield (
            f'<p class="notice">{never:,} jobs can run on no node; they are listed below and in'
            " none of the averages.</p>"
        )
    if skipped := max((len(w.skipped) for w in summary.workloads.values()), default=0):
        yield (
            f'<p class="notice">{skipped:,} lines of the workload were skipped; they are listed'
            " below.</p>"
        )
    for policy in summary.policies:
        if left := max(map(len, policy.unfinished.values()), default=0):
            yield (
                f'<p class="notice bad">{escape(policy.choice.label)} left {left:,} jobs'
                " unfinished: the least they would still cost is in its total cost, and no figure"
                " of it is marked best unless all leave as many.</p>"
            )
    if len({frozenset(p.runs) for p in summary.policies}) > 1:
        yield (
            '<p class="notice">Policies have unlike seeds: their means are not over the same'
            " jobs.</p>"
        )


def _runs(summary: Summary) -> int:
    return len(summary.study.policies) * len(summary.study.seeds)


def _table_note(summary: Summary) -> str:
    if len(summary.study.seeds) == 1:
        return "One seed: no confidence intervals. The best of each row is marked."
    return (
        "Means over seeds with 95% confidence intervals (Student's t). The best mean of each row is"
        " marked."
    )


def _table(summary: Summary) -> str:
    shown = [policy for policy in summary.policies if policy.runs]
    found = [policy.intervals for policy in shown]
    heads = "".join(f'<th scope="col">{escape(p.choice.label)}</th>' for p in shown)
    may_be_best = fewest_unfinished([intervals["unfinished"].mean for intervals in found])
    rows = []
    for metric in METRICS:
        values = [intervals[metric.name] for intervals in found]
        if not metric.always and not any(isfinite(v.mean) for v in values):
            continue
        best = _best(metric, values, may_be_best)
        more = [_versus(metric, policy, shown) for policy in shown]
        cells = "".join(
            _cell(metric, v, is_best, beside)
            for v, is_best, beside in zip(values, best, more, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(_words(metric, summary))}</th>{cells}</tr>')
    return (
        "<table><thead><tr><th"
        f' scope="col"></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _words(metric: Metric, summary: Summary) -> str:
    unit = metric.unit.format(currency=summary.study.scenario.currency)
    return f"{metric.words}, {unit}" if unit and unit not in {"s", PART} else metric.words


def _best(metric: Metric, values: list[Interval], may_be_best: list[bool]) -> list[bool]:
    """Return which means are the best of those that may be, unless all are alike."""
    if not metric.better or len({v.mean for v in values if isfinite(v.mean)}) < 2:
        return [False] * len(values)
    known = [v.mean for v, may in zip(values, may_be_best, strict=True) if may and isfinite(v.mean)]
    best = (min if metric.better == "less" else max)(known, default=nan)
    return [may and v.mean == best for v, may in zip(values, may_be_best, strict=True)]


def _versus(metric: Metric, policy: PolicySummary, shown: list[PolicySummary]) -> str:
    """Beside the total cost: by how much it is above or below the first policy's, seed by seed."""
    if metric.name != "total_cost" or policy is shown[0]:
        return ""
    found = policy.against(shown[0])
    if not isfinite(found.mean):
        return ""
    half = "" if found.half_width is None else f" ± {100 * found.half_width:.1f}"
    return (
        f'<br><span class="versus">{100 * found.mean:+.1f}{half}% against'
        f" {escape(shown[0].choice.label)}</span>"
    )


def _cell(metric: Metric, value: Interval, best: bool, more: str) -> str:
    half = (
        ""
        if value.half_width is None
        else f' <span class="half">± {worded(metric, value.half_width, value.mean)}</span>'
    )
    return f"<td{' class=best' if best else ''}>{worded(metric, value.mean)}{half}{more}</td>"


def worded(metric: Metric, value: float, like: float | None = None) -> str:
    """A figure in words; times in the unit that suits `like` (default: the value)."""
    if not isfinite(value):
        return "–"
    if metric.name == "utilisation" or metric.unit == PART:
        return f"{100 * value:.1f}%"
    if metric.unit != "s":
        return _digits(value)
    size = abs(value if like is None else like)
    scale, unit = next(((s, u) for s, least, u in _UNITS_S if size >= s * least), (1.0, "s"))
    return f"{_digits(value / scale)} {unit}" if like is None else _digits(value / scale)


def _digits(value: float) -> str:
    """Four digits that count, and whole numbers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _timelines(charts: list[Chart]) -> str:
    if not charts:
        return ""
    choices = "".join(
        f'<option value="{chart.id}">{escape(chart.title)}</option>' for chart in charts
    )
    choice = (
        f'<label>Policy <select id="timeline-choice" autocomplete="off">{choices}</select></label>'
    )
    chart = '<p class="note" id="timeline-note"></p><div class="chart" id="timeline"></div>'
    return f"<section><h2>Timeline</h2><p>{choice}</p>{chart}</section>"


def _facts(summary: Summary) -> str:
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts_of(summary)
    )
    return f"<dl>{rows}</dl>"


def facts_of(summary: Summary) -> Iterable[tuple[str, str]]:
    """Facts beside the figures, as (name, words)."""
    study = summary.study
    types = Counter(node.gpu_type for node in study.scenario.nodes for _ in node.devices)
    yield (
        "Cluster",
        (
            f"{len(study.scenario.nodes):,} nodes,"
            f" {', '.join(f'{n:,} x {name}' for name, n in sorted(types.items()))}"
        ),
    )
    yield "Rounds", f"on every event and every {study.scenario.round_s:g} s"
    yield from _workload_facts(summary)
    yield "Seeds", ", ".join(map(str, study.seeds))
    on = study.switches.turned_on
    yield (
        "Switches that are on",
        ", ".join(f"{name} = {value:g}" for name, value in on.items()) or "none",
    )
    for choice in study.policies:
        given = ", ".join(f"{name} = {value}" for name, value in choice.parameters.items())
        yield (
            f"Policy {choice.label}",
            f"{choice.file or choice.name}: {given or 'parameters at their defaults'}",
        )


def _workload_facts(summary: Summary) -> Iterable[tuple[str, str]]:
    if not summary.workloads:
        return
    first_seed = min(summary.workloads, key=summary.study.seeds.index)
    first = summary.workloads[first_seed]
    yield (
        "Workload",
        (
            f"{first.name}: {first.jobs:,} jobs of {first.kinds:,} kinds over"
            f" {first.span_s / 3600:,.1f} h"
        ),
    )
    if first.span_s > 0.0:
        yield "Arrivals", f"{_digits(3600.0 * first.jobs / first.span_s)} jobs an hour on average"
    for name, value in first.facts.items():
        yield name.replace("_", " ").capitalize(), _fact(value)
    if any(w.facts != first.facts for w in summary.workloads.values()):
        yield "Of which seed", f"the workload's facts are those of seed {first_seed}"


def _fact(value: object) -> str:
    if isinstance(value, float) and isfinite(value):
        return _digits(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lists(summary: Summary) -> Iterable[str]:
    failures = [f"{f.run.label}, seed {f.run.seed}: {f.message}" for f in summary.failures]
    yield _list("Runs that failed", failures)
    for seed, jobs in _unlike(summary.unplaceable):
        yield _list(
            f"Jobs that no node can run{seed}", [f"{one.job}: {one.reason}" for one in jobs]
        )
    for policy in summary.policies:
        for of_seed, jobs in _unlike(policy.unfinished):
            yield _list(
                f"Jobs that {policy.choice.label} left unfinished{of_seed}",
                [f"{one.job}: {one.reason}" for one in jobs],
            )
    skipped = {seed: workload.skipped for seed, workload in summary.workloads.items()}
    for seed, lines in _unlike(skipped):
        yield _list(
            f"Lines that were skipped{seed}", [f"line {line}: {problem}" for line, problem in lines]
        )


def _unlike(by_seed: Mapping[int, tuple[T, ...]]) -> list[tuple[str, tuple[T, ...]]]:
    """Lists that differ, each with its seed; one list without seed if all are equal."""
    if len(set(by_seed.values())) == 1:
        return [("", next(iter(by_seed.values())))]
    return [(f" (seed {seed})", items) for seed, items in by_seed.items()]


def _list(title: str, items: list[str]) -> str:
    if not items:
        return ""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items[:LISTED])
    more = f"<p class=note>and {len(items) - LISTED:,} more</p>" if len(items) > LISTED else ""
    return f"<section><h2>{escape(title)} ({len(items):,})</h2><ul>{rows}</ul>{more}</section>"
