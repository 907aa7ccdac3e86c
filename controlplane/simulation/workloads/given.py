"""Jobs as a JSON list, in the documented form of a snapshot's: a live cluster's queue or history, or made by a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import BadLine, Workload
from controlplane.simulation.workloads.columns import by_arrival, rows
from controlplane.simulation.workloads.lines import Findings
from controlplane.simulation.workloads.options import Context
from policies.forms import Form, FormError
from policies.snapshot import JobColumns, JobPhase, Jobs, JobView, KindView
from policies.snapshot_json import RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """`jobs` and `kinds` as in a snapshot's JSON form (policies/schemas/snapshot.schema.json).

    `whole`: do all steps of each job (a history), not only the remaining ones (a queue). `sort`: put the jobs in order of arrival,
    which a queue or a history need not be in, instead of refusing those that are not.
    """

    type: str
    jobs: tuple[dict[str, Any], ...]
    kinds: tuple[KindView, ...]
    name: str = "jobs"
    whole: bool = False
    sort: bool = True


_JOB = Form(JobView, RULES)


def read(options: Given, context: Context) -> Workload:
    """The jobs as they were submitted: what runs in the list has not begun. Bad items are counted from 1, as lines are."""
    found, numbers, findings = [], [], Findings()
    kinds = {k.id for k in options.kinds}
    for number, item in enumerate(options.jobs, start=1):
        try:
            found.append(_job(item, kinds, whole=options.whole))
            numbers.append(number)
        except FormError as error:
            findings.unreadable.append(BadLine(number, str(error)))
    findings.lines = np.array(numbers, dtype=np.int64)
    jobs = Jobs(JobColumns.of(found))
    findings.repeated(jobs.columns.ids)
    if not options.sort:
        findings.unsorted(jobs.columns.numbers["arrival_s"])
    skipped = findings.settle(options.name, skip_bad=context.skip_bad)
    jobs, start_s = by_arrival(rows(jobs, np.flatnonzero(findings.good)))
    used = set(jobs.columns.kinds)
    facts = {"format": "jobs", "first_arrival_s": start_s}
    return Workload(options.name, jobs, tuple(k for k in options.kinds if k.id in used), skipped, facts)


def _job(item: Mapping[str, Any], kinds: set[str], *, whole: bool) -> JobView:
    job: JobView = _JOB.read(dict(item), "")
    steps = job.total_steps if whole and job.total_steps else job.remaining_steps
    if job.kind not in kinds:
        raise FormError(f"kind: {job.kind!r} is not among the kinds")
    if job.gpus_max < job.gpus_min:
        raise FormError(f"gpus_max: must be >= gpus_min ({job.gpus_min}), not {job.gpus_max}")
    if job.total_steps and job.remaining_steps > job.total_steps:
        raise FormError(f"remaining_steps: must be <= total_steps ({job.total_steps:g}), not {job.remaining_steps:g}")
    if steps <= 0:
        raise FormError("remaining_steps: there is nothing left to do")
    return replace(
        job, remaining_steps=steps, total_steps=steps, phase=JobPhase.WAITING, running=(), received_s=()
    )  # fmt: skip
