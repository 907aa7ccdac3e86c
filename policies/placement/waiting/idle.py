"""Idle GPUs beside waiting jobs, and why each is idle. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import NodeView, Snapshot
from policies.placement.priced_options import grouping_keys
from policies.placement.waiting.leftover import Unfit
from policies.placement.waiting.plan_facts import PlanFacts

NOT_NOW = (WaitCode.DEPENDENCY, WaitCode.TEAM_LIMIT)
"""Reasons of jobs that may not start, whatever is free."""

MOST_CLASSES = 200
"""Most classes of waiting jobs that are compared with idle GPUs."""


class IdleCode(StrEnum):
    """Reason why GPUs are idle beside waiting jobs, the nearest to a start first."""

    RESERVED = "reserved"
    LEFT_FREE = "left_free"
    POWER_CAP = "power_cap"
    TOO_FEW_GPUS = "too_few_gpus"
    TOO_LITTLE = "too_little"
    MEASURED_FIRST = "measured_first"
    UNSUITABLE = "unsuitable"


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """Number of idle GPUs with one cause.

    `job`: the one for which they are kept, or which is nearest to a start on them. `start_s`: when
    it is expected to start there, if known.
    """

    code: IdleCode
    gpus: int
    job: str
    start_s: float | None = None


def idle_gpus(plan: Plan, snapshot: Snapshot) -> tuple[IdleGpus, ...]:
    """Return the idle GPUs beside waiting jobs by cause and job, most first.

    GPUs are idle if an open node has them and no placement. Empty if only jobs wait that need no
    GPUs, or that may not start now.
    """
    waiting = waiting_for_gpus(plan, snapshot)
    if not waiting:
        return ()
    facts = PlanFacts(plan, snapshot)
    first_jobs = _first_of_each_class(snapshot, waiting)
    gpus_by_cause: dict[tuple[IdleCode, str, float | None], int] = defaultdict(int)
    nearest_job_by_node_key: dict[object, tuple[IdleCode, str]] = {}
    for node in snapshot.nodes:
        # 1. GPUs that are kept for the jobs that are expected on the node.
        idle = facts.leftover.gpus.get(node.id, 0)
        for job, start_s, gpus in _reserved(facts, node, idle):
            gpus_by_cause[IdleCode.RESERVED, job, start_s] += gpus
            idle -= gpus
        if idle <= 0:
            continue

        # 2. The other ones, of which nodes with as much left have the same cause.
        node_key = facts.leftover.alike(node)
        if node_key not in nearest_job_by_node_key:
            nearest_job_by_node_key[node_key] = _nearest_job(facts, node, first_jobs)
        code, job = nearest_job_by_node_key[node_key]
        gpus_by_cause[code, job, None] += idle

    causes = [
        IdleGpus(code, gpus, job, start_s) for (code, job, start_s), gpus in gpus_by_cause.items()
    ]
    causes.sort(key=lambda cause: (_NEARNESS[cause.code], -cause.gpus, cause.job))
    return tuple(causes)


def waiting_for_gpus(plan: Plan, snapshot: Snapshot) -> Mapping[str, WaitCode]:
    """Return the codes of waiting jobs that need GPUs and could have them now, by job."""
    most = snapshot.jobs.columns.counts["gpus_max"]
    codes: dict[str, WaitCode] = {}
    for entry in plan.waiting:
        if entry.code not in NOT_NOW and most[snapshot.jobs.position[entry.job]]:
            codes[entry.job] = entry.code
    return codes


def _reserved(facts: PlanFacts, node: NodeView, idle: int) -> Iterator[tuple[str, float, int]]:
    """Yield (job, its expected start in s, GPUs) of the jobs for which a node's GPUs are kept.

    `idle`: number of the node's free GPUs. A job is taken to need an equal part on each node.
    """
    left = idle
    for job, expected in facts.reservations.get(node.id, ()):
        if left <= 0:
            return
        gpus = min(left, ceil(expected.gpus / max(1, len(expected.nodes))))
        if gpus:
            left -= gpus
            yield job, expected.start_s, gpus


def _first_of_each_class(
    snapshot: Snapshot, waiting: Mapping[str, WaitCode]
) -> list[tuple[int, str, WaitCode]]:
    """Return (row, job, code) of the first of each class of waiting jobs with equal codes."""
    columns = snapshot.jobs.columns
    keys = grouping_keys(columns)
    first_jobs: dict[object, tuple[int, str, WaitCode]] = {}
    for row, job in enumerate(columns.ids):
        if job in waiting and len(first_jobs) < MOST_CLASSES:
            code = waiting[job]
            first_jobs.setdefault((keys[row], code), (row, job, code))
    return list(first_jobs.values())


def _nearest_job(
    facts: PlanFacts, node: NodeView, jobs: Sequence[tuple[int, str, WaitCode]]
) -> tuple[IdleCode, str]:
    """Return (cause, job): the job nearest to a start on this node, and why it does not start.

    `jobs`: (row, job, why it waits); of equally near ones the first.
    """
    causes = []
    for row, job, code in jobs:
        cause = _CAUSES[facts.leftover.unfit(row, node)]
        if code is WaitCode.AWAITING_PROFILE:
            cause = IdleCode.MEASURED_FIRST
        causes.append((cause, job))
    return min(causes, key=lambda cause_and_job: _NEARNESS[cause_and_job[0]])


_CAUSES = {
    None: IdleCode.LEFT_FREE,
    Unfit.POWER_CAP: IdleCode.POWER_CAP,
    Unfit.TOO_FEW_GPUS: IdleCode.TOO_FEW_GPUS,
    Unfit.TOO_LITTLE: IdleCode.TOO_LITTLE,
    Unfit.UNSUITABLE: IdleCode.UNSUITABLE,
}

_NEARNESS = {code: i for i, code in enumerate(IdleCode)}
"""Position of each code, the nearest to a start first."""
