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
)  # fmt: skip
STAY_COLUMNS = ("job", "node", "start_s", "end_s")
PLAIN = (
    "policy", "workload", "seed", "job_ids", "nodes", "energy_kwh", "energy_cost",
    "tardiness_cost", "unfinished_cost", "emissions_kg", "rounds", "makespan_s", "rounds_skipped",
    "rounds_changed", "round_jobs", "gather_s", "used",
)  # fmt: skip
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
        jobs, arrival_s = len(workload.jobs), workload.jobs.columns.numbers["arrival_s"]
        span_s = float(arrival_s.max() - arrival_s.min()) if jobs else 0.0
        skipped = tuple((bad.line, bad.problem) for bad in workload.skipped)
        return cls(workload.name, jobs, len(workload.kinds), span_s, workload.facts, skipped)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """An outcome, the kind of each job in workload order, and the workload's facts."""

    outcome: Outcome
    job_kinds: tuple[str, ...]
    workload: WorkloadFacts


def save(path: Path, run: FinishedRun) -> None:
    """Write the run, but for its timings."""
    outcome, stays, in_use = run.outcome, run.outcome.stays, run.outcome.utilisation
    plain = {
        **{name: getattr(outcome, name) for name in PLAIN},
        "switches": asdict(outcome.switches),
        "gpus": in_use.gpus,
        "devices": stays.devices,
        "unplaceable": [astuple(one) for one in outcome.unplaceable],
        "unfinished": [astuple(one) for one in outcome.unfinished],
        "not_completed": [astuple(one) for one in outcome.not_completed],
        "pair_estimates": outcome.pair_estimates and asdict(outcome.pair_estimates),
        "run_time_errors": asdict(outcome.run_time_errors),
        "job_kinds": run.job_kinds,
        "workload_facts": asdict(run.workload),
    }
    arrays: dict[str, NDArray[Any]] = {name: getattr(outcome, name) for name in JOB_COLUMNS}
    arrays |= {f"stays_{name}": getattr(stays, name) for name in STAY_COLUMNS}
    arrays |= {"in_use_time_s": in_use.time_s, "in_use_gpus": in_use.gpus_in_use}
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
    plain = json.loads(arrays["plain"].tobytes())
    values: dict[str, Any] = {name: plain[name] for name in PLAIN}
    values |= {name: tuple(plain[name]) for name in ("job_ids", "nodes")}
    values |= {name: arrays[name] for name in JOB_COLUMNS}
    for name in ("unplaceable", "unfinished", "not_completed"):
        values[name] = tuple(Unplaceable(*one) for one in plain[name])
    stays = {name: arrays[f"stays_{name}"] for name in STAY_COLUMNS}
    pairs, facts = plain["pair_estimates"], plain["workload_facts"]
    errors = plain["run_time_errors"]
    outcome = Outcome(
        run_time_errors=RunTimeErrors(
            errors["total"] and ErrorRow(**errors["total"]),
            *(tuple(ErrorRow(**row) for row in errors[by]) for by in ("by_source", "by_user")),
        ),
        switches=_switches(plain["switches"]),
        stays=Stays(devices=tuple(map(tuple, plain["devices"])), **stays),
        utilisation=Utilisation(arrays["in_use_time_s"], arrays["in_use_gpus"], plain["gpus"]),
        pair_estimates=pairs
        and PairEstimates(
            ErrorSummary(**pairs["all"]), ErrorSummary(**pairs["ran"]), pairs["measured"]
        ),
        **values,
    )
    workload = WorkloadFacts(**{**facts, "skipped": tuple(map(tuple, facts["skipped"]))})
    return FinishedRun(outcome, tuple(plain["job_kinds"]), workload)


def _switches(plain: Mapping[str, Any]) -> Switches:
    times = tuple((int(jobs), float(seconds)) for jobs, seconds in plain["decision_times"])
    return Switches(**{**plain, "decision_times": times})


def read_timings(folder: Path, run: Run) -> dict[str, Any]:
    """Wall seconds of a finished run; empty if lost."""
    path = folder / "runs" / f"{run.key}.timings.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write beside its place; it is moved there unless an error is raised."""
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
