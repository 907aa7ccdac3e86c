"""Rows of the pages of simulations, in a constant number of queries."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator

from controlplane.simulation.report.run_metrics import fewest_unfinished
from controlplane.simulation.switches import in_words
from controlplane.studies.models import Simulation, SimulationFile
from controlplane.studies.running.folders import read_file
from controlplane.studies.selectors import visible_simulations
from controlplane.web.pages.formats import counted, duration, quantity

PAGE_SIZE = 50
MOST_COMPARED = 8
SAME = 1e-3
"""Relative difference below which figures are equally good."""

SHOWN = (
    "total_cost",
    "energy_cost",
    "tardiness_cost",
    "jct_mean_s",
    "makespan_s",
    "utilisation",
    "late",
    "unfinished",
    "preemptions",
    "part_of_rounds_changed",
)
"""Figures on pages; the report has them all."""

IF_KNOWN = ("pair_error_mean", "pair_error_p50", "pair_error_p90")
"""Figures on pages of simulations in which pairs were estimated."""

FRACTIONS = {"utilisation", "part_of_rounds_changed", *IF_KNOWN}
"""Figures that are shown as percentages."""

NO_BEST = {"preemptions", "part_of_rounds_changed", *IF_KNOWN}
"""Figures of which no value is marked as the best."""

MOST_FAILURES = 5
"""Failed runs of a study that are listed."""

DOWNLOADS = {
    "results.json": "application/json",
    "jobs.csv": "text/csv; charset=utf-8",
    "timings.json": "application/json",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """Figure in words, half its confidence interval, and True if it is the best."""

    heading: str
    words: str
    spread: str
    best: bool


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy's figures; `against`: excess of its total cost over the first policy's."""

    label: str
    study: str
    cells: tuple[Cell, ...]
    against: float | None


@dataclass(frozen=True, slots=True)
class ResultsTable:
    """Policies by figures; `notes`: facts beside them."""

    headings: tuple[str, ...]
    rows: tuple[PolicyRow, ...]
    notes: tuple[str, ...]


def simulations_page(user: User, number: int | str | None) -> Page[Simulation]:
    return Paginator(visible_simulations(user), PAGE_SIZE).get_page(number)


def kept_until(simulation: Simulation) -> datetime | None:
    """Time of removal by retention; None if active, shared, or kept for ever."""
    days = settings.KEEP_DAYS["simulations"]
    ended_at = simulation.ended_at
    if ended_at is None or simulation.share_key or not days:
        return None
    return ended_at + timedelta(days=days)


def results_of(simulation: Simulation) -> dict[str, Any] | None:
    """Document of results.json; None while there is none."""
    data = read_file(simulation, "results.json")
    return None if data is None else json.loads(data)


def sizes_of(simulation: Simulation) -> dict[str, int]:
    """The simulation's files by name, with their bytes."""
    return dict(SimulationFile.objects.filter(simulation=simulation).values_list("name", "size"))


def results_table(studies: Sequence[tuple[str, Mapping[str, Any]]]) -> ResultsTable:
    """Policies of one or several studies, (name, results.json) each, side by side."""
    # 1. All policies, each with its study's name if there are several, and their mean figures.
    several = len(studies) > 1
    policies: list[Mapping[str, Any]] = []
    study_names: list[str] = []
    for name, results in studies:
        for policy in results.get("policies", ()):
            policies.append(policy)
            study_names.append(name if several else "")
    means = [_means_of(policy) for policy in policies]

    # 2. The figures to show, in order: those of every study, then those that any policy has.
    metrics: dict[str, Mapping[str, Any]] = {}
    if studies:
        metrics = {metric["name"]: metric for metric in studies[0][1].get("metrics", ())}
    names = list(SHOWN)
    for name in IF_KNOWN:
        if any(mean.get(name) is not None for mean in means):
            names.append(name)
    columns = [metrics[name] for name in names if name in metrics]

    # 3. A row for each policy. One that leaves more jobs unfinished than another is never best.
    may_be_best = fewest_unfinished([mean.get("unfinished") for mean in means])
    best = {column["name"]: _best(means, may_be_best, column["name"]) for column in columns}
    rows = []
    for policy, study_name, may in zip(policies, study_names, may_be_best, strict=True):
        intervals = policy.get("mean", {})
        cells = []
        for column in columns:
            name = column["name"]
            cells.append(_cell(intervals.get(name), column, best[name] if may else None))
        against = _mean(policy.get("total_cost_against_first"))
        rows.append(PolicyRow(str(policy.get("label")), study_name, tuple(cells), against))

    # 4. Notes of each study: its failed runs, then other facts.
    notes = []
    for name, results in studies:
        prefix = f"{name}: " if several else ""
        failures = [
            f"{run['policy']} failed with seed {run['seed']}: {run['message']}"
            for run in results.get("failures", ())[:MOST_FAILURES]
        ]
        notes += [f"{prefix}{note}" for note in (*failures, *notes_of(results))]
    return ResultsTable(tuple(column["words"] for column in columns), tuple(rows), tuple(notes))


def _means_of(policy: Mapping[str, Any]) -> dict[str, float | None]:
    """Mean of each figure of a policy, by the figure's name."""
    return {name: _mean(interval) for name, interval in policy.get("mean", {}).items()}


def _cell(interval: object, metric: Mapping[str, Any], best: float | None) -> Cell:
    """Cell for a figure's confidence interval; a dash if it has no mean."""
    name = str(metric["name"])
    heading = str(metric["words"])
    mean = _mean(interval)
    if mean is None:
        return Cell(heading, "–", "", best=False)
    half_width = interval.get("half_width") if isinstance(interval, Mapping) else None
    spread = f"± {_words(half_width, name, '')}" if half_width else ""
    is_best = best is not None and abs(mean - best) <= SAME * abs(best)
    return Cell(heading, _words(mean, name, str(metric["unit"])), spread, best=is_best)


def _words(value: float, metric: str, unit: str) -> str:
    """Figure in words: a percentage, a duration, or a number with its unit."""
    if metric in FRACTIONS:
        return f"{100 * value:.1f}%"
    if metric.endswith("_s"):
        return duration(value)
    return f"{quantity(value)} {unit}".strip()


def _mean(interval: object) -> float | None:
    """Mean of a confidence interval of results.json; None if it has none."""
    mean = interval.get("mean") if isinstance(interval, Mapping) else None
    return float(mean) if isinstance(mean, int | float) else None


def _best(
    means: Sequence[Mapping[str, float | None]], may_be_best: Sequence[bool], metric: str
) -> float | None:
    """Best mean of the policies that may be best; None if all means are alike."""
    # 1. The means that are known, and those among them that may be best.
    known = []
    candidates = []
    for policy_means, may in zip(means, may_be_best, strict=True):
        mean = policy_means.get(metric)
        if mean is None:
            continue
        known.append(mean)
        if may:
            candidates.append(mean)

    # 2. Nothing is best where there is nothing to choose.
    if metric in NO_BEST or len(known) < 2 or not candidates:
        return None
    if max(known) - min(known) <= SAME * max(map(abs, known)):
        return None
    return max(candidates) if metric == "utilisation" else min(candidates)


def notes_of(results: Mapping[str, Any]) -> list[str]:
    """Facts beside the figures of results.json that a reader must know."""
    notes = []

    # 1. What the workload lost; the first seed's stands for all.
    workloads = results.get("workloads", ())
    first = workloads[0] if workloads else {}
    skipped_lines = int(first.get("skipped", 0))
    if skipped_lines:
        notes.append(f"{counted(skipped_lines, 'bad line')} of the trace left out.")
    unplaceable_jobs = int(first.get("unplaceable", 0))
    if unplaceable_jobs:
        notes.append(f"No node can run {counted(unplaceable_jobs, 'job')}.")

    # 2. Policies that did not finish their jobs.
    for policy in results.get("policies", ()):
        unfinished = policy.get("unfinished_jobs")
        if unfinished:
            notes.append(
                f"{policy['label']} left jobs unfinished (such as {unfinished[0]['job']}). Its"
                " total cost includes the least cost of finishing them."
            )

    # 3. Effects of reality that were simulated.
    switches = results.get("switches_on")
    if switches:
        notes.append(f"Switched on: {in_words(switches)}.")
    return notes
