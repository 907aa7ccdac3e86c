"""Queue of jobs that a policy for training does not see: batch jobs, and those without GPUs.

A started one goes on to its end. Waiting ones start by priority, then arrival, where their units
fit, by best fit; one that does not fit lets the next one try. Each side goes first in turn: those
that are ahead of every waiting job of the policy (greater priority, or equal and earlier) take
what is free before it decides, the others take what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policies.batch.plan import BatchPlan, in_batch_queue
from policies.contract.plan import Placement, Plan, WaitCode
from policies.contract.policy import Policy
from policies.contract.snapshot import Snapshot
from policies.placement.layout import Request
from policies.placement.waiting.reasons import not_eligible


def with_batch_queue(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the policy's plan for its jobs, with the batch queue's for the others."""
    queued = in_batch_queue(snapshot) if len(snapshot.jobs) else frozenset()
    if not queued:
        return policy(snapshot)
    waits = {row: w for row, w in not_eligible(snapshot).items() if w.code is WaitCode.DEPENDENCY}
    asked = [row for row in range(len(snapshot.jobs)) if row not in queued and row not in waits]
    committed = [p for row in asked for p in _committed(snapshot, row)]
    queue = sorted(queued - waits.keys(), key=lambda row: _turn(snapshot, row))
    first = BatchPlan(snapshot, queue, committed)
    _start(first, _ahead(snapshot, queue, asked))
    hidden = queued | waits.keys()
    plan = policy(snapshot.without(hidden, held=first.placements))
    rest = [row for row in queue if snapshot.jobs.columns.ids[row] not in first.placed]
    last = BatchPlan(snapshot, rest, (*plan.placements, *first.placements))
    _start(last, rest)
    placements = (*plan.placements, *first.placements, *last.placements)
    waiting = (*plan.waiting, *last.waiting(placements), *waits.values())
    position = snapshot.jobs.position
    return replace(
        plan,
        placements=tuple(sorted(placements, key=lambda p: position[p.job])),
        waiting=tuple(sorted(waiting, key=lambda w: position[w.job])),
    )


def _turn(snapshot: Snapshot, row: int) -> tuple[int, float, int]:
    columns = snapshot.jobs.columns
    return -int(columns.counts["priority"][row]), float(columns.numbers["arrival_s"][row]), row


def _ahead(snapshot: Snapshot, queue: Sequence[int], asked: Iterable[int]) -> list[int]:
    """Return the jobs of the queue that are ahead of every waiting job of the policy."""
    running = snapshot.jobs.columns.others["running"]
    turns = [_turn(snapshot, row) for row in asked if not running[row]]
    return [row for row in queue if not turns or _turn(snapshot, row) < min(turns)]


def _committed(snapshot: Snapshot, row: int) -> list[Placement]:
    columns = snapshot.jobs.columns
    runs = columns.others["running"][row]
    return [Placement(columns.ids[row], run.ranks, run.copy, run.purpose) for run in runs]


def _start(plan: BatchPlan, rows: Iterable[int]) -> None:
    """Start those of these rows of the snapshot that fit; equal ones are asked once."""
    placed, unplaceable = plan.placed, set[tuple[Request, bool]]()
    for job in [plan.ids[row] for row in rows if plan.ids[row] not in placed]:
        row = plan.view.jobs.position[job]
        (choice,) = plan.choices(row)
        key = choice.request, plan.is_alone(row)
        if key in unplaceable or row in plan.plan.not_eligible:
            continue
        if (found := plan.find(row, choice)) is not None:
            plan.take(row, found, choice.run_s)
        else:
            unplaceable.add(key)
