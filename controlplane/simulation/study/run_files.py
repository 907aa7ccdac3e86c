"""A finished run as a file: outcome and workload facts, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import (
    Outcome,
    PairEstimates,
    Stays,
    Unplaceable,
    Utilisation,
)
from profiling.pairs.estimates import ErrorSummary

JOB_COLUMNS = (
    "arrival_s", "first_start_s", "completion_s", "due_s", "tardiness_weight", "busy_s", "gpu_s",
    "fastest_s",
    "launches", "preemptions", "migrations", "failures", "job_kwh", "job_cost",
)  # fmt: skip
TOTALS = (
    "energy_kwh",
    "energy_cost",
    "tardiness_cost",
    "unfinished_cost",
    "emissions_kg",
    "rounds",
    "makespan_s",
    "rounds_skipped",
)


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
        """Of a workload that was loaded."""
        arrival_s = workload.jobs.columns.numbers["arrival_s"]
        span_s = float(arrival_s.max() - arrival_s.min()) if len(arrival_s) else 0.0
        skipped = tuple((bad.line, bad.problem) for bad in workload.skipped)
        return cls(
            workload.name, len(workload.jobs), len(workload.kinds), span_s, workload.facts, skipped
        )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """An outcome, the kind of each job in workload order, and the workload's facts."""

    outcome: Outcome
    job_kinds: tuple[str, ...]
    workload: WorkloadFacts


def save(path: Path, run: FinishedRun) -> None:
    """Write the run, but for its timings."""
    outcome = run.outcome
    arrays: dict[str, NDArray[Any]] = {name: getattr(outcome, name) for name in JOB_COLUMNS}
    arrays |= {
        "job_ids": _texts(outcome.job_ids),
        "job_kinds": _texts(run.job_kinds),
        "nodes": _texts(outcome.nodes),
    }
    arrays |= {
        f"stays_{name}": getattr(outcome.stays, name)
        for name in ("job", "node", "start_s", "end_s")
    }
    arrays["stays_devices"] = _texts(["\n".join(devices) for devices in outcome.stays.devices])
    arrays |= {
        "in_use_time_s": outcome.utilisation.time_s,
        "in_use_gpus": outcome.utilisation.gpus_in_use,
    }
    arrays["head"] = np.array(json.dumps(_head(run)))
    with Replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load(path: Path) -> FinishedRun | None:
    """The run in a file; None if there is none, or none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _run({name: arrays[name] for name in arrays.files})
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


class Replacing:
    """A file written beside its place and moved there unless something is raised."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.part

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.part.replace(self.path)
        else:
            self.part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file's text."""
    with Replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _texts(values: Sequence[str]) -> NDArray[Any]:
    return np.array(values, dtype=np.str_)


def _head(run: FinishedRun) -> dict[str, Any]:
    outcome, workload = run.outcome, run.workload
    return {
        "policy": outcome.policy, "workload": outcome.workload, "seed": outcome.seed,
        "switches": outcome.switches.plain(),
        "totals": {name: getattr(outcome, name) for name in TOTALS},
        "gpus": outcome.utilisation.gpus,
        "unplaceable": [[u.index, u.job, u.reason] for u in outcome.unplaceable],
        "unfinished": [[u.index, u.job, u.reason] for u in outcome.unfinished],
        "round_jobs": outcome.round_jobs,
        "gather_s": outcome.gather_s, "workload_name": workload.name, "jobs": workload.jobs,
        "kinds": workload.kinds,
        "span_s": workload.span_s, "facts": dict(workload.facts),
        "skipped": [list(bad) for bad in workload.skipped],
        "pair_estimates": outcome.pair_estimates and asdict(outcome.pair_estimates),
    }  # fmt: skip


def _run(arrays: Mapping[str, NDArray[Any]]) -> FinishedRun:
    head = json.loads(str(arrays["head"]))
    columns: dict[str, Any] = {name: arrays[name] for name in JOB_COLUMNS}
    outcome = Outcome(
        policy=head["policy"],
        workload=head["workload"],
        seed=head["seed"],
        switches=Switches.of(head["switches"]),
        job_ids=_names(arrays["job_ids"]),
        nodes=_names(arrays["nodes"]),
        stays=_stays(arrays),
        utilisation=Utilisation(arrays["in_use_time_s"], arrays["in_use_gpus"], head["gpus"]),
        unplaceable=tuple(Unplaceable(*one) for one in head["unplaceable"]),
        unfinished=tuple(Unplaceable(*one) for one in head["unfinished"]),
        round_jobs=head["round_jobs"],
        gather_s=head["gather_s"],
        pair_estimates=_estimates(head["pair_estimates"]),
        **head["totals"],
        **columns,
    )
    skipped = tuple((line, problem) for line, problem in head["skipped"])
    facts = WorkloadFacts(
        head["workload_name"], head["jobs"], head["kinds"], head["span_s"], head["facts"], skipped
    )
    return FinishedRun(outcome, _names(arrays["job_kinds"]), facts)


def _estimates(found: Mapping[str, Any] | None) -> PairEstimates | None:
    if found is None:
        return None
    return PairEstimates(
        ErrorSummary(**found["all"]), ErrorSummary(**found["ran"]), found["measured"]
    )


def _stays(arrays: Mapping[str, NDArray[Any]]) -> Stays:
    devices = tuple(
        tuple(text.split("\n")) if text else () for text in _names(arrays["stays_devices"])
    )
    return Stays(
        arrays["stays_job"],
        arrays["stays_node"],
        devices,
        arrays["stays_start_s"],
        arrays["stays_end_s"],
    )


def _names(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(array.tolist())
