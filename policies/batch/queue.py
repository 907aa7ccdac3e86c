"""Queue of jobs that a policy for training does not see: batch jobs, and those without GPUs.

A started job goes on to its end. Waiting jobs start by priority, then arrival, where their units
fit, by best fit; a job that does not fit lets the next one try. Jobs that are ahead of every
waiting training job (greater priority, or equal and earlier) take what is free before the policy
decides. The others take what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policies.batch.plan import BatchPlan, in_batch_queue
from policies.contract.plan import Placement, Plan, WaitCode, Waiting
from policies.contract.policy import Policy
from policies.contract.snapshot import Snapshot
from policies.placement.layout import Request
from policies.placement.waiting.reasons import not_eligible


def with_batch_queue(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the policy's plan for its jobs, with the batch queue's for the others."""
    # 1. Three parts: jobs that wait for others, the queue, and the policy's jobs.
    queued = in_batch_queue(snapshot) if len(snapshot.jobs) else frozenset()
    if not queued:
        return policy(snapshot)
    dependent: dict[int, Waiting] = {}
    for row, reason in not_eligible(snapshot).items():
        if reason.code is WaitCode.DEPENDENCY:
            dependent[row] = reason
    queue = sorted(queued - dependent.keys(), key=lambda row: _turn(snapshot, row))
    training = [
        row for row in range(len(snapshot.jobs)) if row not in queued and row not in dependent
    ]

    # 2. Jobs of the queue that are ahead of the policy's take what is free.
    committed: list[Placement] = []
    for row in training:
        committed += _committed(snapshot, row)
    ahead = BatchPlan(snapshot, queue, committed)
    _start(ahead, _ahead_of(snapshot, queue, training))

    # 3. The policy decides on what they leave.
    left_out = queued | dependent.keys()
    plan = policy(snapshot.without(left_out, held=ahead.placements))

    # 4. The other jobs of the queue take what is left then.
    rest = [row for row in queue if snapshot.jobs.columns.ids[row] not in ahead.placed]
    behind = BatchPlan(snapshot, rest, (*plan.placements, *ahead.placements))
    _start(behind, rest)

    # 5. The plan has all of them, in the jobs' order.
    placements = [*plan.placements, *ahead.placements, *behind.placements]
    waiting = [*plan.waiting, *behind.waiting(placements), *dependent.values()]
    position = snapshot.jobs.position
    return replace(
        plan,
        placements=tuple(sorted(placements, key=lambda placement: position[placement.job])),
        waiting=tuple(sorted(waiting, key=lambda reason: position[reason.job])),
    )


def _turn(snapshot: Snapshot, row: int) -> tuple[int, float, int]:
    """Return the key of a job's turn: the greatest priority first, then the earliest arrival."""
    columns = snapshot.jobs.columns
    return -int(columns.counts["priority"][row]), float(columns.numbers["arrival_s"][row]), row


def _ahead_of(snapshot: Snapshot, queue: Sequence[int], training: Iterable[int]) -> list[int]:
    """Return the jobs of the queue whose turn is before that of every waiting training job."""
    running = snapshot.jobs.columns.others["running"]
    turns = [_turn(snapshot, row) for row in training if not running[row]]
    if not turns:
        return list(queue)
    first_turn = min(turns)
    return [row for row in queue if _turn(snapshot, row) < first_turn]


def _committed(snapshot: Snapshot, row: int) -> list[Placement]:
    """Return the placements that a job has now."""
    columns = snapshot.jobs.columns
    runs = columns.others["running"][row]
    return [Placement(columns.ids[row], run.ranks, run.copy, run.purpose) for run in runs]


def _start(plan: BatchPlan, rows: Iterable[int]) -> None:
    """Start those of these rows of the whole snapshot that fit; equal jobs are tried once."""
    placed = plan.placed
    waiting = [plan.ids[row] for row in rows if plan.ids[row] not in placed]
    unplaceable: set[tuple[Request, bool]] = set()
    for job in waiting:
        row = plan.view.jobs.position[job]
        (choice,) = plan.choices(row)
        key = choice.request, plan.is_alone(row)
        if key in unplaceable or row in plan.builder.not_eligible:
            continue
        allocation = plan.find(row, choice)
        if allocation is None:
            unplaceable.add(key)
        else:
            plan.take(row, allocation, choice.run_s)
