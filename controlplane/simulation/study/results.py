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
from controlplane.simulation.world.outcome import Outcome, Unplaceable
from controlplane.web.pages.formats import plain
from policies.contract.snapshot import Floats

VERSION = 1
"""Version of the form of results.json and timings.json."""

LISTED = 100
"""Most bad lines, unplaceable and unfinished jobs listed per seed in results.json."""

CSV_COLUMNS = (
    "policy", "seed", "job", "kind", "arrival_s", "first_start_s", "completion_s", "due_s", "jct_s",
    "slowdown", "bounded_slowdown", "tardiness_s", "tardiness_cost", "busy_s", "gpu_s", "fastest_s",
    "launches", "preemptions", "migrations", "failures", "energy_kwh", "energy_cost", "ended_s",
    "state",
)  # fmt: skip  # a long list of names
"""Columns of jobs.csv; missing times and energy are empty."""

STATES = {
    JobEnd.OPEN: "unfinished",
    JobEnd.COMPLETED: "completed",
    JobEnd.KILLED: "killed",
    JobEnd.OVERDUE: "overdue",
    JobEnd.NEVER_READY: "never_ready",
}
"""Words of jobs.csv for the states of jobs."""


def write_results(
    study: Study, folder: Path, runs: Sequence[Run], failures: Sequence[Failure]
) -> Path:
    """Write all four files, and return the report's path.

    A run whose file cannot be read becomes a failure.
    """
    # 1. Read the runs one by one: their jobs go to jobs.csv, and their figures into the summary.
    failed = {failure.run: failure for failure in failures}
    with (
        replacing(folder / "jobs.csv") as part,
        part.open("w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerow(CSV_COLUMNS)
        summary = summarise(study, _finished(folder, runs, failed, file))
    in_order = tuple(failed[run] for run in runs if run in failed)
    summary = replace(summary, failures=in_order)

    # 2. Write the other files.
    timings = [{"policy": run.label, "seed": run.seed, **read_timings(folder, run)} for run in runs]
    write_text(folder / "results.json", _json(results_of(summary)))
    write_text(folder / "timings.json", _json({"version": VERSION, "runs": timings}))
    write_text(folder / "report.html", report_of(summary))
    return folder / "report.html"


def results_of(summary: Summary) -> dict[str, Any]:
    """Return the content of results.json."""
    study = summary.study
    currency = study.scenario.currency

    # 1. Figures that a run has.
    all_runs: list[Mapping[str, float]] = []
    for policy in summary.policies:
        all_runs.extend(policy.runs.values())
    metrics = []
    for metric in metrics_in(all_runs):
        unit = metric.unit.format(currency=currency)
        metrics.append({"name": metric.name, "words": metric.words, "unit": unit})

    # 2. Runs that failed.
    failures = []
    for failure in summary.failures:
        run = failure.run
        failures.append({"policy": run.label, "seed": run.seed, "message": failure.message})

    # 3. All together.
    seeds = [seed for seed in study.seeds if seed in summary.workloads]
    return {
        "version": VERSION,
        "study": dict(study.document),
        "currency": currency,
        "switches_on": study.switches.turned_on,
        "switches": asdict(study.switches),
        "workloads": [_workload(seed, summary) for seed in seeds],
        "metrics": metrics,
        "quantile_levels": LEVELS.tolist(),
        "policies": [_policy(policy, summary.policies[0]) for policy in summary.policies],
        "failures": failures,
    }


def _workload(seed: int, summary: Summary) -> dict[str, Any]:
    """Return the facts of the workload of one seed."""
    workload = summary.workloads[seed]
    unplaceable = summary.unplaceable[seed]
    skipped_lines = []
    for line, problem in workload.skipped[:LISTED]:
        skipped_lines.append({"line": line, "problem": problem})
    return {
        "seed": seed,
        **asdict(workload),
        "skipped": len(workload.skipped),
        "skipped_lines": skipped_lines,
        "unplaceable": len(unplaceable),
        "unplaceable_jobs": [{"job": u.job, "reason": u.reason} for u in unplaceable[:LISTED]],
    }


def _policy(policy: PolicySummary, first: PolicySummary) -> dict[str, Any]:
    """Return the results of a policy; `first`: the one with which costs are compared."""
    return {
        **policy.choice.plain(),
        "mean": {name: asdict(interval) for name, interval in policy.intervals.items()},
        "total_cost_against_first": asdict(policy.against(first)),
        "runs": [{"seed": seed, **run} for seed, run in policy.runs.items()],
        "unfinished_jobs": _listed_jobs(policy.unfinished),
        "not_completed_jobs": _listed_jobs(policy.not_completed),
        "run_time_errors": asdict(policy.run_time_errors),
        "jct_s_quantiles": _mean_over_seeds(policy.jct_s),
        "bounded_slowdown_quantiles": _mean_over_seeds(policy.bounded_slowdown),
    }


def _listed_jobs(by_seed: Mapping[int, Sequence[Unplaceable]]) -> list[dict[str, Any]]:
    """Return the first jobs of each seed, with the reasons why they did not complete."""
    rows = []
    for seed, jobs in by_seed.items():
        for job in jobs[:LISTED]:
            rows.append({"seed": seed, "job": job.job, "reason": job.reason})
    return rows


def _mean_over_seeds(by_seed: Mapping[int, Floats]) -> list[float]:
    """Return the mean at each level; [] if no run has finished."""
    return np.mean(list(by_seed.values()), axis=0).tolist() if by_seed else []


def _finished(
    folder: Path, runs: Sequence[Run], failed: dict[Run, Failure], jobs_csv: IO[str]
) -> Iterator[tuple[Run, FinishedRun]]:
    """Yield readable runs and write their jobs to `jobs_csv`; the others are added to `failed`."""
    for run in runs:
        if run in failed:
            continue
        finished_run = load(folder / "runs" / f"{run.key}.npz")
        if finished_run is None:
            problem = f"runs/{run.key}.npz cannot be read; delete it and run the study again"
            failed[run] = Failure(run, problem)
        else:
            _write_jobs(jobs_csv, run, finished_run)
            yield run, finished_run


def _write_jobs(file: IO[str], run: Run, finished_run: FinishedRun) -> None:
    """Write a row for each job of a run."""
    # 1. The columns of numbers: fields of the outcome, or derived from them.
    outcome = finished_run.outcome
    slowdown, bounded = slowdowns(outcome)
    unknown = np.full(len(outcome.job_ids), np.nan)
    derived = {
        "slowdown": slowdown,
        "bounded_slowdown": bounded,
        "tardiness_cost": outcome.tardiness_s * outcome.tardiness_weight,
        "energy_kwh": outcome.job_kwh if len(outcome.job_kwh) else unknown,
        "energy_cost": outcome.job_cost if len(outcome.job_cost) else unknown,
    }
    columns: list[list[float]] = []
    for name in CSV_COLUMNS[CSV_COLUMNS.index("arrival_s") : -1]:
        column = derived[name] if name in derived else getattr(outcome, name)
        columns.append(column.tolist())

    # 2. The rows. Formulas in names are made harmless for spreadsheets.
    label = plain(run.label)
    states = states_of(outcome)
    rows = zip(outcome.job_ids, finished_run.job_kinds, *columns, states, strict=True)
    writer = csv.writer(file, lineterminator="\n")
    for job, kind, *numbers, state in rows:
        values = [number if isfinite(number) else "" for number in numbers]
        writer.writerow((label, run.seed, plain(job), plain(kind), *values, state))


def states_of(outcome: Outcome) -> list[str]:
    """Return the state of each job, as jobs.csv names it."""
    return [STATES[JobEnd(state)] for state in outcome.state.tolist()]


def _json(value: object) -> str:
    """Return a value as the text of a JSON file, with null for numbers that are not finite."""
    return json.dumps(_with_nulls(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _with_nulls(value: object) -> object:
    """Return plain data with None in place of numbers that are not finite, which JSON lacks."""
    if isinstance(value, Mapping):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
