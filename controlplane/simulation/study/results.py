"""The files in which people read what a study came to: results.json, jobs.csv, report.html;
timings.json is apart from them.

The first three hold nothing but what follows from the study: the same study gives the same bytes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np

from controlplane.simulation.report.metrics import METRICS, Interval, slowdowns
from controlplane.simulation.report.report import report_of
from controlplane.simulation.report.summary import LEVELS, PolicySummary, Summary, summarise
from controlplane.simulation.study.children import Failure
from controlplane.simulation.study.document import Run, Study
from controlplane.simulation.study.run_files import (
    FinishedRun,
    Replacing,
    WorkloadFacts,
    load,
    write_text,
)
from controlplane.web.pages.formats import plain
from policies.contract.snapshot import Floats, Ints

VERSION = 1
LISTED = 100
"""Most bad lines, unplaceable and unfinished jobs listed per seed in results.json."""

CSV_COLUMNS = (
    "policy", "seed", "job", "kind", "arrival_s", "first_start_s", "completion_s", "due_s", "jct_s",
    "slowdown",
    "bounded_slowdown", "tardiness_s", "tardiness_cost", "busy_s", "gpu_s", "fastest_s", "launches",
    "preemptions", "migrations",
    "failures", "energy_kwh", "energy_cost",
)  # fmt: skip
"""Columns of jobs.csv; missing times and energy are empty."""


def write_results(
    study: Study, folder: Path, runs: Sequence[Run], failures: Sequence[Failure]
) -> Path:
    """Write all four files and return the report's path."""
    failed = list(failures)
    order = {run: i for i, run in enumerate(runs)}
    with (
        Replacing(folder / "jobs.csv") as part,
        part.open("w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerow(CSV_COLUMNS)
        finished = _finished(folder, runs, failed)
        summary = summarise(study, finished, (), lambda run, found: _write_jobs(file, run, found))
    failed.sort(key=lambda failure: order[failure.run])
    summary = Summary(
        study, summary.policies, summary.workloads, summary.unplaceable, tuple(failed)
    )
    write_text(folder / "results.json", _json(results_of(summary)))
    write_text(folder / "timings.json", _json(_timings(folder, runs)))
    write_text(folder / "report.html", report_of(summary))
    return folder / "report.html"


def results_of(summary: Summary) -> dict[str, Any]:
    """The document of results.json."""
    study, first = summary.study, summary.policies[0]
    return {
        "version": VERSION,
        "study": dict(study.document),
        "currency": study.scenario.currency,
        "switches_on": study.switches.turned_on,
        "switches": study.switches.plain(),
        "workloads": [
            _workload(seed, summary) for seed in study.seeds if seed in summary.workloads
        ],
        "metrics": [
            {
                "name": m.name,
                "words": m.words,
                "unit": m.unit.format(currency=study.scenario.currency),
            }
            for m in METRICS
        ],
        "quantile_levels": LEVELS.tolist(),
        "policies": [_policy(policy, first) for policy in summary.policies],
        "failures": [
            {"policy": f.run.label, "seed": f.run.seed, "message": f.message}
            for f in summary.failures
        ],
    }


def _workload(seed: int, summary: Summary) -> dict[str, Any]:
    workload, unplaceable = summary.workloads[seed], summary.unplaceable[seed]
    return {
        "seed": seed,
        **_facts(workload),
        "skipped": len(workload.skipped),
        "skipped_lines": [
            {"line": line, "problem": problem} for line, problem in workload.skipped[:LISTED]
        ],
        "unplaceable": len(unplaceable),
        "unplaceable_jobs": [
            {"job": one.job, "reason": one.reason} for one in unplaceable[:LISTED]
        ],
    }


def _facts(workload: WorkloadFacts) -> dict[str, Any]:
    kept = ("name", "jobs", "kinds", "span_s")
    return {**{name: getattr(workload, name) for name in kept}, "facts": dict(workload.facts)}


def _policy(policy: PolicySummary, first: PolicySummary) -> dict[str, Any]:
    choice = policy.choice
    return {
        **choice.plain(),
        "mean": {name: _interval(found) for name, found in policy.intervals.items()},
        "total_cost_against_first": _interval(policy.against(first)),
        "runs": [{"seed": seed, **run} for seed, run in policy.runs.items()],
        "unfinished_jobs": [
            {"seed": seed, "job": one.job, "reason": one.reason}
            for seed, jobs in policy.unfinished.items()
            for one in jobs[:LISTED]
        ],
        "jct_s_quantiles": _mean_over_seeds(policy.jct_s),
        "bounded_slowdown_quantiles": _mean_over_seeds(policy.bounded_slowdown),
    }


def _interval(found: Interval) -> dict[str, Any]:
    return {"mean": found.mean, "half_width": found.half_width, "n": found.n}


def _mean_over_seeds(by_seed: Mapping[int, Floats]) -> list[float]:
    return np.mean(list(by_seed.values()), axis=0).tolist() if by_seed else []


def _finished(
    folder: Path, runs: Sequence[Run], failed: list[Failure]
) -> Iterator[tuple[Run, FinishedRun]]:
    known = {failure.run for failure in failed}
    for run in runs:
        found = load(folder / "runs" / f"{run.key}.npz") if run not in known else None
        if found is not None:
            yield run, found
        elif run not in known:
            failed.append(
                Failure(
                    run, f"runs/{run.key}.npz cannot be read; delete it and run the study again"
                )
            )


def _write_jobs(file: IO[str], run: Run, found: FinishedRun) -> None:
    outcome = found.outcome
    slowdown, bounded = slowdowns(outcome)
    tardiness_s = outcome.tardiness_s
    numbers: tuple[Floats | Ints, ...] = (
        outcome.arrival_s, outcome.first_start_s, outcome.completion_s, outcome.due_s,
        outcome.jct_s, slowdown, bounded,
        tardiness_s, tardiness_s * outcome.tardiness_weight, outcome.busy_s, outcome.gpu_s,
        outcome.fastest_s,
        outcome.launches, outcome.preemptions, outcome.migrations, outcome.failures,
        *(
            of if len(of) else np.full(len(outcome.job_ids), np.nan)
            for of in (outcome.job_kwh, outcome.job_cost)
        ),
    )  # fmt: skip
    label, seed = plain(run.label), run.seed
    cells = zip(
        outcome.job_ids, found.job_kinds, *(column.tolist() for column in numbers), strict=True
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows(
        (label, seed, plain(job), plain(kind), *map(_cell, rest)) for job, kind, *rest in cells
    )


def _cell(value: float) -> float | str:
    return value if isfinite(value) else ""


def _timings(folder: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Wall seconds run by run: of this machine and this day, so no part of the results."""
    return {
        "version": VERSION,
        "runs": [{"policy": r.label, "seed": r.seed, **_timing(folder, r)} for r in runs],
    }


def _timing(folder: Path, run: Run) -> dict[str, Any]:
    try:
        found = json.loads(
            (folder / "runs" / f"{run.key}.timings.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _json(value: object) -> str:
    return json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> object:
    """Numbers that JSON has not (nan, inf) are null."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
