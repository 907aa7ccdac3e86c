"""Report of a study: one self-contained HTML file, the same for the same study."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
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
"""CSS classes of a notice of something wrong."""

ONE_SEED = "One seed: no confidence intervals. The best of each row is marked."
SEEDS = (
    "Means over seeds with 95% confidence intervals (Student's t). The best mean of each row is"
    " marked."
)

LISTED = 50
"""Bad lines, unplaceable jobs and failed runs that the page lists; it counts all."""

NO_INTERVAL = Interval(nan, None, 0)

_UNITS_S = ((86_400.0, 3.0, "d"), (3600.0, 2.0, "h"), (60.0, 2.0, "min"))
"""Units of times, as (seconds, least number for which it is used, name): days from 3 days on."""


def report_of(summary: Summary) -> str:
    """Return the report as HTML."""
    # 1. Its parts.
    charts = charts_of(summary)
    timelines = timelines_of(summary)
    sections = "".join(chart_section(chart.id, chart.title, chart.note) for chart in charts)
    facts = ""
    for name, words in facts_of(summary):
        facts += f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>"
    values = {
        "title": escape(summary.study.name),
        "lead": escape(_lead(summary)),
        "notices": "".join(_notices(summary)),
        "table_note": ONE_SEED if len(summary.study.seeds) == 1 else SEEDS,
        "table": _table(summary),
        "charts": f'<div class="charts">{sections}</div>' if summary.workloads else "",
        "timelines": _timelines(timelines),
        "facts": f"<dl>{facts}</dl>",
        "lists": run_times_section(summary) + "".join(_lists(summary)),
    }

    # 2. The page with the figures of its charts.
    figures = {}
    for chart in (*charts, *timelines):
        figures[chart.id] = {"note": chart.note, "figure": chart.figure}
    return standalone_page(summary.study.name, filled("report.html", values), figures)


def _lead(summary: Summary) -> str:
    """Return the sentence below the title: 2 policies, 3 seeds of 80 to 100 jobs on 4 nodes ..."""
    study = summary.study
    nodes = study.scenario.nodes
    policies = counted(len(study.policies), "policy", "policies")
    seeds = counted(len(study.seeds), "seed")
    numbers_of_jobs = sorted({workload.jobs for workload in summary.workloads.values()})
    jobs = ""
    if len(numbers_of_jobs) == 1:
        jobs = f" of {counted(numbers_of_jobs[0], 'job')}"
    elif numbers_of_jobs:
        jobs = f" of {numbers_of_jobs[0]:,} to {numbers_of_jobs[-1]:,} jobs"
    gpus = counted(sum(len(node.devices) for node in nodes), "GPU")
    return f"{policies}, {seeds}{jobs} on {counted(len(nodes), 'node')} with {gpus}"


def _notices(summary: Summary) -> Iterable[str]:
    """Yield notices about what the figures leave out, as HTML."""
    # 1. Of all policies.
    if summary.failures:
        runs = len(summary.study.policies) * len(summary.study.seeds)
        failed = f"{len(summary.failures)} of {runs} runs failed"
        yield _notice(f"{failed}; the figures leave them out.", BAD)
    unplaceable = max((len(jobs) for jobs in summary.unplaceable.values()), default=0)
    if unplaceable:
        jobs = counted(unplaceable, "job")
        yield _notice(f"No node can run {jobs}; the averages leave out such jobs.")
    skipped = max((len(workload.skipped) for workload in summary.workloads.values()), default=0)
    if skipped:
        yield _notice(f"{counted(skipped, 'line')} of the workload skipped (list below).")

    # 2. Of each policy.
    for policy in summary.policies:
        unfinished = max((len(jobs) for jobs in policy.unfinished.values()), default=0)
        if unfinished:
            yield _notice(
                f"{policy.choice.label} left {counted(unfinished, 'job')} unfinished. Its total"
                " cost includes the least cost of finishing them. Its figures are marked best only"
                " if all policies left as many.",
                BAD,
            )
    seeds_of_policies = {frozenset(policy.runs) for policy in summary.policies}
    if len(seeds_of_policies) > 1:
        limit = "their means are not over the same jobs"
        yield _notice(f"Policies ran with different seeds, so {limit}.")


def _notice(words: str, css_class: str = "notice") -> str:
    """Return a notice as HTML."""
    return f'<p class="{css_class}">{escape(words)}</p>'


def _table(summary: Summary) -> str:
    """Return the table of metrics by policy as HTML."""
    # 1. Policies of which a run has finished, and their means.
    policies = [policy for policy in summary.policies if policy.runs]
    intervals_of_policies = [policy.intervals for policy in policies]
    unfinished = [intervals["unfinished"].mean for intervals in intervals_of_policies]
    may_be_best = fewest_unfinished(unfinished)
    all_runs: list[Mapping[str, float]] = []
    for policy in policies:
        all_runs.extend(policy.runs.values())

    # 2. A row for each metric.
    rows = ""
    for metric in metrics_in(all_runs):
        values = [by_name.get(metric.name, NO_INTERVAL) for by_name in intervals_of_policies]
        if not metric.always and not any(isfinite(value.mean) for value in values):
            continue
        are_best = _are_best(metric, values, may_be_best)
        cells = ""
        for policy, value, is_best in zip(policies, values, are_best, strict=True):
            cells += _cell(metric, value, is_best, _versus(metric, policy, policies[0]))
        unit = metric.unit.format(currency=summary.study.scenario.currency)
        words = f"{metric.words}, {unit}" if unit and unit not in {"s", PART} else metric.words
        rows += f'<tr><th scope="row">{escape(words)}</th>{cells}</tr>'

    # 3. The table.
    labels = ""
    for policy in policies:
        labels += f'<th scope="col">{escape(policy.choice.label)}</th>'
    head = f'<thead><tr><th scope="col"></th>{labels}</tr></thead>'
    return f"<table>{head}<tbody>{rows}</tbody></table>"


def _are_best(metric: Metric, values: list[Interval], may_be_best: list[bool]) -> list[bool]:
    """Return for each policy whether its mean is the best of those that may be best.

    None is if all means are alike.
    """
    different_means = {value.mean for value in values if isfinite(value.mean)}
    if not metric.better or len(different_means) < 2:
        return [False] * len(values)
    candidates = []
    for value, may in zip(values, may_be_best, strict=True):
        if may and isfinite(value.mean):
            candidates.append(value.mean)
    best = max(candidates, default=nan)
    if metric.better == "less":
        best = min(candidates, default=nan)
    return [may and value.mean == best for value, may in zip(values, may_be_best, strict=True)]


def _versus(metric: Metric, policy: PolicySummary, first: PolicySummary) -> str:
    """Return the excess of the total cost over the first policy's; "" for other metrics."""
    excess = policy.against(first)
    if metric.name != "total_cost" or policy is first or not isfinite(excess.mean):
        return ""
    half = "" if excess.half_width is None else f" ± {100 * excess.half_width:.1f}"
    words = f"{100 * excess.mean:+.1f}{half}% against {escape(first.choice.label)}"
    return f'<br><span class="versus">{words}</span>'


def _cell(metric: Metric, value: Interval, is_best: bool, versus: str) -> str:
    """Return a cell as HTML: mean, half width, and the comparison with the first policy."""
    half = ""
    if value.half_width is not None:
        half = f' <span class="half">± {worded(metric, value.half_width, value.mean)}</span>'
    mark = " class=best" if is_best else ""
    return f"<td{mark}>{worded(metric, value.mean)}{half}{versus}</td>"


def worded(metric: Metric, value: float, like: float | None = None) -> str:
    """Return a figure as text, – if it is unknown.

    `like`: the figure beside which it stands; a time then has the unit of that one, not named.
    """
    if not isfinite(value):
        return "–"
    if metric.name == "utilisation" or metric.unit == PART:
        return f"{100 * value:.1f}%"
    if metric.unit != "s":
        return _digits(value)

    # A time, in the first unit that it is long enough for.
    length_s = abs(value if like is None else like)
    scale_s = 1.0
    unit = "s"
    for unit_s, least, name in _UNITS_S:
        if length_s >= unit_s * least:
            scale_s = unit_s
            unit = name
            break
    number = _digits(value / scale_s)
    return f"{number} {unit}" if like is None else number


def _digits(value: float) -> str:
    """Return a number with four digits that count; whole numbers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _timelines(charts: list[Chart]) -> str:
    """Return a section as HTML in which one of the timelines is chosen and shown."""
    if not charts:
        return ""
    options = ""
    for timeline in charts:
        options += f'<option value="{timeline.id}">{escape(timeline.title)}</option>'
    choice = f'<select id="timeline-choice" autocomplete="off">{options}</select>'
    chart = '<p class="note" id="timeline-note"></p><div class="chart" id="timeline"></div>'
    return f"<section><h2>Timeline</h2><p><label>Policy {choice}</label></p>{chart}</section>"


def facts_of(summary: Summary) -> Iterable[tuple[str, str]]:
    """Yield (name, words) of the facts about a study."""
    # 1. The cluster.
    study = summary.study
    nodes = study.scenario.nodes
    gpus_by_type: Counter[str] = Counter()
    for node in nodes:
        if node.devices:
            gpus_by_type[node.gpu_type] += len(node.devices)
    gpus = ", ".join(f"{number:,} x {name}" for name, number in sorted(gpus_by_type.items()))
    yield "Cluster", f"{counted(len(nodes), 'node')}, {gpus}"
    yield "Rounds", f"on every event and every {study.scenario.round_s:g} s"

    # 2. The workload, and how it is run.
    yield from _workload_facts(summary)
    yield "Seeds", ", ".join(str(seed) for seed in study.seeds)
    yield "Switches that are on", in_words(study.switches.turned_on) or "none"

    # 3. The policies.
    for choice in study.policies:
        parameters = ", ".join(f"{name} = {value}" for name, value in choice.parameters.items())
        words = f"{choice.file or choice.name}: {parameters or 'parameters at their defaults'}"
        if choice.predictor:
            words += f"; predictor = {choice.predictor}"
        yield f"Policy {choice.label}", words


def _workload_facts(summary: Summary) -> Iterable[tuple[str, str]]:
    """Yield (name, words) of the facts about the workload of the first seed that has one."""
    if not summary.workloads:
        return
    first_seed = min(summary.workloads, key=summary.study.seeds.index)
    first = summary.workloads[first_seed]
    hours = first.span_s / 3600
    jobs = f"{counted(first.jobs, 'job')} of {counted(first.kinds, 'kind')}"
    yield "Workload", f"{first.name}: {jobs} over {hours:,.1f} h"
    if first.span_s > 0.0:
        yield "Arrivals", f"{_digits(first.jobs / hours)} jobs an hour on average"
    for name, value in first.facts.items():
        if isinstance(value, str):
            words = value
        elif isinstance(value, float) and isfinite(value):
            words = _digits(value)
        else:
            words = json.dumps(value, ensure_ascii=False)
        yield name.replace("_", " ").capitalize(), words
    if any(workload.facts != first.facts for workload in summary.workloads.values()):
        yield "Seed", f"this table shows the workload of seed {first_seed}"


def _lists(summary: Summary) -> Iterable[str]:
    """Yield lists of failed runs, jobs that did not complete, and skipped lines, as HTML."""
    failures = []
    for failure in summary.failures:
        failures.append(f"{failure.run.label}, seed {failure.run.seed}: {failure.message}")
    yield _list("Runs that failed", failures)
    yield from _jobs_by_seed("Jobs that no node can run", summary.unplaceable)
    for policy in summary.policies:
        title = f"Jobs that {policy.choice.label} left unfinished"
        yield from _jobs_by_seed(title, policy.unfinished)
        title = f"Jobs that ended without completion under {policy.choice.label}"
        yield from _jobs_by_seed(title, policy.not_completed)
    skipped = {}
    for seed, workload in summary.workloads.items():
        skipped[seed] = tuple(f"line {line}: {problem}" for line, problem in workload.skipped)
    yield from _by_seed("Lines that were skipped", skipped)


def _jobs_by_seed(title: str, jobs: Mapping[int, tuple[Unplaceable, ...]]) -> Iterable[str]:
    """Return lists of jobs with their reasons, as `_by_seed` does."""
    items_by_seed = {}
    for seed, jobs_of_seed in jobs.items():
        items_by_seed[seed] = tuple(f"{job.job}: {job.reason}" for job in jobs_of_seed)
    return _by_seed(title, items_by_seed)


def _by_seed(title: str, by_seed: Mapping[int, tuple[str, ...]]) -> Iterable[str]:
    """Yield lists as HTML, each with its seed; one without a seed if all are equal."""
    if len(set(by_seed.values())) == 1:
        yield _list(title, next(iter(by_seed.values())))
        return
    for seed, items in by_seed.items():
        yield _list(f"{title} (seed {seed})", items)


def _list(title: str, items: Sequence[str]) -> str:
    """Return a section with the first items as HTML; "" without items."""
    if not items:
        return ""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items[:LISTED])
    more = ""
    if len(items) > LISTED:
        more = f"<p class=note>and {len(items) - LISTED:,} more</p>"
    return f"<section><h2>{escape(title)} ({len(items):,})</h2><ul>{rows}</ul>{more}</section>"
