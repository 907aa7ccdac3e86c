"""What the pages of jobs show, in a constant number of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Value, When
from django.utils import timezone
from django.utils.functional import cached_property

from clusters.models import Assignment
from controlplane import formats
from jobs.lifecycle import ENDED, PLACED, JobState
from jobs.models import Job
from jobs.selectors import fraction_of, id_begins, listed_jobs, names_in_waiting, visible_jobs
from jobs.wording import reason_for_waiting

PAGE_SIZE = 50
MOST_LISTED = 10_000

_PLACED = sorted(PLACED | {JobState.CANCELLING})
_WAITING = sorted({JobState.QUEUED, JobState.PROFILING, JobState.HELD})

STATE_FILTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "": ("Running and waiting", (*_PLACED, *_WAITING)),
    "running": ("Running", tuple(_PLACED)),
    "waiting": ("Waiting", tuple(_WAITING)),
    "completed": ("Completed", (JobState.COMPLETED,)),
    "failed": ("Failed or cancelled", (JobState.FAILED, JobState.CANCELLED)),
    "all": ("All", tuple(JobState)),
}
"""The queue's filter by state: its name in the address -> (words, states)."""


@dataclass(frozen=True, slots=True)
class QueueFilters:
    """What a person asked the queue for; unknown values are as good as none."""

    state: str = ""
    team: str = ""
    mine: bool = False
    search: str = ""

    @property
    def any(self) -> bool:
        """Whether jobs may have been filtered away."""
        return bool(self.state or self.team or self.mine or self.search)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: a number of GPUs of a type on a node."""

    node: str
    gpu_type: str
    gpus: int
    emulated: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of the queue. `eta_s` is the time left at the present speed, `tone` colours the due date."""

    job: Job
    places: tuple[Place, ...]
    percent: float
    steps_per_s: float | None
    eta_s: float | None
    due: str
    due_tone: str
    waiting: str

    @property
    def group(self) -> str:
        """Under which heading it stands."""
        state = JobState(self.job.state)
        if state in ENDED:
            return "Ended"
        return "Running" if str(state) in _PLACED else "Waiting"


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many jobs run, wait, and have been completed in the last day."""

    running: int
    waiting: int
    completed: int


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # generic in its stubs alone
    """Counts no further than MOST_LISTED: pages beyond are found by filters, not by leafing."""

    @cached_property
    def count(self) -> int:
        """How many there are, MOST_LISTED at most."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_LISTED].count())


def queue_page(user: User, filters: QueueFilters, number: object) -> tuple[Page[Job], list[JobRow]]:
    """A page of the queue: what runs, then what waits (most urgent first), then what has ended (latest first)."""
    page = BoundedPaginator(_filtered(user, filters).values_list("pk", flat=True), PAGE_SIZE).get_page(number)  # type: ignore[arg-type]  # any text will do
    place = {pk: i for i, pk in enumerate(page.object_list)}
    # First the ids in order, from an index alone, then the rows of this page: whole rows of a long queue are not sorted.
    return page, job_rows(user, sorted(listed_jobs(user).filter(pk__in=place), key=lambda job: place[job.pk]))


def queue_numbers(user: User) -> Numbers:
    """Two queries for the heading, both from an index alone."""
    jobs = visible_jobs(user).order_by()
    by_state = dict(jobs.filter(state__in=(*_PLACED, *_WAITING)).values_list("state").annotate(n=Count("*")))
    recent = jobs.filter(state=JobState.COMPLETED, completed_at__gte=timezone.now() - timedelta(days=1)).count()
    return Numbers(sum(by_state.get(s, 0) for s in _PLACED), sum(by_state.get(s, 0) for s in _WAITING), recent)


def job_rows(user: User, jobs: Iterable[Job]) -> list[JobRow]:
    """What a list says of each of these jobs (as `listed_jobs` reads them)."""
    jobs = list(jobs)
    names, now = names_in_waiting(user, jobs), timezone.now()
    return [_row(job, names, now) for job in jobs]


def _filtered(user: User, filters: QueueFilters) -> QuerySet[Job]:
    _, states = STATE_FILTERS.get(filters.state, STATE_FILTERS[""])
    jobs = visible_jobs(user).filter(state__in=states)
    if filters.team:
        jobs = jobs.filter(team__name=filters.team)
    if filters.mine:
        jobs = jobs.filter(user=user)
    if filters.search:
        jobs = jobs.filter(_matches(filters.search))
    return jobs.order_by(_rank().asc(), "-priority", _soonest, "-completed_at", "submitted_at", "pk")


_soonest = F("due_at").asc(nulls_last=True)


def _rank() -> Case:
    """Groups in the order of the page."""
    return Case(
        When(state__in=_PLACED, then=Value(0)),
        When(state__in=_WAITING, then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )


def _matches(search: str) -> Q:
    named = Q(name__icontains=search) | Q(kind__name__icontains=search) | Q(user__username__icontains=search)
    return named | id_begins(search)


def _row(job: Job, names: Mapping[str, str], now: datetime) -> JobRow:
    live = [a for a in getattr(job, "live_assignments", ()) if a.purpose == "training"]
    speed = next((a.steps_per_s for a in live if a.steps_per_s), None)
    text, tone = formats.due(job.due_at, now, job.completed_at)
    return JobRow(
        job=job,
        places=tuple(_place(a) for a in getattr(job, "live_assignments", ())),
        percent=100 * fraction_of(job),
        steps_per_s=speed,
        eta_s=(job.total_steps - job.steps_done) / speed if speed and job.state == JobState.RUNNING else None,
        due=text,
        due_tone=tone,
        waiting=reason_for_waiting(job.state, job.waiting_code, job.waiting_detail, names, now),
    )


def _place(assignment: Assignment) -> Place:
    node = assignment.node
    return Place(node.name, node.gpu_type.name, assignment.gpus, bool(node.emulated or node.gpu_type.emulated))


def query_of(filters: QueueFilters) -> dict[str, Any]:
    """The filters as an address would carry them."""
    values = {"state": filters.state, "team": filters.team, "mine": "1" if filters.mine else "", "search": filters.search}
    return {name: value for name, value in values.items() if value}
