"""What the page of one job shows, in a constant number of queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import F, Max, Prefetch, Q
from django.db.models.functions import Mod
from django.utils import timezone

from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import MOVES, JobMove, JobState
from jobs.models import Assignment, Job, LogChunk, ProgressPoint
from jobs.pages.history import HistoryLine, history_line
from jobs.pages.selectors import JobRow, job_rows
from jobs.selectors import JobNotFound, listed_jobs
from loadmaster.protocol import AssignmentState

LOSS_POINTS = 240
LOG_CHUNKS = 40
LOG_LINES = 300
HISTORY = 200
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Stay:
    """A past placement of the job: place, progress, cost; `moved`: it came from another place."""

    assignment: Assignment
    devices: str
    emulated: bool
    moved: bool
    ran_s: float | None
    cost: Decimal | None
    cost_is_estimate: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """Energy cost in the cluster's currency: billed or estimated so far, and predicted."""

    so_far: Decimal
    predicted: Decimal | None
    estimated: bool


@dataclass(frozen=True, slots=True)
class LossChart:
    """A line through a box of 100 x 40 and what its ends mean."""

    points: str
    first: float
    last: float
    lowest: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of output of one stream."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """Everything the page says. Stays are newest first, the ranks of a launch in their order."""

    row: JobRow
    stays: tuple[Stay, ...]
    cost: Cost
    actions: tuple[str, ...]
    history: tuple[HistoryLine, ...]
    migrations: int
    preemptions: int

    @property
    def gang(self) -> bool:
        """Whether its latest launch has several ranks, each with a log of its own."""
        return bool(self.stays) and self.stays[0].assignment.world_size > 1

    @property
    def job(self) -> Job:
        """The job itself."""
        return self.row.job


def job_page(user: User, job_id: UUID | str) -> JobPage:
    """The page of a job this user may see, else JobNotFound."""
    jobs = listed_jobs(user).select_related("cloned_from")
    job = (
        jobs.prefetch_related("attempts", Prefetch("assignments", queryset=_stays()))
        .filter(pk=job_id)
        .first()
    )
    if job is None:
        raise JobNotFound(f"there is no job {job_id}")
    now = timezone.now()
    stays = _with_moves(list(job.assignments.all()), now)
    events = list(job.events.order_by("-id")[:HISTORY])
    return JobPage(
        row=job_rows(user, [job])[0],
        stays=tuple(sorted(stays, key=lambda s: -s.assignment.fence)),
        cost=_cost(stays),
        actions=actions_for(job),
        history=tuple(history_line(e) for e in events),
        migrations=sum(s.moved for s in stays),
        preemptions=sum(
            s.assignment.state == AssignmentState.PREEMPTED
            for s in stays
            if s.assignment.purpose == "training"
        ),
    )


def actions_for(job: Job) -> tuple[str, ...]:
    """What people may do with a job in its state, by the table of moves."""
    state = JobState(job.state)
    possible = []
    if (state, JobMove.HOLD) in MOVES or (state, JobMove.PREEMPT) in MOVES:
        possible.append("hold")
    if (state, JobMove.RELEASE) in MOVES or (job.hold_wanted and state is JobState.STOPPING):
        possible.append("release")
    if (state, JobMove.REQUEUE) in MOVES:
        possible.append("requeue")
    possible.append("clone")
    if (state, JobMove.CANCEL) in MOVES or (
        state is not JobState.CANCELLING and (state, JobMove.CANCELLED) in MOVES
    ):
        possible.append("cancel")
    return tuple(possible)


def loss_chart(job: Job) -> LossChart | None:
    """Training loss over steps, thinned to about a hundred points; None with fewer than two."""
    losses = ProgressPoint.objects.filter(
        assignment__job=job, assignment__purpose="training", loss__isnull=False
    )
    span = losses.aggregate(first=Max("id"), count=Max("step"))
    if span["first"] is None:
        return None
    total = losses.count()
    thinned = losses.annotate(left=Mod(F("id"), max(1, total // LOSS_POINTS))).filter(
        Q(left=0) | Q(pk=span["first"])
    )
    points = sorted(thinned.values_list("step", "loss")[: 4 * LOSS_POINTS])
    return _chart([(s, v) for s, v in points if v is not None]) if len(points) > 1 else None


def log_tail(job: Job) -> tuple[LogPiece, ...]:
    """The last lines that the job's latest launch has written, both streams as they came in."""
    latest = (
        job.assignments.filter(log_chunks__isnull=False)
        .order_by("-fence", "rank")
        .values_list("pk", flat=True)
        .first()
    )
    chunks = (
        list(LogChunk.objects.filter(assignment=latest).order_by("-id")[:LOG_CHUNKS])
        if latest
        else []
    )
    pieces = [
        LogPiece(c.stream, _CONTROL.sub("", bytes(c.data).decode(errors="replace")))
        for c in reversed(chunks)
    ]
    return _last_lines(pieces, LOG_LINES)


def _last_lines(pieces: Sequence[LogPiece], lines: int) -> tuple[LogPiece, ...]:
    kept: list[LogPiece] = []
    for piece in reversed(pieces):
        if lines <= 0:
            break
        text = piece.text.splitlines(keepends=True)[-lines:]
        lines -= len(text)
        kept.append(LogPiece(piece.stream, "".join(text)))
    return tuple(reversed(kept))


def _stays() -> Any:
    assignments = Assignment.objects.select_related("node__gpu_type").prefetch_related(
        "slots__device"
    )
    return assignments.order_by("fence", "copy", "rank")


def _with_moves(assignments: Sequence[Assignment], now: datetime) -> list[Stay]:
    stays = []
    before: dict[int, frozenset[int]] = {}
    for assignment in assignments:
        place = frozenset(s.device_id for s in assignment.slots.all())
        training = assignment.purpose == "training"
        earlier = before.get(assignment.rank) if training else None
        stays.append(_stay(assignment, bool(earlier and place and earlier != place), now))
        if training and assignment.running_at:
            before[assignment.rank] = place
    return stays


def _stay(assignment: Assignment, moved: bool, now: datetime) -> Stay:
    devices = [s.device for s in assignment.slots.all()]
    ran_s = (
        ((assignment.ended_at or now) - assignment.running_at).total_seconds()
        if assignment.running_at
        else None
    )
    cost, estimate = _cost_of(assignment, ran_s)
    node = assignment.node
    emulated = node.emulated or node.gpu_type.emulated or any(d.emulated for d in devices)
    return Stay(
        assignment, ", ".join(d.uuid for d in devices), emulated, moved, ran_s, cost, estimate
    )


def _cost_of(assignment: Assignment, ran_s: float | None) -> tuple[Decimal | None, bool]:
    """(cost, estimated): billed, or the elapsed share of the prediction while running."""
    if assignment.energy_cost is not None:
        return assignment.energy_cost, assignment.power_source != "measured"
    predicted, run_s = assignment.predicted_energy_cost, assignment.predicted_run_s
    if predicted is None or not run_s or ran_s is None:
        return None, True
    return predicted * Decimal(ran_s / run_s), True


def _cost(stays: Sequence[Stay]) -> Cost:
    known = [s for s in stays if s.cost is not None]
    so_far = sum((s.cost for s in known if s.cost is not None), Decimal(0))
    live = [
        s
        for s in stays
        if s.assignment.state in LIVE and s.assignment.predicted_energy_cost is not None
    ]
    ended = sum(
        (s.cost for s in known if s.cost is not None and s.assignment.state not in LIVE), Decimal(0)
    )
    coming = sum((s.assignment.predicted_energy_cost or Decimal(0) for s in live), Decimal(0))
    return Cost(so_far, ended + coming if live else None, any(s.cost_is_estimate for s in known))


def _chart(points: Sequence[tuple[int, float]]) -> LossChart:
    steps, losses = [s for s, _ in points], [v for _, v in points]
    low, high = min(losses), max(losses)
    width, height = max(1, steps[-1] - steps[0]), (high - low) or 1.0
    line = " ".join(
        f"{100 * (s - steps[0]) / width:.2f},{39 - 38 * (v - low) / height:.2f}" for s, v in points
    )
    return LossChart(line, losses[0], losses[-1], low, steps[0], steps[-1])
