"""Page of one job, in a constant number of queries."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Count, F, Max, Q, Sum
from django.db.models.functions import Mod
from django.utils import timezone

from controlplane.web.pages import formats
from jobs.assignment_lifecycle import LIVE
from jobs.forecasts.expected_starts import FirstForecast, first_forecast
from jobs.lifecycle import MOVES, JobMove, JobState
from jobs.logs import STORED_BYTES, STREAMS
from jobs.models import (
    Assignment,
    AssignmentSlot,
    Job,
    JobEvent,
    LogChunk,
    ProgressPoint,
    UsagePoint,
)
from jobs.pages.selectors import JobRow, job_rows
from jobs.roles import refusal
from jobs.selectors import JobNotFound, whole_jobs
from loadmaster.protocol import AssignmentState

SENTENCES: Mapping[str, str] = {
    "submitted": "Submitted",
    "hold": "Put on hold",
    "release": "Released into the queue",
    "release_to_profile": "Released, to be measured first",
    "profile": "Its kind is measured first",
    "profiled": "Its kind is measured; back in the queue",
    "place": "Placed",
    "run": "Runs",
    "preempt": "Asked to save a checkpoint and stop",
    "stopped": "Stopped and back in the queue",
    "retry": "Failed, and is tried again",
    "complete": "Completed",
    "fail": "Failed",
    "cancel": "Asked to stop for good",
    "cancelled": "Cancelled",
    "requeue": "Requeued",
    "hold_wanted": "To be held once it has stopped",
    "hold_taken_back": "No longer to be held",
    "migrated": "Migrated",
    "checkpoint": "Saved a checkpoint",
    "progress_lost": "Progress lost",
    "profile_run": "Placed to measure its kind",
    "warning": "Note",
}

TOLD: Mapping[str, str] = {
    "reason": "{}",
    "why": "{}",
    "message": "{}",
    "warnings": "{}",
    "gpus": "GPUs: {}",
    "steps": "at step {}",
    "fence": "launch {}",
    "round": "by round {}",
}
"""Event fields that people read, in this order."""

BY_ITSELF = frozenset({"", "round"})
"""Actors that stand for Loadmaster itself."""


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """Event in words; `actor` is empty for Loadmaster itself."""

    at: datetime
    text: str
    particulars: str
    actor: str


def history_line(event: JobEvent) -> HistoryLine:
    text = SENTENCES.get(event.event, event.event.replace("_", " ").capitalize())
    data = event.data if isinstance(event.data, dict) else {}
    told = [(words, data.get(name)) for name, words in TOLD.items()]
    shown = [words.format(_plain(v)) for words, v in told if v not in (None, "", [], {})]
    actor = "" if event.actor in BY_ITSELF else event.actor
    return HistoryLine(event.at, text, " · ".join(shown), actor)


def _plain(value: Any) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)


LOSS_POINTS = 240
LOG_CHUNKS = 40
LOG_LINES = 300
HISTORY = 200
PLACEMENTS = 200
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Placement of the job; `moved`: it came from another place, `ran_s`: seconds so far."""

    assignment: Assignment
    moved: bool
    ran_s: float | None

    @property
    def emulated(self) -> bool:
        node, slots = self.assignment.node, self.assignment.slots.all()
        return node.is_emulated or any(s.device.emulated for s in slots)

    @property
    def what(self) -> str:
        """GPUs or cores that it holds, and for how many units."""
        a = self.assignment
        held = formats.amount_held(a.gpus, a.node.type_name, a.job.cores * a.units)
        return f"{held} for {a.units} unit{'s' * (a.units > 1)}" if a.job.units > 1 else held

    @property
    def cost(self) -> Decimal | None:
        """Energy cost as billed, else the elapsed share of the prediction."""
        of = self.assignment
        if of.energy_cost is not None:
            return of.energy_cost
        if of.predicted_energy_cost is None or not of.predicted_run_s or self.ran_s is None:
            return None
        return of.predicted_energy_cost * Decimal(self.ran_s / of.predicted_run_s)

    @property
    def cost_is_estimate(self) -> bool:
        """Return True unless billed by measured watts."""
        return self.assignment.energy_cost is None or self.assignment.power_source != "measured"


@dataclass(frozen=True, slots=True)
class Cost:
    """Energy cost in the cluster's currency: so far (billed or estimated) and predicted."""

    so_far: Decimal
    predicted: Decimal | None
    estimated: bool


@dataclass(frozen=True, slots=True)
class LossChart:
    """Line through a box of 100 x 40 with labels for its ends."""

    points: str
    first: float
    last: float
    lowest: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class UseNow:
    """Use of a job's running processes by their newest samples; `throttled`: withheld by quotas."""

    cores: float
    memory_gb: float
    throttled: float


@dataclass(frozen=True, slots=True)
class JobPage:
    """Content of the page; the newest placements, ranks in order, and how many `older` ones.

    `refusal` says why the user may not change the job; empty if they may.
    """

    row: JobRow
    placements: tuple[PlacementRow, ...]
    older: int
    cost: Cost
    actions: tuple[str, ...]
    refusal: str
    history: tuple[HistoryLine, ...]
    migrations: int
    preemptions: int
    first_forecast: FirstForecast | None = None
    use: UseNow | None = None

    @property
    def over_walltime(self) -> bool:
        """Return True if a launch has run longer than the walltime, which only warns."""
        job = self.row.job
        if job.walltime_s is None or job.killed_after_s is not None:
            return False
        live = [p for p in self.placements if p.assignment.ended_at is None]
        return any((p.ran_s or 0.0) > job.walltime_s for p in live)

    @property
    def gang(self) -> bool:
        """Return True if the latest launch has several processes, each with its own log."""
        several = bool(self.placements) and self.placements[0].assignment.world_size > 1
        return several and not self.row.job.runs_on_first_seat


def job_page(user: User, job_id: UUID | str) -> JobPage:
    """Return the page of a job visible to this user; raise JobNotFound otherwise."""
    jobs = whole_jobs(user).select_related("cloned_from").prefetch_related("attempts")
    job = jobs.filter(pk=job_id).first()
    if job is None:
        raise JobNotFound(f"there is no job {job_id}")
    launches = job.assignments.select_related("node__gpu_type").prefetch_related("slots__device")
    shown = list(launches.order_by("-fence", "copy", "rank")[:PLACEMENTS])
    totals, now = _totals(job), timezone.now()
    older = totals["placed"] - len(shown)
    moved = _moved(_slots_of_all(job) if older else _slots_of(shown))
    predicted = {"running_at__isnull": False, "predicted_energy_cost__isnull": False}
    unbilled = job.assignments.filter(energy_cost=None, **predicted) if older else shown
    row, refused = job_rows(user, [job])[0], refusal(user, job)
    return JobPage(
        row=row,
        placements=tuple(PlacementRow(a, a.pk in moved, _ran_s(a, now)) for a in shown),
        older=older,
        cost=_cost(totals, unbilled, now),
        actions=("clone",) if refused else actions_for(job),
        refusal=refused,
        history=tuple(map(history_line, job.events.order_by("-id")[:HISTORY])),
        migrations=len(moved),
        preemptions=totals["preemptions"],
        first_forecast=first_forecast(job),
        use=_use_now([launch for launch in shown if launch.ended_at is None], now),
    )


def _use_now(live: Sequence[Assignment], now: datetime) -> UseNow | None:
    """Return the use of these launches by samples of the last minutes; None without any."""
    recent = UsagePoint.objects.filter(assignment__in=live, at__gte=now - timedelta(minutes=5))
    newest: dict[UUID, UsagePoint] = {}
    for point in recent.order_by("at") if live else ():
        newest[point.assignment_id] = point
    if not newest:
        return None
    return UseNow(
        cores=sum(point.cores for point in newest.values()),
        memory_gb=sum(point.memory_gb for point in newest.values()),
        throttled=sum(point.throttled_cores or 0.0 for point in newest.values()),
    )


def actions_for(job: Job) -> tuple[str, ...]:
    """Actions that people may take on a job in its state."""
    state = JobState(job.state)
    possible = []
    if (state, JobMove.HOLD) in MOVES or (state, JobMove.PREEMPT) in MOVES:
        possible.append("hold")
    rests = state is JobState.QUEUED and job.retry_at is not None
    wish = state is JobState.STOPPING and job.hold_wanted
    if (state, JobMove.RELEASE) in MOVES or wish or rests:
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


def log_tail(job: Job) -> list[dict[str, str]]:
    """Pieces (stream, text) with the last lines of both streams of the latest launch.

    In the order in which they arrived.
    """
    latest = (
        job.assignments.filter(log_chunks__isnull=False)
        .order_by("-fence", "rank")
        .values_list("pk", flat=True)
        .first()
    )
    if latest is None:
        return []
    pieces = [piece for stream in STREAMS for piece in _last_of(latest, stream)]
    return [*_left_out(latest), *[shown for _, shown in sorted(pieces, key=itemgetter(0))]]


def _last_of(assignment: UUID, stream: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (key, piece) of a stream's last lines: a flood of one stream hides not the other."""
    lines, chunks = LOG_LINES, LogChunk.objects.filter(assignment=assignment, stream=stream)
    for chunk in chunks.order_by("-id")[:LOG_CHUNKS]:
        text = _CONTROL.sub("", chunk.content.decode(errors="replace"))
        last = text.splitlines(keepends=True)[-lines:]
        lines -= len(last)
        yield chunk.pk, {"stream": stream, "text": "".join(last)}
        if lines <= 0:
            break


def _left_out(assignment: UUID) -> list[dict[str, str]]:
    """Piece that says how much of a long output is left out before its last lines."""
    chunks = LogChunk.objects.filter(assignment=assignment).annotate(held=STORED_BYTES)
    size = chunks.exclude(held=F("size")).aggregate(total=Sum("size"))["total"]
    text = f"[loadmaster: {size or 0:,} bytes of the output are left out before its last part]\n"
    return [{"stream": "", "text": text}] if size else []


def _ran_s(assignment: Assignment, now: datetime) -> float | None:
    began = assignment.running_at
    return ((assignment.ended_at or now) - began).total_seconds() if began else None


Slot = tuple[UUID, int, datetime | None, int]
"""A device of a training placement: (placement, rank, when it began to run, device)."""


def _slots_of(shown: Sequence[Assignment]) -> Iterator[Slot]:
    """Slots of training placements that come newest first, in the order of launches."""
    for a in reversed(shown):
        if a.purpose == "training":
            yield from ((a.pk, a.rank, a.running_at, slot.device_id) for slot in a.slots.all())


def _slots_of_all(job: Job) -> Iterable[Slot]:
    slots = AssignmentSlot.objects.filter(assignment__job=job, assignment__purpose="training")
    columns = ("assignment_id", "assignment__rank", "assignment__running_at", "device_id")
    return slots.order_by("assignment__fence", "assignment__rank").values_list(*columns)


def _moved(slots: Iterable[Slot]) -> set[UUID]:
    """Return placements on other devices than the last one of their rank that ran."""
    moved: set[UUID] = set()
    before: dict[int, frozenset[int]] = {}
    for (pk, rank, running_at), held in groupby(slots, key=itemgetter(0, 1, 2)):
        place = frozenset(device for *_, device in held)
        if before.get(rank, place) != place:
            moved.add(pk)
        if running_at:
            before[rank] = place
    return moved


def _totals(job: Job) -> dict[str, Any]:
    """Counts and bills of all placements, by the database."""
    preempted = Q(purpose="training", rank=0, state=AssignmentState.PREEMPTED)
    live, billed = Q(state__in=LIVE), Q(energy_cost__isnull=False)
    return job.assignments.aggregate(
        placed=Count("pk"),
        preemptions=Count("pk", filter=preempted),
        so_far=Sum("energy_cost"),
        ended=Sum("energy_cost", filter=~live),
        coming=Sum("predicted_energy_cost", filter=live),
        modelled=Count("pk", filter=billed & ~Q(power_source="measured")),
    )


def _cost(totals: Mapping[str, Any], launches: Iterable[Assignment], now: datetime) -> Cost:
    """Cost of all placements: bills in sum, those of `launches` that are not billed yet by one."""
    unbilled = [a for a in launches if a.energy_cost is None]
    rows = [PlacementRow(a, False, _ran_s(a, now)) for a in unbilled]
    known = [(row.assignment.state in LIVE, row.cost) for row in rows if row.cost is not None]
    ended = sum((cost for is_live, cost in known if not is_live), totals["ended"] or Decimal(0))
    coming: Decimal | None = totals["coming"]
    return Cost(
        so_far=sum((cost for _, cost in known), totals["so_far"] or Decimal(0)),
        predicted=None if coming is None else ended + coming,
        estimated=bool(known or totals["modelled"]),
    )


def _chart(points: Sequence[tuple[int, float]]) -> LossChart:
    steps, losses = [s for s, _ in points], [v for _, v in points]
    low, high = min(losses), max(losses)
    width, height = max(1, steps[-1] - steps[0]), (high - low) or 1.0
    line = " ".join(
        f"{100 * (s - steps[0]) / width:.2f},{39 - 38 * (v - low) / height:.2f}" for s, v in points
    )
    return LossChart(line, losses[0], losses[-1], low, steps[0], steps[-1])
