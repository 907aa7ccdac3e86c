"""Builders for rounds on the live cluster: a round in this process, and agents' words without
agents.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Cluster, Device, Node, Reason
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, Solve, hold_round
from controlplane.loop.models import Round
from controlplane.loop.rounds import RoundResult
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs.models import Assignment, Job
from loadmaster.protocol import Accept, AssignmentState, ReasonClass, StateReport
from loadmaster.samples import MetricsBatch, ProgressSample
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import JobPhase, JobView, RankPlacement, Snapshot
from tests.builders import a_job

IN_ONE_TRANSACTION_S = 600.0
"""A test's round is inside of the test's transaction, where no other connection could renew its
lock: it gets a long one.
"""


def a_round(
    cluster: Cluster,
    solve: Solve = solve_here,
    *,
    at_s: float | None = None,
    reason: Reason = Reason.OPERATOR,
) -> Round:
    """Ask for a round and hold it, with the cluster's policy unless another `solve` is given; its
    row.
    """
    request_reschedule(cluster, reason)
    assert a_round_of_waiting_events(cluster, solve, at_s=at_s) is not None
    return Round.objects.filter(cluster=cluster).latest("number")


def a_round_of_waiting_events(
    cluster: Cluster,
    solve: Solve = solve_here,
    *,
    at_s: float | None = None,
    watch: Watch = THIS_MACHINE,
) -> RoundResult | None:
    """Hold a round if events wait."""
    clock = (lambda: at_s) if at_s is not None else (lambda: timezone.now().timestamp())
    long_s = IN_ONE_TRANSACTION_S
    return hold_round(cluster.pk, Ports(solve, clock, expiry_s=long_s, renew_s=long_s, watch=watch))


def placing(**places: tuple[Any, ...]) -> Solve:
    """A policy that places jobs, by name, as told: job=(node, device, ...). The others wait."""

    def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        ids = {job.name: job.id for job in snapshot.jobs}
        placements = tuple(
            Placement(ids[name], (RankPlacement(str(node.pk), tuple(d.uuid for d in devices)),))
            for name, (node, *devices) in places.items()
            if name in ids
        )
        placed = {p.job for p in placements}
        waiting = tuple(
            Waiting(job.id, _code(job)) for job in snapshot.jobs if job.id not in placed
        )
        return Plan("told", PlanStatus.HEURISTIC, placements, waiting)

    return solve


def _code(job: JobView) -> WaitCode:
    return WaitCode.AWAITING_PROFILE if job.phase is JobPhase.PROFILING else WaitCode.POSTPONED


def taken(assignment: Assignment) -> Assignment:
    """The agent has accepted the offer and runs it."""
    accepted(assignment)
    return said(assignment, AssignmentState.RUNNING)


def accepted(assignment: Assignment) -> None:
    """The agent has accepted the offer."""
    node = assignment.node
    if node.epoch == 0:
        node.epoch = 1
        node.save(update_fields=["epoch"])
    accept(node.pk, assignment.pk, Accept(epoch=node.epoch, fence=assignment.fence))


def said(
    assignment: Assignment,
    state: AssignmentState,
    reason_class: ReasonClass | None = None,
    **values: Any,
) -> Assignment:
    """The agent has reported a state."""
    assignment.refresh_from_db()
    assignment.node.refresh_from_db()
    seq, now_s = assignment.report_seq + 1, timezone.now().timestamp()
    reason = reason_class or (ReasonClass.PREEMPT if state is AssignmentState.PREEMPTED else None)
    report = StateReport(
        assignment.node.epoch,
        assignment.fence,
        seq,
        state,
        now_s,
        **{"exit_code": 0, "reason_class": reason, **values},
    )
    report_state(assignment.node_id, assignment.pk, report)
    assignment.refresh_from_db()
    return assignment


def progressed(assignment: Assignment, steps: int, event: str = "progress") -> None:
    """The agent has reported progress (event "checkpoint": saved)."""
    assignment.refresh_from_db()
    sample = ProgressSample(timezone.now().timestamp(), event, steps, steps, 1.0)
    batch = MetricsBatch(
        assignment.node.epoch, assignment.fence, assignment.metrics_seq + 1, (sample,)
    )
    record_metrics(assignment.node, assignment.pk, batch)


def devices_of(node: Node) -> list[Device]:
    """A node's devices in their order."""
    return list(node.devices.order_by("uuid"))


def changes_of(row: Round) -> dict[str, str]:
    """What the round did to each job, by name."""
    names = {str(j.pk): j.name for j in Job.objects.all()}
    return {names[c["job"]]: c["change"] for c in row.changes}


def refused(row: Round) -> dict[str, str]:
    """Why what the round did not launch was not launched, by the job's name."""
    names = {str(j.pk): j.name for j in Job.objects.all()}
    return {names[r["job"]]: r["code"] for r in row.rejected}


def running(cluster: Cluster, name: str, node: Node, *devices: Device, **values: Any) -> Assignment:
    """A job of that name that runs on these devices since a round placed it there."""
    job = a_job(cluster, name=name, **{"gpus_max": 2, **values})
    live = {
        a.job.name: (a.node, *(s.device for s in a.slots.all()))
        for a in Assignment.objects.filter(ended_at=None)
    }
    a_round(cluster, placing(**{name: (node, *devices)}, **live))
    return taken(Assignment.objects.get(job=job))


def utc(at_s: float) -> datetime:
    """A time of so many seconds since the epoch."""
    return datetime.fromtimestamp(at_s, UTC)
