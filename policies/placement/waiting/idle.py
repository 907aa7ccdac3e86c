"""Idle GPUs beside waiting jobs, and why each is idle. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

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
    """Number of idle GPUs with one cause; `job`: that they are kept for, or nearest to them.

    `start_s`: when the job is expected to start there, if known.
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
    facts, found = PlanFacts(plan, snapshot), dict[tuple[IdleCode, str, float | None], int]()
    classes = _classes(snapshot, waiting)
    known: dict[object, tuple[IdleCode, str]] = {}
    for node in snapshot.nodes:
        left = facts.leftover.gpus.get(node.id, 0)
        for job, start_s, gpus in _reserved(facts, node, left):
            key = IdleCode.RESERVED, job, start_s
            found[key], left = found.get(key, 0) + gpus, left - gpus
        if left > 0:
            alike = facts.leftover.alike(node)
            if alike not in known:
                known[alike] = _nearest(facts, node, classes)
            code, job = known[alike]
            found[code, job, None] = found.get((code, job, None), 0) + left
    causes = [IdleGpus(code, gpus, job, at) for (code, job, at), gpus in found.items()]
    order = list(IdleCode)
    return tuple(sorted(causes, key=lambda c: (order.index(c.code), -c.gpus, c.job)))


def waiting_for_gpus(plan: Plan, snapshot: Snapshot) -> Mapping[str, WaitCode]:
    """Return the codes of waiting jobs that need GPUs and could have them now."""
    most, position = snapshot.jobs.columns.counts["gpus_max"], snapshot.jobs.position
    return {w.job: w.code for w in plan.waiting if w.code not in NOT_NOW and most[position[w.job]]}


def _reserved(facts: PlanFacts, node: NodeView, left: int) -> Iterator[tuple[str, float, int]]:
    """Yield (job, its expected start, GPUs) of the jobs for which a node's free GPUs are kept."""
    for job, expected in facts.reservations.get(node.id, ()):
        gpus = min(left, -(-expected.gpus // max(1, len(expected.nodes))))
        if left <= 0:
            return
        if not gpus:  # it needs none
            continue
        left -= gpus
        yield job, expected.start_s, gpus


def _classes(
    snapshot: Snapshot, waiting: Mapping[str, WaitCode]
) -> list[tuple[int, str, WaitCode]]:
    """Return the first of each class of waiting jobs: (row, job, why it waits)."""
    columns = snapshot.jobs.columns
    keys = grouping_keys(columns)
    found: dict[object, tuple[int, str, WaitCode]] = {}
    for row, job in enumerate(columns.ids):
        if job in waiting and len(found) < MOST_CLASSES:
            found.setdefault((keys[row], waiting[job]), (row, job, waiting[job]))
    return list(found.values())


def _nearest(
    facts: PlanFacts, node: NodeView, classes: list[tuple[int, str, WaitCode]]
) -> tuple[IdleCode, str]:
    """Return why the waiting job that is nearest to a start on this node does not start there."""
    found = []
    for place, (row, job, code) in enumerate(classes):
        unfit = facts.leftover.unfit(row, node)
        cause = _CAUSES[unfit]
        if code is WaitCode.AWAITING_PROFILE:
            cause = IdleCode.MEASURED_FIRST
        found.append((list(IdleCode).index(cause), place, cause, job))
    *_, cause, job = min(found)
    return cause, job


_CAUSES = {
    None: IdleCode.LEFT_FREE,
    Unfit.POWER_CAP: IdleCode.POWER_CAP,
    Unfit.TOO_FEW_GPUS: IdleCode.TOO_FEW_GPUS,
    Unfit.TOO_LITTLE: IdleCode.TOO_LITTLE,
    Unfit.UNSUITABLE: IdleCode.UNSUITABLE,
}
