"""Report of a study: one self-contained HTML file, the same for the same study."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import repeat
from math import isfinite, nan

from controlplane.simulation.report.charts import Chart, charts_of, timelines_of
from controlplane.simulation.report.run_metrics import (
    PART,
    Interval,
    Metric,
    fewest_unfinished,
    metrics_in,
)
from controlplane.simulation.report.run_times import run_times_section
from controlplane.simulation.report.standalone import chart_section, filled, standalone_page
from controlplane.simulation.report.summary import PolicySummary, Summary
from controlplane.simulation.switches import in_words
from controlplane.simulation.world.outcome import Unplaceable
from controlplane.web.pages.formats import counted

BAD = "notice bad"
ONE_SEED = "One seed: no confidence intervals. The best of each row is marked."
SEEDS = (
    "Means over seeds with 95% confidence intervals (Student's t). The best mean of each row is"
    " marked."
)

LISTED = 50
"""Bad lines, unplaceable jobs and failed runs that the page lists; it counts all."""

NO_INTERVAL = Interval(nan, None, 0)

_UNITS_S = ((86_400.0, 3.0, "d"), (3600.0, 2.0, "h"), (60.0, 2.0, "min"))
"""(seconds, from how many of them on, unit)."""


def report_of(summary: Summary) -> str:
    charts, timelines = charts_of(summary), timelines_of(summary)
    sections = "".join(chart_section(c.id, c.title, c.note) for c in charts)
    facts = (
        f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts_of(summary)
    )
    values = {
        "title": escape(summary.study.name),
        "lead": escape(_lead(summary)),
        "notices": "".join(_notices(summary)),
        "table_note": ONE_SEED if len(summary.study.seeds) == 1 else SEEDS,
        "table": _table(summary),
        "charts": f'<div class="charts">{sections}</div>' if summary.workloads else "",
        "timelines": _timelines(timelines),
        "facts": f"<dl>{''.join(facts)}</dl>",
        "lists": run_times_section(summary) + "".join(_lists(summary)),
    }
    figures = {c.id: {"note": c.note, "figure": c.figure} for c in (*charts, *timelines)}
    return standalone_page(summary.study.name, filled("report.html", values), figures)


def _lead(summary: Summary) -> str:
    study, nodes = summary.study, summary.study.scenario.nodes
    policies = counted(len(study.policies), "policy", "policies")
    seeds = counted(len(study.seeds), "seed")
    jobs = sorted({w.jobs for w in summary.workloads.values()})
    span = " to ".join(f"{count:,}" for count in jobs[:: max(1, len(jobs) - 1)])
    of_jobs = f" of {span} {'job' if jobs == [1] else 'jobs'}" if jobs else ""
    gpus = counted(sum(len(node.devices) for node in nodes), "GPU")
    return f"{policies}, {seeds}{of_jobs} on {counted(len(nodes), 'node')} with {gpus}"


def _notices(summary: Summary) -> Iterable[str]:
    if summary.failures:
        runs = len(summary.study.policies) * len(summary.study.seeds)
        yield _notice(
            f"{len(summary.failures)} of {runs} runs failed; the figures leave them out.", BAD
        )
    if never := max((len(jobs) for jobs in summary.unplaceable.values()), default=0):
        yield _notice(f"No node can run {counted(never, 'job')}; the averages leave out such jobs.")
    if skipped := max((len(w.skipped) for w in summary.workloads.values()), default=0):
        yield _notice(f"{counted(skipped, 'line')} of the workload skipped (list below).")
    for policy in summary.policies:
        if left := max(map(len, policy.unfinished.values()), default=0):
            yield _notice(
                f"{policy.choice.label} left {counted(left, 'job')} unfinished. Its total cost"
                " includes the least cost of finishing them. Its figures are marked best only if"
                " all policies left as many.",
                BAD,
            )
    if len({frozenset(p.runs) for p in summary.policies}) > 1:
        yield _notice(
            "Policies ran with different seeds, so their means are not over the same jobs."
        )


def _notice(words: str, kind: str = "notice") -> str:
    return f'<p class="{kind}">{escape(words)}</p>'


def _table(summary: Summary) -> str:
    shown = [policy for policy in summary.policies if policy.runs]
    found = [policy.intervals for policy in shown]
    heads = "".join(f'<th scope="col">{escape(p.choice.label)}</th>' for p in shown)
    may_be_best = fewest_unfinished([intervals["unfinished"].mean for intervals in found])
    rows = []
    for metric in metrics_in(run for policy in shown for run in policy.runs.values()):
        values = [intervals.get(metric.name, NO_INTERVAL) for intervals in found]
        if metric.always or any(isfinite(v.mean) for v in values):
            more = [_versus(metric, policy, shown[0]) for policy in shown]
            best = _best(metric, values, may_be_best)
            cells = "".join(map(_cell, repeat(metric), values, best, more))
            unit = metric.unit.format(currency=summary.study.scenario.currency)
            words = f"{metric.words}, {unit}" if unit and unit not in {"s", PART} else metric.words
            rows.append(f'<tr><th scope="row">{escape(words)}</th>{cells}</tr>')
    head = f'<thead><tr><th scope="col"></th>{heads}</tr></thead>'
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _best(metric: Metric, values: list[Interval], may_be_best: list[bool]) -> list[bool]:
    """Return True for the best means of those that may be, unless all are alike."""
    if not metric.better or len({v.mean for v in values if isfinite(v.mean)}) < 2:
        return [False] * len(values)
    known = [v.mean for v, may in zip(values, may_be_best, strict=True) if may and isfinite(v.mean)]
    best = (min if metric.better == "less" else max)(known, default=nan)
    return [may and v.mean == best for v, may in zip(values, may_be_best, strict=True)]


def _versus(metric: Metric, policy: PolicySummary, first: PolicySummary) -> str:
    """Excess of the total cost over the first policy's, seed by seed; empty for other figures."""
    found = policy.against(first)
    if metric.name != "total_cost" or policy is first or not isfinite(found.mean):
        return ""
    half = "" if found.half_width is None else f" ± {100 * found.half_width:.1f}"
    words = f"{100 * found.mean:+.1f}{half}% against {escape(first.choice.label)}"
    return f'<br><span class="versus">{words}</span>'


def _cell(metric: Metric, value: Interval, best: bool, more: str) -> str:
    half = ""
    if value.half_width is not None:
        half = f' <span class="half">± {worded(metric, value.half_width, value.mean)}</span>'
    return f"<td{' class=best' if best else ''}>{worded(metric, value.mean)}{half}{more}</td>"


def worded(metric: Metric, value: float, like: float | None = None) -> str:
    """Figure in words; times in the unit that suits `like` (default: the value)."""
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
    options = "".join(f'<option value="{c.id}">{escape(c.title)}</option>' for c in charts)
    choice = f'<select id="timeline-choice" autocomplete="off">{options}</select>'
    chart = '<p class="note" id="timeline-note"></p><div class="chart" id="timeline"></div>'
    return f"<section><h2>Timeline</h2><p><label>Policy {choice}</label></p>{chart}</section>"


def facts_of(summary: Summary) -> Iterable[tuple[str, str]]:
    study, nodes = summary.study, summary.study.scenario.nodes
    types = Counter(node.gpu_type for node in nodes for _ in node.devices)
    gpus = ", ".join(f"{n:,} x {name}" for name, n in sorted(types.items()))
    yield "Cluster", f"{counted(len(nodes), 'node')}, {gpus}"
    yield "Rounds", f"on every event and every {study.scenario.round_s:g} s"
    yield from _workload_facts(summary)
    yield "Seeds", ", ".join(map(str, study.seeds))
    yield "Switches that are on", in_words(study.switches.turned_on) or "none"
    for choice in study.policies:
        given = ", ".join(f"{name} = {value}" for name, value in choice.parameters.items())
        words = f"{choice.file or choice.name}: {given or 'parameters at their defaults'}"
        words += f"; predictor = {choice.predictor}" if choice.predictor else ""
        yield f"Policy {choice.label}", words


def _workload_facts(summary: Summary) -> Iterable[tuple[str, str]]:
    if not summary.workloads:
        return
    first_seed = min(summary.workloads, key=summary.study.seeds.index)
    first = summary.workloads[first_seed]
    hours = first.span_s / 3600
    yield (
        "Workload",
        f"{first.name}: {counted(first.jobs, 'job')} of {counted(first.kinds, 'kind')} over"
        f" {hours:,.1f} h",
    )
    if first.span_s > 0.0:
        yield "Arrivals", f"{_digits(first.jobs / hours)} jobs an hour on average"
    for name, value in first.facts.items():
        words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_number = isinstance(value, float) and isfinite(value)
        yield name.replace("_", " ").capitalize(), _digits(value) if is_number else words
    if any(w.facts != first.facts for w in summary.workloads.values()):
        yield "Seed", f"this table shows the workload of seed {first_seed}"


def _lists(summary: Summary) -> Iterable[str]:
    failures = [f"{f.run.label}, seed {f.run.seed}: {f.message}" for f in summary.failures]
    yield _list("Runs that failed", failures)
    yield from _jobs_by_seed("Jobs that no node can run", summary.unplaceable)
    for policy in summary.policies:
        title = f"Jobs that {policy.choice.label} left unfinished"
        yield from _jobs_by_seed(title, policy.unfinished)
        title = f"Jobs that ended without completion under {policy.choice.label}"
        yield from _jobs_by_seed(title, policy.not_completed)
    skipped = {
        seed: tuple(f"line {line}: {problem}" for line, problem in workload.skipped)
        for seed, workload in summary.workloads.items()
    }
    yield from _by_seed("Lines that were skipped", skipped)


def _jobs_by_seed(title: str, jobs: Mapping[int, tuple[Unplaceable, ...]]) -> Iterable[str]:
    words = {seed: tuple(f"{u.job}: {u.reason}" for u in found) for seed, found in jobs.items()}
    return _by_seed(title, words)


def _by_seed(title: str, by_seed: Mapping[int, tuple[str, ...]]) -> Iterable[str]:
    """Lists that differ, each with its seed; one list without seed if all are equal."""
    if len(set(by_seed.values())) == 1:
        yield _list(title, next(iter(by_seed.values())))
    else:
        yield from (_list(f"{title} (seed {seed})", items) for seed, items in by_seed.items())


def _list(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items[:LISTED])
    more = f"<p class=note>and {len(items) - LISTED:,} more</p>" if len(items) > LISTED else ""
    return f"<section><h2>{escape(title)} ({len(items):,})</h2><ul>{rows}</ul>{more}</section>"
