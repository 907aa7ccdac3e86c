"""Result files of a study: results.json, jobs.csv, report.html, and timings.json.

The first three depend on the study alone: the same study gives the same bytes.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np

from controlplane.simulation.report.report import report_of
from controlplane.simulation.report.run_metrics import metrics_in, slowdowns
from controlplane.simulation.report.summary import LEVELS, PolicySummary, Summary, summarise
from controlplane.simulation.study.document import Failure, Run, Study
from controlplane.simulation.study.run_files import (
    FinishedRun,
    load,
    read_timings,
    replacing,
    write_text,
)
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome
from controlplane.web.pages.formats import plain
from policies.contract.snapshot import Floats

VERSION = 1
LISTED = 100
"""Most bad lines, unplaceable and unfinished jobs listed per seed in results.json."""

CSV_COLUMNS = (
    "policy", "seed", "job", "kind", "arrival_s", "first_start_s", "completion_s", "due_s", "jct_s",
    "slowdown", "bounded_slowdown", "tardiness_s", "tardiness_cost", "busy_s", "gpu_s", "fastest_s",
    "launches", "preemptions", "migrations", "failures", "energy_kwh", "energy_cost", "ended_s",
    "state",
)  # fmt: skip
"""Columns of jobs.csv; missing times and energy are empty."""

STATES = {
    JobEnd.OPEN: "unfinished",
    JobEnd.COMPLETED: "completed",
    JobEnd.KILLED: "killed",
    JobEnd.OVERDUE: "overdue",
    JobEnd.NEVER_READY: "never_ready",
}


def write_results(
    study: Study, folder: Path, runs: Sequence[Run], failures: Sequence[Failure]
) -> Path:
    """Write all four files and return the report's path."""
    failed = {failure.run: failure for failure in failures}
    with (
        replacing(folder / "jobs.csv") as part,
        part.open("w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerow(CSV_COLUMNS)
        summary = summarise(study, _finished(folder, runs, failed, file))
    ordered = tuple(failed[run] for run in runs if run in failed)
    summary = replace(summary, failures=ordered)
    timings = [{"policy": run.label, "seed": run.seed, **read_timings(folder, run)} for run in runs]
    write_text(folder / "results.json", _json(results_of(summary)))
    write_text(folder / "timings.json", _json({"version": VERSION, "runs": timings}))
    write_text(folder / "report.html", report_of(summary))
    return folder / "report.html"


def results_of(summary: Summary) -> dict[str, Any]:
    study, currency = summary.study, summary.study.scenario.currency
    return {
        "version": VERSION,
        "study": dict(study.document),
        "currency": currency,
        "switches_on": study.switches.turned_on,
        "switches": asdict(study.switches),
        "workloads": [
            _workload(seed, summary) for seed in study.seeds if seed in summary.workloads
        ],
        "metrics": [
            {"name": m.name, "words": m.words, "unit": m.unit.format(currency=currency)}
            for m in metrics_in(run for policy in summary.policies for run in policy.runs.values())
        ],
        "quantile_levels": LEVELS.tolist(),
        "policies": [_policy(policy, summary.policies[0]) for policy in summary.policies],
        "failures": [
            {"policy": f.run.label, "seed": f.run.seed, "message": f.message}
            for f in summary.failures
        ],
    }


def _workload(seed: int, summary: Summary) -> dict[str, Any]:
    workload, unplaceable = summary.workloads[seed], summary.unplaceable[seed]
    return {
        "seed": seed,
        **asdict(workload),
        "skipped": len(workload.skipped),
        "skipped_lines": [
            {"line": line, "problem": problem} for line, problem in workload.skipped[:LISTED]
        ],
        "unplaceable": len(unplaceable),
        "unplaceable_jobs": [{"job": u.job, "reason": u.reason} for u in unplaceable[:LISTED]],
    }


def _policy(policy: PolicySummary, first: PolicySummary) -> dict[str, Any]:
    unfinished = [
        {"seed": seed, "job": one.job, "reason": one.reason}
        for seed, jobs in policy.unfinished.items()
        for one in jobs[:LISTED]
    ]
    ended = [
        {"seed": seed, "job": one.job, "reason": one.reason}
        for seed, jobs in policy.not_completed.items()
        for one in jobs[:LISTED]
    ]
    return {
        **policy.choice.plain(),
        "mean": {name: asdict(found) for name, found in policy.intervals.items()},
        "total_cost_against_first": asdict(policy.against(first)),
        "runs": [{"seed": seed, **run} for seed, run in policy.runs.items()],
        "unfinished_jobs": unfinished,
        "not_completed_jobs": ended,
        "run_time_errors": asdict(policy.run_time_errors),
        "jct_s_quantiles": _mean_over_seeds(policy.jct_s),
        "bounded_slowdown_quantiles": _mean_over_seeds(policy.bounded_slowdown),
    }


def _mean_over_seeds(by_seed: Mapping[int, Floats]) -> list[float]:
    return np.mean(list(by_seed.values()), axis=0).tolist() if by_seed else []


def _finished(
    folder: Path, runs: Sequence[Run], failed: dict[Run, Failure], jobs_csv: IO[str]
) -> Iterator[tuple[Run, FinishedRun]]:
    """Yield readable runs and write their jobs; the others are failures."""
    for run in runs:
        if run in failed:
            continue
        if (found := load(folder / "runs" / f"{run.key}.npz")) is None:
            why = f"runs/{run.key}.npz cannot be read; delete it and run the study again"
            failed[run] = Failure(run, why)
        else:
            _write_jobs(jobs_csv, run, found)
            yield run, found


def _write_jobs(file: IO[str], run: Run, found: FinishedRun) -> None:
    outcome = found.outcome
    slowdown, bounded = slowdowns(outcome)
    unknown = np.full(len(outcome.job_ids), np.nan)
    derived = {
        "slowdown": slowdown,
        "bounded_slowdown": bounded,
        "tardiness_cost": outcome.tardiness_s * outcome.tardiness_weight,
        "energy_kwh": outcome.job_kwh if len(outcome.job_kwh) else unknown,
        "energy_cost": outcome.job_cost if len(outcome.job_cost) else unknown,
    }
    names = CSV_COLUMNS[CSV_COLUMNS.index("arrival_s") : -1]
    numbers = (derived[n] if n in derived else getattr(outcome, n) for n in names)
    columns = (column.tolist() for column in numbers)
    label, seed = plain(run.label), run.seed
    csv.writer(file, lineterminator="\n").writerows(
        (label, seed, plain(job), plain(kind), *(v if isfinite(v) else "" for v in values), end)
        for job, kind, *values, end in zip(
            outcome.job_ids, found.job_kinds, *columns, states_of(outcome), strict=True
        )
    )


def states_of(outcome: Outcome) -> list[str]:
    """Return the state of each job, as jobs.csv names it."""
    return [STATES[JobEnd(state)] for state in outcome.state.tolist()]


def _json(value: object) -> str:
    return json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
