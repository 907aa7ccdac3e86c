"""Contents of the pages of simulations, in a constant number of queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator

from controlplane.simulation.report.metrics import fewest_unfinished
from controlplane.studies.lifecycle import ACTIVE
from controlplane.studies.models import Simulation, SimulationFile
from controlplane.studies.running.folders import read_file
from controlplane.studies.selectors import visible_simulations
from controlplane.web.pages.formats import duration, quantity

PAGE_SIZE = 50
MOST_COMPARED = 8
SAME = 1e-3
"""Figures that differ by less, relatively, are equally good."""

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
)
"""Figures on pages; the report has them all."""

IF_KNOWN = ("pair_error_mean", "pair_error_p50", "pair_error_p90")
"""Figures on pages of simulations in which pairs were estimated."""

PARTS, NO_BEST = {"utilisation", *IF_KNOWN}, {"preemptions", *IF_KNOWN}
"""Figures that are fractions, and those of which none is the best."""

DOWNLOADS = {
    "results.json": "application/json",
    "jobs.csv": "text/csv; charset=utf-8",
    "timings.json": "application/json",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure in words, half its confidence interval, and whether it is the best."""

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
    """Policies by figures; `notes`: what a reader must know beside them."""

    headings: tuple[str, ...]
    rows: tuple[PolicyRow, ...]
    notes: tuple[str, ...]


def simulations_page(user: User, number: int | str | None) -> Page[Simulation]:
    """The simulations the user may see, newest first."""
    return Paginator(visible_simulations(user), PAGE_SIZE).get_page(number)


def is_active(simulation: Simulation) -> bool:
    """Return True if it waits or runs."""
    return simulation.state in ACTIVE


def kept_until(simulation: Simulation) -> datetime | None:
    """When retention removes it; None for one that is not over, is shared, or stays for ever."""
    days = settings.KEEP_DAYS["simulations"]
    ended_at = simulation.ended_at
    return (
        None
        if ended_at is None or simulation.share_key or not days
        else ended_at + timedelta(days=days)
    )


def results_of(simulation: Simulation) -> dict[str, Any] | None:
    """The document of results.json; None while there is none."""
    data = read_file(simulation, "results.json")
    return None if data is None else json.loads(data)


def sizes_of(simulation: Simulation) -> dict[str, int]:
    """The simulation's files by name, with their bytes."""
    return dict(SimulationFile.objects.filter(simulation=simulation).values_list("name", "size"))


def results_table(found: Sequence[tuple[str, Mapping[str, Any]]]) -> ResultsTable:
    """The policies of one study or of several, (name, results.json) each, side by side."""
    metrics = {m["name"]: m for m in found[0][1].get("metrics", ())} if found else {}
    policies = [
        (name if len(found) > 1 else "", p)
        for name, results in found
        for p in results.get("policies", ())
    ]
    known = [
        name
        for name in IF_KNOWN
        if any(_mean(p.get("mean", {}).get(name)) is not None for _, p in policies)
    ]
    shown = [metrics[name] for name in (*SHOWN, *known) if name in metrics]
    left = [_mean(p.get("mean", {}).get("unfinished")) for _, p in policies]
    may_be_best = fewest_unfinished(left)
    best = {m["name"]: _best([p for _, p in policies], may_be_best, m["name"]) for m in shown}
    rows = tuple(
        _row(study, policy, shown, best if may else {})
        for (study, policy), may in zip(policies, may_be_best, strict=True)
    )
    notes = tuple(
        f"{name}: {note}" if len(found) > 1 else note
        for name, results in found
        for note in (*_failures(results), *notes_of(results))
    )
    return ResultsTable(tuple(m["words"] for m in shown), rows, notes)


def _row(
    study: str,
    policy: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    best: Mapping[str, float | None],
) -> PolicyRow:
    cells = tuple(
        _cell(policy.get("mean", {}).get(m["name"]), m, best.get(m["name"])) for m in metrics
    )
    return PolicyRow(
        str(policy.get("label")), study, cells, _mean(policy.get("total_cost_against_first"))
    )


def _cell(found: object, metric: Mapping[str, Any], best: float | None) -> Cell:
    mean = _mean(found)
    if mean is None:
        return Cell(str(metric["words"]), "–", "", best=False)
    spread = found.get("half_width") if isinstance(found, Mapping) else None
    words = _words(mean, str(metric["name"]), str(metric["unit"]))
    near = best is not None and abs(mean - best) <= SAME * abs(best)
    return Cell(
        str(metric["words"]),
        words,
        f"± {_words(spread, str(metric['name']), '')}" if spread else "",
        best=near,
    )


def _words(value: float, metric: str, unit: str) -> str:
    if metric in PARTS:
        return f"{100 * value:.1f}%"
    return duration(value) if metric.endswith("_s") else f"{quantity(value)} {unit}".strip()


def _mean(found: object) -> float | None:
    mean = found.get("mean") if isinstance(found, Mapping) else None
    return float(mean) if isinstance(mean, int | float) else None


def _best(
    policies: Sequence[Mapping[str, Any]], may_be_best: Sequence[bool], metric: str
) -> float | None:
    """The best mean of the policies that may be best; None if all means are alike."""
    found = [_mean(p.get("mean", {}).get(metric)) for p in policies]
    means = [m for m in found if m is not None]
    known = [m for m, may in zip(found, may_be_best, strict=True) if may and m is not None]
    if (
        len(means) < 2
        or not known
        or max(means) - min(means) <= SAME * max(map(abs, means))
        or metric in NO_BEST
    ):
        return None
    return max(known) if metric == "utilisation" else min(known)


def notes_of(results: Mapping[str, Any]) -> list[str]:
    """Facts beside the figures of results.json that a reader must know."""
    said = []
    workloads = results.get("workloads", ())
    if skipped := sum(int(w.get("skipped", 0)) for w in workloads[:1]):
        said.append(f"{skipped:,} bad lines of the trace were left out.")
    if unplaceable := sum(int(w.get("unplaceable", 0)) for w in workloads[:1]):
        said.append(f"{unplaceable:,} jobs fit on no node and were never run.")
    for policy in results.get("policies", ()):
        if left := policy.get("unfinished_jobs"):
            said.append(
                f"{policy['label']} left jobs unfinished (such as {left[0]['job']}); the least"
                " that they would still cost is in its total."
            )
    if switches := results.get("switches_on"):
        on = ", ".join(f"{switch} = {value:g}" for switch, value in switches.items())
        said.append(f"Switched on: {on}.")
    return said


def _failures(results: Mapping[str, Any]) -> list[str]:
    return [
        f"{f['policy']} failed with seed {f['seed']}: {f['message']}"
        for f in results.get("failures", ())[:5]
    ]
