"""Acceptance and state reports of assignments, by compare-and-swap."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from clusters.agent_errors import (
    INT,
    AgentCallError,
    check_number,
    check_text,
    invalid,
    stale_assignment,
)
from clusters.intervals import intervals_of, job_lease_s
from clusters.models import Node
from clusters.plausible import CLOCK_S, Dropped
from clusters.services.implausible import note_dropped
from controlplane.execution import slurm
from controlplane.execution.gangs import (
    GangImpossibleError,
    check_gang,
    gpus_of,
    is_rank,
    rendezvous,
    token_of,
)
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import assignment_ended, assignment_running, end_assignment
from controlplane.execution.seats import hosts_of, is_held
from controlplane.execution.services.sessions import lock_own, lock_session
from controlplane.execution.teams import OtherTeamError, bind_to_team
from jobs.arrays.selectors import variables_of
from jobs.assignment_lifecycle import (
    ENDED,
    LIVE,
    MOVE_TO,
    AssignmentMove,
    IllegalAssignmentMoveError,
)
from jobs.launch_tokens import launch_token
from jobs.models import Assignment, Job
from jobs.secrets import SecretMissing, reveal_references
from loadmaster.features import (
    BATCH,
    CONTAINER_SCRIPTS,
    GANG,
    ISOLATED,
    LIMITS,
    LOG_ENDS,
    PROGRAMS,
    SIGNAL,
)
from loadmaster.protocol import Accept, AssignmentState, LaunchSpec, ReasonClass, StateReport
from profiling.reports import FASTEST

YEAR_S = 366 * 86_400.0

LONGEST_REASON = 2000
"""Most characters of a reason that are kept."""

IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

NOT_REPORTED_BY_AGENTS = frozenset(
    {AssignmentState.OFFERED, AssignmentState.UNKNOWN, AssignmentState.LOST}
)
"""States that the server alone gives."""

DEFAULT_REASON = {
    AssignmentState.FAILED: ReasonClass.USER,
    AssignmentState.PREEMPTED: ReasonClass.PREEMPT,
}
"""Class of the reason for an end that an agent reports without one."""


def launch_spec(assignment: Assignment) -> LaunchSpec:
    """Return the specification of a launch, secrets in plain. Raises jobs.secrets.SecretMissing."""
    job = assignment.job
    node = assignment.node
    by_device = assignment.slots.select_related("device").order_by("device__uuid", "slot")
    slots = list(by_device) if assignment.gpus else []
    place = "" if assignment.purpose == "profiling" else job.checkpoint_place
    gets_token = bool(job.script) and PROGRAMS in node.features and not is_held(assignment)
    head_bytes, tail_bytes = node.cluster.log_ends if LOG_ENDS in node.features else (0, 0)
    return LaunchSpec(
        assignment=str(assignment.pk),
        job=str(job.pk),
        job_name=job.name,
        fence=assignment.fence,
        runtime=job.runtime,
        command=tuple(job.command),
        devices=tuple(slot.device.uuid for slot in slots),
        gpu_type=node.type_name,
        purpose=assignment.purpose,
        copy=assignment.copy,
        image=job.image,
        image_digest=job.image_digest,
        environment={
            **{n: value for n, value in job.environment.items() if isinstance(value, str)},
            **variables_of(job),
            **(slurm.variables_of(assignment) if job.script else {}),
        },
        secrets={} if is_held(assignment) else reveal_references(job.team, job.environment),
        mounts=tuple(job.mounts),
        rank=assignment.rank,
        world_size=assignment.world_size if is_rank(assignment) else 1,
        rendezvous=rendezvous(assignment),
        slot=slots[0].slot if slots else 0,
        share=assignment.share,
        cpu_quota=assignment.cpu_quota,
        cores=job.cores * assignment.units,
        memory_gb=job.memory_gb * assignment.units,
        steps=job.total_steps,
        steps_quota=assignment.steps_quota,
        term_until_s=assignment.term_until.timestamp() if assignment.term_until else None,
        # Its guard keeps what it was told first; whoever asks again is told the same.
        grace_s=node.cluster.grace_s if assignment.grace_s is None else assignment.grace_s,
        checkpoint_place=place,
        kind=job.kind.digest,
        kind_name=job.kind.name,
        required_features=required_features(job, assignment, place),
        gang_token=token_of(assignment),
        gang_gpus=gpus_of(assignment),
        walltime_s=job.killed_after_s or 0.0,
        deadline_s=job.deadline_at.timestamp() if job.deadline_at else 0.0,
        signal=job.signal if job.needs_signal else "",
        script=job.script,
        folder=job.folder,
        output=slurm.file_name(job.output, job, node.name),
        error_output=slurm.file_name(job.error_output, job, node.name),
        hosts=hosts_of(assignment) if job.needs_batch else (),
        held=is_held(assignment),
        log_head_bytes=head_bytes,
        log_tail_bytes=tail_bytes,
        team=job.team_id if ISOLATED in node.features else 0,
        script_token=launch_token(assignment) if gets_token else "",
    )


def required_features(job: Job, assignment: Assignment, checkpoint_place: str) -> tuple[str, ...]:
    """Features that the agent must have; one without them rejects the assignment."""
    wanted = {
        job.runtime: True,
        "emulated": assignment.node.emulated,
        "checkpoint": bool(checkpoint_place),
        "steps_quota": assignment.steps_quota is not None,
        GANG: is_rank(assignment),
        BATCH: job.needs_batch,
        CONTAINER_SCRIPTS: job.needs_container_scripts,
        LIMITS: job.needs_limits,
        SIGNAL: job.needs_signal,
    }
    return tuple(sorted(name for name, needed in wanted.items() if needed))


def accept(
    node_pk: UUID, assignment_id: UUID, request: Accept, now: datetime | None = None
) -> LaunchSpec:
    """Accept an offer: its lease begins. The session may repeat it; refused if stale."""
    now = now or timezone.now()
    with transaction.atomic():
        node = lock_session(node_pk, request.epoch)
        assignment = lock_own(node, assignment_id, request.fence)
        try:
            check_gang(assignment, node)
            bind_to_team(node, assignment.job)
            spec = launch_spec(assignment)
        except (SecretMissing, GangImpossibleError, OtherTeamError) as problem:
            blame = ReasonClass.USER if isinstance(problem, SecretMissing) else ReasonClass.NODE
            _reject(assignment, request.epoch, blame, str(problem), now)
            refusal = stale_assignment(f"assignment {assignment_id} cannot start: {problem}")
        else:
            _take(node, assignment, request.epoch, spec.grace_s, now)
            return spec
    raise refusal  # after the commit, so that the rejection stays


def _take(node: Node, assignment: Assignment, epoch: int, grace_s: float, now: datetime) -> None:
    """Accept an offer for a session; one that it has accepted before needs nothing.

    Refused if the assignment is over, or another session's.
    """
    if assignment.state == AssignmentState.OFFERED and assignment.desired == "run":
        lease_s = job_lease_s(intervals_of(node.cluster), assignment.job.on_disconnect)
        values: dict[str, Any] = {"epoch": epoch, "accepted_at": now, "grace_s": grace_s}
        values |= {"renewed_at": now, "lease_expires_at": now + timedelta(seconds=lease_s)}
        move_assignment(assignment, AssignmentMove.ACCEPT, **values)
    elif assignment.state not in LIVE or assignment.epoch != epoch:
        raise stale_assignment(
            f"assignment {assignment.pk} is {assignment.state} and not on offer to this session"
        )


def _reject(
    assignment: Assignment, epoch: int, blame: ReasonClass, reason: str, now: datetime
) -> None:
    """Reject an offer that cannot start; what was accepted before goes on."""
    if assignment.state != AssignmentState.OFFERED:
        return
    text = reason[:LONGEST_REASON]
    end_assignment(assignment, AssignmentMove.REJECT, blame, text, now, epoch=epoch)


def report_state(
    node_pk: UUID, assignment_id: UUID, report: StateReport, now: datetime | None = None
) -> AssignmentState:
    """Move an assignment, and its job with it, as its agent reports; return the state now held.

    A replay (known `seq` and state, or a known end) changes nothing; other old reports are refused.
    """
    now = now or timezone.now()
    _check(report)
    with transaction.atomic():
        # 1. The assignment, and the report without figures that cannot be.
        node = lock_session(node_pk, report.epoch)
        assignment = lock_own(node, assignment_id, report.fence)
        report, dropped = _plausible(assignment, report, now)
        note_dropped({node.pk: dropped} if dropped.figures else {}, now)

        # 2. A replay changes nothing; another old report is refused.
        if _is_replay(assignment, report):
            return AssignmentState(assignment.state)
        _check_fresh(assignment, report)

        # 3. Its facts: the job's image, and progress within a state.
        if report.image_digest:
            Job.objects.filter(pk=assignment.job_id, image_digest="").update(
                image_digest=report.image_digest
            )
        if assignment.state == report.to:
            Assignment.objects.filter(pk=assignment.pk, epoch=assignment.epoch).update(
                **_report_values(report)
            )
            return report.to

        # 4. The move to another state, and what follows from it for the job.
        data = {"seq": report.seq}
        if report.exit_code is not None:
            data["exit_code"] = report.exit_code
        values = _changed_fields(assignment, report, now)
        observed_at = datetime.fromtimestamp(report.observed_at_s, UTC)
        try:
            move_assignment(
                assignment, MOVE_TO[report.to], observed_at=observed_at, data=data, **values
            )
        except IllegalAssignmentMoveError as error:
            raise AgentCallError(409, "illegal_move", str(error)) from error
        if assignment.state == AssignmentState.RUNNING:
            assignment_running(assignment, now)
        elif assignment.state in ENDED:
            assignment_ended(assignment, now)
        return AssignmentState(assignment.state)


def _plausible(
    assignment: Assignment, report: StateReport, now: datetime
) -> tuple[StateReport, Dropped]:
    """Return the report without figures that cannot be, and a note of these.

    They are a time in the future, and more steps than a launch can make.
    """
    dropped = Dropped()
    observed_at_s = dropped.in_time(report.observed_at_s, now.timestamp())
    most = assignment.start_steps + FASTEST * (longest_s(assignment, now) + CLOCK_S)
    are_possible = dropped.within("steps", report.steps, 0, most) is not None
    steps = report.steps if are_possible else None
    return replace(report, observed_at_s=observed_at_s, steps=steps), dropped


def _check(report: StateReport) -> None:
    """Refuse a report with a state or a value that no agent may report."""
    if report.to in NOT_REPORTED_BY_AGENTS:
        raise invalid("to", f"an agent cannot report {report.to}")
    check_number("seq", report.seq, 0, inf)
    check_number("steps", report.steps, 0, inf)
    check_number("exit_code", report.exit_code, -INT - 1, INT)
    check_text("container", report.container, 200)
    check_number("prepared_fraction", report.prepared_fraction, 0, 1)
    check_number("ran_s", report.ran_s, 0, inf)
    if report.image_digest and not IMAGE_DIGEST.fullmatch(report.image_digest):
        raise invalid("image_digest", "must be sha256: and 64 hexadecimal digits")


def _report_values(report: StateReport) -> dict[str, Any]:
    """Return the columns that change also by a report within a state."""
    values: dict[str, Any] = {"report_seq": report.seq}
    if report.prepared_fraction is not None:
        values["prepared_fraction"] = report.prepared_fraction
    return values


def _is_replay(assignment: Assignment, report: StateReport) -> bool:
    """Return True if the server knows this report already."""
    # 1. It is the newest one, or tells the end that is known.
    is_newest = report.seq == assignment.report_seq
    if assignment.state == report.to and (assignment.state in ENDED or is_newest):
        return True

    # 2. It is an earlier one, by the assignment's history.
    known = assignment.events.filter(to_state=report.to, data__seq=report.seq)
    return report.seq <= assignment.report_seq and known.exists()


def _check_fresh(assignment: Assignment, report: StateReport) -> None:
    """Refuse a report of an ended assignment, of another session, or older than a known one.

    Of an offer no session has the assignment yet, and an agent may reject it.
    """
    if assignment.state in ENDED:
        raise stale_assignment(f"assignment {assignment.pk} is over ({assignment.state})")
    is_offer = assignment.state == AssignmentState.OFFERED
    rejects_offer = is_offer and report.to is AssignmentState.REJECTED
    if assignment.epoch != report.epoch and not rejects_offer:
        raise stale_assignment(
            f"assignment {assignment.pk} is not held by the session of epoch {report.epoch}"
        )
    if report.seq <= assignment.report_seq:
        raise stale_assignment(
            f"report {report.seq} is older than report {assignment.report_seq}, which is known"
        )


def _changed_fields(assignment: Assignment, report: StateReport, now: datetime) -> dict[str, Any]:
    """Return the columns that a move to another state changes."""
    values = {**_report_values(report), "epoch": report.epoch}
    if report.container:
        values["container"] = report.container
    if report.steps is not None and report.steps > assignment.steps_done:
        values["steps_done"] = report.steps
    if report.to is AssignmentState.RUNNING and assignment.running_at is None:
        values["running_at"] = now
    if report.to in ENDED:
        # The end of a short launch comes without an earlier report of its start.
        if report.ran_s is not None and assignment.running_at is None:
            values["running_at"] = _began(assignment, report.ran_s, now)
        values["exit_code"] = report.exit_code
        values["reason_class"] = report.reason_class or DEFAULT_REASON.get(report.to) or ""
        values["reason"] = report.reason[:LONGEST_REASON]
        values["ended_at"] = now
    return values


def _began(assignment: Assignment, ran_s: float, now: datetime) -> datetime:
    """Return when a launch began that has ended after so long: not before its acceptance."""
    return now - timedelta(seconds=min(ran_s, longest_s(assignment, now)))


def longest_s(assignment: Assignment, now: datetime) -> float:
    """Return the longest time in seconds for which it can have run.

    A year if `accepted_at` lies in the future: the server's clock was ahead then, and how long it
    ran is not known.
    """
    gone_s = (now - (assignment.accepted_at or now)).total_seconds()
    return gone_s if gone_s >= 0.0 else YEAR_S
