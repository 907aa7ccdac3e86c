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
    "total_cost", "energy_cost", "tardiness_cost", "jct_mean_s", "makespan_s", "utilisation",
    "late", "unfinished", "preemptions",
)  # fmt: skip
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
    days, ended_at = settings.KEEP_DAYS["simulations"], simulation.ended_at
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


def results_table(found: Sequence[tuple[str, Mapping[str, Any]]]) -> ResultsTable:
    """Policies of one or several studies, (name, results.json) each, side by side."""
    metrics = {m["name"]: m for m in found[0][1].get("metrics", ())} if found else {}
    several = len(found) > 1
    studies = [name if several else "" for name, results in found for _ in _policies(results)]
    policies = [policy for _, results in found for policy in _policies(results)]
    means = [{name: _mean(of) for name, of in p.get("mean", {}).items()} for p in policies]
    known = [name for name in IF_KNOWN if any(of.get(name) is not None for of in means)]
    shown = [metrics[name] for name in (*SHOWN, *known) if name in metrics]
    may_be_best = fewest_unfinished([of.get("unfinished") for of in means])
    best = {m["name"]: _best(means, may_be_best, m["name"]) for m in shown}
    rows = [
        PolicyRow(
            str(policy.get("label")),
            study,
            tuple(
                _cell(policy.get("mean", {}).get(m["name"]), m, best[m["name"]] if may else None)
                for m in shown
            ),
            _mean(policy.get("total_cost_against_first")),
        )
        for study, policy, may in zip(studies, policies, may_be_best, strict=True)
    ]
    notes = []
    for name, results in found:
        failures = [
            f"{f['policy']} failed with seed {f['seed']}: {f['message']}"
            for f in results.get("failures", ())[:5]
        ]
        prefix = f"{name}: " if several else ""
        notes += [f"{prefix}{note}" for note in (*failures, *notes_of(results))]
    return ResultsTable(tuple(m["words"] for m in shown), tuple(rows), tuple(notes))


def _policies(results: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = results.get("policies", ())
    return found


def _cell(found: object, metric: Mapping[str, Any], best: float | None) -> Cell:
    mean, name, words = _mean(found), str(metric["name"]), str(metric["words"])
    if mean is None:
        return Cell(words, "–", "", best=False)
    half = found.get("half_width") if isinstance(found, Mapping) else None
    spread = f"± {_words(half, name, '')}" if half else ""
    is_best = best is not None and abs(mean - best) <= SAME * abs(best)
    return Cell(words, _words(mean, name, str(metric["unit"])), spread, best=is_best)


def _words(value: float, metric: str, unit: str) -> str:
    if metric in PARTS:
        return f"{100 * value:.1f}%"
    return duration(value) if metric.endswith("_s") else f"{quantity(value)} {unit}".strip()


def _mean(found: object) -> float | None:
    mean = found.get("mean") if isinstance(found, Mapping) else None
    return float(mean) if isinstance(mean, int | float) else None


def _best(
    means: Sequence[Mapping[str, float | None]], may_be_best: Sequence[bool], metric: str
) -> float | None:
    """Best mean of the policies that may be best; None if all means are alike."""
    found = [of.get(metric) for of in means]
    every = [mean for mean in found if mean is not None]
    known = [m for m, may in zip(found, may_be_best, strict=True) if may and m is not None]
    if metric in NO_BEST or len(every) < 2 or not known:
        return None
    if max(every) - min(every) <= SAME * max(map(abs, every)):
        return None
    return max(known) if metric == "utilisation" else min(known)


def notes_of(results: Mapping[str, Any]) -> list[str]:
    """Facts beside the figures of results.json that a reader must know."""
    said = []
    workloads = results.get("workloads", ())
    if skipped := sum(int(w.get("skipped", 0)) for w in workloads[:1]):
        said.append(f"{counted(skipped, 'bad line')} of the trace left out.")
    if unplaceable := sum(int(w.get("unplaceable", 0)) for w in workloads[:1]):
        said.append(f"{counted(unplaceable, 'job')} never run, as no node fits.")
    for policy in results.get("policies", ()):
        if left := policy.get("unfinished_jobs"):
            said.append(
                f"{policy['label']} left jobs unfinished (such as {left[0]['job']}); the least"
                " that they would still cost is in its total."
            )
    if switches := results.get("switches_on"):
        said.append(f"Switched on: {in_words(switches)}.")
    return said
