"""Jobs as a JSON list in a snapshot's form: a live queue, history, or generated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import (
    FURTHEST_S,
    BadLine,
    Workload,
    by_arrival,
    rows,
)
from controlplane.simulation.workloads.lines import Findings
from controlplane.simulation.workloads.options import Context
from controlplane.simulation.workloads.said import Said
from foundation.forms import OBJECT, Form, FormError
from policies.contract.plan import Placement
from policies.contract.snapshot import JobColumns, JobPhase, Jobs, JobView, KindView, Purpose

AtOnce = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Jobs and kinds in a snapshot's JSON form (policies/contract/schemas/snapshot.schema.json).

    `whole`: do all steps of each job, not only the remaining ones. `sort`: accept any order. A job
    may also say `on_walltime` ("kill", "warn") and `array`, the name of its job array; `arrays`
    says how many elements of each run at once. Its `dependencies` are jobs or arrays, as a list
    (afterok) or {name: "afterok", "afterany" or "afternotok"}.
    `seated`: jobs that run in the list and arrive with the first one run from the start. `note`:
    for the report.
    """

    type: str
    jobs: tuple[dict[str, Any], ...]
    kinds: tuple[KindView, ...]
    name: str = "jobs"
    whole: bool = False
    sort: bool = True
    seated: bool = False
    note: str = ""
    arrays: Annotated[tuple[tuple[str, AtOnce], ...], OBJECT] = ()


_JOB = Form(JobView)

MOST_STEPS = 2**53
"""Most steps, which are counted in floats."""


def read(options: Given, context: Context) -> Workload:
    """Read jobs as submitted; running ones start anew unless seated. Items count from 1."""
    # 1. Read each job; note those that cannot be read.
    kind_ids = {kind.id for kind in options.kinds}
    said = Said.of(options.jobs, options.arrays)
    findings = Findings()
    views = []
    numbers = []
    for number, item in enumerate(options.jobs, start=1):
        try:
            views.append(_job(said.plain(item), kind_ids, whole=options.whole))
            numbers.append(number)
        except FormError as error:
            findings.unreadable.append(BadLine(number, str(error)))

    # 2. Find repeated ids and a wrong order; raise an error, or leave the bad ones out.
    findings.lines = np.array(numbers, dtype=np.int64)
    jobs = Jobs(JobColumns.of(views))
    findings.repeated(jobs.columns.ids)
    if not options.sort:
        findings.unsorted(jobs.columns.numbers["arrival_s"])
    skipped = findings.settle(options.name, skip_bad=context.skip_bad)
    jobs, start_s = by_arrival(rows(jobs, np.flatnonzero(findings.good)))

    # 3. All jobs wait at first, whatever they did where the list was made.
    listed = jobs.columns
    count = len(jobs)
    others = {
        **listed.others,
        "phase": (JobPhase.WAITING,) * count,
        "running": ((),) * count,
        "received_s": ((),) * count,
    }
    fresh = JobColumns(listed.ids, listed.kinds, listed.numbers, listed.counts, others)
    facts: dict[str, Any] = {"format": "jobs", "first_arrival_s": start_s}
    if options.note:
        facts["note"] = options.note
    used_kinds = set(listed.kinds)
    return Workload(
        options.name,
        Jobs(fresh),
        tuple(kind for kind in options.kinds if kind.id in used_kinds),
        skipped,
        facts,
        _seats(listed) if options.seated else (),
        said.rules(listed.ids),
    )


def _seats(listed: JobColumns) -> tuple[Placement, ...]:
    """Placements of the jobs that arrive at 0 and run in the list."""
    arrivals_s = listed.numbers["arrival_s"].tolist()
    seats = []
    for job, runs, arrival_s in zip(listed.ids, listed.others["running"], arrivals_s, strict=True):
        if arrival_s != 0.0:
            continue
        for run in runs:
            if run.purpose is Purpose.TRAINING and run.copy == 0:
                seats.append(Placement(job, run.ranks))
    return tuple(seats)


def _job(item: Mapping[str, Any], kinds: set[str], *, whole: bool) -> JobView:
    """Read the view of one job; `kinds`: ids that it may name. FormError for a bad field."""
    job = _JOB.read(dict(item))
    steps = job.total_steps if whole and job.total_steps else job.remaining_steps
    if job.kind not in kinds:
        raise FormError("kind", f"{job.kind!r} is not among the kinds")
    if job.gpus_max < job.gpus_min:
        raise FormError("gpus_max", f"must be >= gpus_min ({job.gpus_min}), not {job.gpus_max}")
    if job.total_steps and job.remaining_steps > job.total_steps:
        wanted = f"must be <= total_steps ({job.total_steps:g})"
        raise FormError("remaining_steps", f"{wanted}, not {job.remaining_steps:g}")
    if round(steps) < 1:
        raise FormError("remaining_steps", "there is nothing left to do")
    if steps > MOST_STEPS:
        raise FormError("remaining_steps", f"must be <= {MOST_STEPS:g}, not {steps:g}")
    if abs(job.arrival_s) > FURTHEST_S:
        raise FormError("arrival_s", f"must be within {FURTHEST_S:g} s of 0, not {job.arrival_s:g}")
    return replace(job, remaining_steps=steps, total_steps=steps)
