"""A finished run as a file: outcome and workload facts, written atomically."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from controlplane.simulation.study.document import Run
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import Workload
from controlplane.simulation.world.outcome import (
    Outcome,
    PairEstimates,
    Stays,
    Unplaceable,
    Utilisation,
)
from profiling.pairs.estimates import ErrorSummary
from profiling.run_times.errors import ErrorRow, RunTimeErrors

JOB_COLUMNS = (
    "arrival_s", "first_start_s", "completion_s", "due_s", "tardiness_weight", "busy_s", "gpu_s",
    "fastest_s", "launches", "preemptions", "migrations", "failures", "job_kwh", "job_cost",
    "ended_s", "state",
)  # fmt: skip  # a long list of names
"""Fields of an outcome that are arrays of all jobs."""

STAY_COLUMNS = ("job", "node", "start_s", "end_s")
"""Fields of an outcome's stays that are arrays."""

PLAIN = (
    "policy", "workload", "seed", "job_ids", "nodes", "energy_kwh", "energy_cost",
    "tardiness_cost", "unfinished_cost", "emissions_kg", "rounds", "makespan_s", "rounds_skipped",
    "rounds_changed", "round_jobs", "gather_s", "used",
)  # fmt: skip  # a long list of names
"""Fields of an outcome that are plain JSON."""


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """Facts of a workload: `span_s` from first to last arrival, `skipped` (line, problem)."""

    name: str
    jobs: int
    kinds: int
    span_s: float
    facts: Mapping[str, Any]
    skipped: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, workload: Workload) -> WorkloadFacts:
        """Return the facts of a workload."""
        jobs = len(workload.jobs)
        arrival_s = workload.jobs.columns.numbers["arrival_s"]
        span_s = float(arrival_s.max() - arrival_s.min()) if jobs else 0.0
        skipped = tuple((bad.line, bad.problem) for bad in workload.skipped)
        return cls(workload.name, jobs, len(workload.kinds), span_s, workload.facts, skipped)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Outcome of a run, the kind of each job in workload order, and the workload's facts."""

    outcome: Outcome
    job_kinds: tuple[str, ...]
    workload: WorkloadFacts


def save(path: Path, run: FinishedRun) -> None:
    """Write the run, without its timings."""
    outcome = run.outcome
    stays = outcome.stays
    utilisation = outcome.utilisation

    # 1. Plain data, as one JSON text.
    plain: dict[str, Any] = {name: getattr(outcome, name) for name in PLAIN}
    plain["switches"] = asdict(outcome.switches)
    plain["gpus"] = utilisation.gpus
    plain["devices"] = stays.devices
    plain["unplaceable"] = [astuple(job) for job in outcome.unplaceable]
    plain["unfinished"] = [astuple(job) for job in outcome.unfinished]
    plain["not_completed"] = [astuple(job) for job in outcome.not_completed]
    plain["pair_estimates"] = None
    if outcome.pair_estimates is not None:
        plain["pair_estimates"] = asdict(outcome.pair_estimates)
    plain["run_time_errors"] = asdict(outcome.run_time_errors)
    plain["job_kinds"] = run.job_kinds
    plain["workload_facts"] = asdict(run.workload)

    # 2. Arrays.
    arrays: dict[str, NDArray[Any]] = {name: getattr(outcome, name) for name in JOB_COLUMNS}
    for name in STAY_COLUMNS:
        arrays[f"stays_{name}"] = getattr(stays, name)
    arrays["in_use_time_s"] = utilisation.time_s
    arrays["in_use_gpus"] = utilisation.gpus_in_use
    arrays["plain"] = np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8)
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load(path: Path) -> FinishedRun | None:
    """Read a run's file; None if it is missing or broken."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _run({name: arrays[name] for name in arrays.files})
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError, zlib.error):
        return None


def _run(arrays: Mapping[str, NDArray[Any]]) -> FinishedRun:
    """Return the run of a file's arrays: JSON has lists and objects in place of its types."""
    # 1. Fields that are plain data or arrays.
    plain = json.loads(arrays["plain"].tobytes())
    values: dict[str, Any] = {name: plain[name] for name in PLAIN}
    for name in ("job_ids", "nodes"):
        values[name] = tuple(plain[name])
    for name in JOB_COLUMNS:
        values[name] = arrays[name]
    for name in ("unplaceable", "unfinished", "not_completed"):
        values[name] = tuple(Unplaceable(*job) for job in plain[name])

    # 2. Fields with types of their own.
    devices = tuple(tuple(of_stay) for of_stay in plain["devices"])
    stays = Stays(devices=devices, **{name: arrays[f"stays_{name}"] for name in STAY_COLUMNS})
    utilisation = Utilisation(arrays["in_use_time_s"], arrays["in_use_gpus"], plain["gpus"])
    outcome = Outcome(
        run_time_errors=_run_time_errors(plain["run_time_errors"]),
        switches=_switches(plain["switches"]),
        stays=stays,
        utilisation=utilisation,
        pair_estimates=_pair_estimates(plain["pair_estimates"]),
        **values,
    )

    # 3. The workload.
    facts = plain["workload_facts"]
    facts["skipped"] = tuple(tuple(line_and_problem) for line_and_problem in facts["skipped"])
    return FinishedRun(outcome, tuple(plain["job_kinds"]), WorkloadFacts(**facts))


def _run_time_errors(plain: Mapping[str, Any]) -> RunTimeErrors:
    """Return the errors of predicted run times from plain data."""
    total = plain["total"]
    return RunTimeErrors(
        None if total is None else ErrorRow(**total),
        tuple(ErrorRow(**row) for row in plain["by_source"]),
        tuple(ErrorRow(**row) for row in plain["by_user"]),
    )


def _pair_estimates(plain: Mapping[str, Any] | None) -> PairEstimates | None:
    """Return the errors of estimated pairs from plain data."""
    if plain is None:
        return None
    of_all = ErrorSummary(**plain["all"])
    of_those_that_ran = ErrorSummary(**plain["ran"])
    return PairEstimates(of_all, of_those_that_ran, plain["measured"])


def _switches(plain: Mapping[str, Any]) -> Switches:
    """Return switches from plain data."""
    times = tuple((int(jobs), float(seconds)) for jobs, seconds in plain["decision_times"])
    return Switches(**{**plain, "decision_times": times})


def read_timings(folder: Path, run: Run) -> dict[str, Any]:
    """Return the wall seconds of a finished run; {} if they are lost."""
    path = folder / "runs" / f"{run.key}.timings.json"
    try:
        timings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return timings


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file to write beside `path`; it is moved there unless an error is raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file's text."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
