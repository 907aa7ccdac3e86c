"""Queue page in a constant number of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, F, Prefetch, Q, QuerySet, Sum
from django.http import QueryDict
from django.utils import timezone
from django.utils.http import urlencode

from clusters.models import Device
from clusters.models.nodes import State
from controlplane.web.operators import is_operator
from controlplane.web.pages import formats
from jobs.arrays.selectors import first_of_array
from jobs.assignment_lifecycle import LIVE
from jobs.forecasts.expected_starts import Expected, starts_of
from jobs.forecasts.intervals import UnknownRunTime
from jobs.forecasts.run_times import unknown_run_times
from jobs.lifecycle import SHOWN_AS_RUNNING, SHOWN_AS_WAITING, JobState
from jobs.models import QUEUE_ORDER, Assignment, AssignmentSlot, Job, Kind, Team
from jobs.selectors import (
    OTHERS,
    array_id_begins,
    fraction_of,
    id_begins,
    jobs_of_teams,
    live_assignments,
    names_in_waiting,
    seen_by,
    visible_jobs,
)
from jobs.wording.explanation import Explanation, explain

Names = Mapping[UUID, tuple[str, ...]]
"""Jobs that now hold a part of an assignment's GPUs, by assignment."""


def co_tenants(user: User, assignments: Iterable[Assignment]) -> Names:
    """Jobs that share a GPU with these assignments, by assignment; one to three queries."""
    parts = [a.pk for a in assignments if a.share < 1.0]
    if not parts:
        return {}
    live = AssignmentSlot.objects.filter(live=True)
    own = list(live.filter(assignment__in=parts).values_list("assignment", "device"))
    columns = ("device", "assignment", "assignment__job", "assignment__job__name")
    held = list(
        live.filter(device__in={device for _, device in own})
        .order_by("device", "slot")
        .values_list(*columns)
    )
    seen = seen_by(user, {job for _, _, job, _ in held})
    on_device: dict[int, list[tuple[UUID, str]]] = defaultdict(list)
    for device, assignment, job, name in held:
        on_device[device].append((assignment, name if job in seen else OTHERS))
    found: dict[UUID, dict[UUID, str]] = defaultdict(dict)
    for mine, device in own:
        found[mine].update((pk, name) for pk, name in on_device[device] if pk != mine)
    return {mine: tuple(names.values()) for mine, names in found.items()}


PAGE_SIZE = 50
MOST_LISTED = 10_000
MOST_FOUND = 1_000
"""Most search hits read at once, to count and page them in one query."""

MOST_KEYS = 1_000
"""Most people or kinds that a search names one by one."""

RUNNING, WAITING, OVER = range(3)
GROUPS = ("Running", "Waiting", "Ended")
"""Headings by `Job.queue_rank`."""

STATE_FILTERS: Mapping[str, tuple[str, Q]] = {
    "": ("Running and waiting", Q(queue_rank__lt=OVER)),
    "running": ("Running", Q(queue_rank=RUNNING)),
    "waiting": ("Waiting", Q(queue_rank=WAITING)),
    "completed": ("Completed", Q(queue_rank=OVER, state=JobState.COMPLETED)),
    "failed": (
        "Failed or cancelled",
        Q(queue_rank=OVER, state__in=(JobState.FAILED, JobState.CANCELLED)),
    ),
    "all": ("All", Q()),
}
"""State filters: name in the address -> (words, condition)."""

_OF_JOB = (
    "name", "state", "queue_rank", "steps_done", "total_steps", "due_at", "completed_at",
    "waiting_code", "waiting_detail", "failure_reason", "team__name", "user__username",
    "kind__name", "kind__reports_steps", "cores", "batch", "units", "gpus_min", "gpus_max",
    "walltime_s", "cluster", "array_index", "array__indices", "array__at_once", "array__size",
)  # fmt: skip  # a long list of names


@dataclass(frozen=True, slots=True)
class QueueFilters:
    """Filters of the queue; unknown values are ignored. `open`: the array that is unfolded."""

    state: str = ""
    team: str = ""
    mine: bool = False
    search: str = ""
    open: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> QueueFilters:
        return cls(
            state=query.get("state", ""),
            team=query.get("team", "")[:63],
            mine=bool(query.get("mine")),
            search=query.get("search", "").strip()[:100],
            open=query.get("open", "")[:36],
        )

    @property
    def query(self) -> str:
        values = {"state": self.state, "team": self.team, "search": self.search}
        values["mine"] = "1" if self.mine else ""
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def open_query(self) -> str:
        """The query with the unfolded array."""
        return "&".join(part for part in (self.query, urlencode({"open": self.open})) if part)

    @property
    def states(self) -> Q:
        """Condition of the state that is asked for."""
        return STATE_FILTERS.get(self.state, STATE_FILTERS[""])[1]

    @property
    def any(self) -> bool:
        return bool(self.query)


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of a type, or cores, on a node, and co-tenants; `measuring`: a profile run.

    `quota`: the cores that it may use now, in words, if they are not its own; else "".
    """

    node: str
    what: str
    emulated: bool
    units: int = 1
    beside: tuple[str, ...] = ()
    measuring: bool = False
    quota: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    """Row of the queue. `eta_s`: time left at the present speed; `tone` colours the due date.

    `expected`: start of a waiting job, if one is expected; `start_unknown`: why none is.
    `run_time`: interval of a run time that is unknown, else None. The row of an array has its
    `states` (elements by state), and its first `elements` if it is unfolded; `job` is one of them.
    """

    job: Job
    places: tuple[Place, ...]
    percent: float
    steps_per_s: float | None
    eta_s: float | None
    due: str
    due_tone: str
    told: Explanation
    expected: Expected | None = None
    start_unknown: str = ""
    run_time: UnknownRunTime | None = None
    states: Mapping[str, int] = field(default_factory=dict)
    elements: tuple[JobRow, ...] = ()

    @property
    def may_start_sooner(self) -> bool:
        """Return True for a job that waits for a decision."""
        return self.job.state in (JobState.QUEUED, JobState.PROFILING)

    @property
    def waiting(self) -> str:
        """Sentence on why it waits."""
        return self.told.sentence

    @property
    def spread(self) -> str:
        """Where its units are, if it has several."""
        seats = [(place.node, place.units) for place in self.places]
        return formats.units_on(seats) if seats and self.job.units > 1 else ""

    @property
    def left_out(self) -> int:
        """Elements of an unfolded array that its own page shows."""
        return sum(self.states.values()) - len(self.elements)

    @property
    def bar(self) -> str:
        return f"{self.percent:.2f}"

    @property
    def due_moment(self) -> str:
        return f"{self.job.due_at:%Y-%m-%d %H:%M:%S} UTC" if self.job.due_at else ""

    @property
    def group(self) -> str:
        return GROUPS[self.job.queue_rank]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of jobs that run, wait, and completed in the last day."""

    running: int
    waiting: int
    completed: int


def queue_page(
    user: User, teams: Sequence[Team], filters: QueueFilters, number: int | str | None
) -> tuple[Page[Job], list[JobRow]]:
    """Return a page of the queue: ids in order from an index alone, then the page's rows."""
    ids = _filtered(user, teams, filters).order_by(*QUEUE_ORDER, "pk").values_list("pk", flat=True)
    page = _paginator(ids, filters).get_page(number)
    return page, rows_of(user, list(page.object_list))


def rows_of(user: User, ids: Sequence[UUID]) -> list[JobRow]:
    """Rows of these jobs, in this order."""
    place = {pk: i for i, pk in enumerate(ids)}
    rows = _with_what_is_shown(visible_jobs(user).filter(pk__in=place))
    return job_rows(user, sorted(rows, key=lambda job: place[job.pk]))


def _paginator(ids: QuerySet[Job, Any], filters: QueueFilters) -> Paginator[Any]:
    """Read a search once, to count and page it; else count at most MOST_LISTED ids."""
    found = list(ids[:MOST_FOUND]) if filters.search else []
    if filters.search and len(found) < MOST_FOUND:
        return Paginator(found, PAGE_SIZE)
    paginator = Paginator(ids, PAGE_SIZE)
    paginator.count = ids.order_by()[:MOST_LISTED].count()
    return paginator


def queue_numbers(user: User, teams: Sequence[Team]) -> Numbers:
    """Counts for the heading by two index-only queries."""
    jobs = jobs_of_teams(user, teams).order_by()
    by_state = dict(
        jobs.filter(state__in=SHOWN_AS_RUNNING + SHOWN_AS_WAITING)
        .values_list("state")
        .annotate(n=Count("*"))
    )
    running, waiting = (
        sum(by_state.get(s, 0) for s in states) for states in (SHOWN_AS_RUNNING, SHOWN_AS_WAITING)
    )
    recent = jobs.filter(
        state=JobState.COMPLETED, completed_at__gte=timezone.now() - timedelta(days=1)
    ).count()
    return Numbers(running, waiting, recent)


@dataclass(frozen=True, slots=True)
class UsedByOthers:
    """GPUs, and cores of jobs without GPUs, that other teams use; GPUs of all nodes not lost."""

    gpus: int
    cores: float
    all_gpus: int

    @property
    def words(self) -> str:
        """Use in words: "Other teams use 3 of 8 GPUs."; "" if they use nothing."""
        parts = []
        if self.gpus:
            parts.append(f"{self.gpus} of {self.all_gpus} GPU{'s' * (self.all_gpus != 1)}")
        if self.cores:
            parts.append(f"{self.cores:g} core{'s' * (self.cores != 1)}")
        return f"Other teams use {' and '.join(parts)}." if parts else ""


def used_by_others(user: User, teams: Sequence[Team]) -> UsedByOthers:
    """Count what teams use of which a user sees no jobs; at most three queries."""
    if is_operator(user):
        return UsedByOthers(0, 0.0, 0)
    live = Assignment.objects.filter(state__in=sorted(str(state) for state in LIVE))
    others = live.exclude(job__team__in=[team.pk for team in teams])
    held = AssignmentSlot.objects.filter(live=True, assignment__in=others)
    gpus = held.aggregate(devices=Count("device", distinct=True))["devices"]
    without = others.filter(gpus=0)
    cores = without.aggregate(cores=Sum(F("job__cores") * F("units")))["cores"]
    present = Device.objects.exclude(node__state=State.LOST)
    return UsedByOthers(gpus, cores or 0.0, present.count() if gpus else 0)


def job_rows(user: User, jobs: Iterable[Job]) -> list[JobRow]:
    """Rows of these jobs."""
    jobs = list(jobs)
    names, now = names_in_waiting(user, jobs), timezone.now()
    beside = co_tenants(user, (a for job in jobs for a in getattr(job, "live_assignments", ())))
    starts = starts_of(jobs, now)
    run_times = unknown_run_times(jobs, now, known=starts.of_known_end)
    return [
        replace(
            _row(job, names, beside, now),
            expected=starts.expected.get(job.pk),
            start_unknown=starts.unknown.get(job.pk, ""),
            run_time=run_times.get(job.pk),
        )
        for job in jobs
    ]


def _with_what_is_shown(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Load only shown columns: the JSON columns of a job and a node cost more than the page."""
    assignments = Prefetch("assignments", live_assignments(), to_attr="live_assignments")
    related = jobs.select_related("team", "user", "kind", "array")
    return related.only(*_OF_JOB).prefetch_related(assignments)


def _filtered(user: User, teams: Sequence[Team], filters: QueueFilters) -> QuerySet[Job]:
    chosen = [t for t in teams if t.name == filters.team]
    jobs = Job.objects.filter(team__in=chosen) if filters.team else jobs_of_teams(user, teams)
    shown = first_of_array(filters.states) | id_begins(filters.search)
    jobs = jobs.filter(filters.states, shown)
    if filters.mine:
        jobs = jobs.filter(user=user)
    return jobs.filter(_matches(filters.search)) if filters.search else jobs


def _matches(search: str) -> Q:
    """Search people and kinds in their own tables: a join would repeat them for each job."""
    kinds = _keys(Kind.objects.filter(name__icontains=search))
    people = _keys(User.objects.filter(username__icontains=search))
    named = Q(name__icontains=search) | Q(kind__in=kinds) | Q(user__in=people)
    return named | id_begins(search) | array_id_begins(search)


def _keys(rows: QuerySet[Any]) -> list[Any] | QuerySet[Any, Any]:
    """Keys as literals unless too many: beside a subquery PostgreSQL skips its name index."""
    keys = rows.order_by().values_list("pk", flat=True)
    few = list(keys[: MOST_KEYS + 1])
    return few if len(few) <= MOST_KEYS else keys


def _row(job: Job, names: Mapping[str, str], beside: Names, now: datetime) -> JobRow:
    live: list[Assignment] = getattr(job, "live_assignments", [])
    places = [_place(a, job.cores, beside.get(a.pk, ())) for a in live]
    speeds = (a.steps_per_s for a in live if a.purpose == "training")
    speed = next((s for s in speeds if s), None)
    runs = job.state == JobState.RUNNING
    text, tone = formats.due(job.due_at, now, job.completed_at)
    return JobRow(
        job=job,
        places=tuple(sorted(places, key=lambda place: place.measuring)),
        percent=100 * fraction_of(job),
        steps_per_s=speed,
        eta_s=(job.total_steps - job.steps_done) / speed if speed and runs else None,
        due=text,
        due_tone=tone,
        told=explain(job.state, job.waiting_code, job.waiting_detail, names, now),
    )


def _place(assignment: Assignment, cores: float, beside: tuple[str, ...]) -> Place:
    node, measuring = assignment.node, assignment.purpose == "profiling"
    own_cores = cores * assignment.units
    what = formats.amount_held(assignment.gpus, node.type_name, own_cores)
    quota = ""
    if assignment.cpu_quota is not None:
        of_its_own = f" of {formats.quantity(own_cores)}" if own_cores else ""
        quota = f"now with {formats.quantity(assignment.cpu_quota)}{of_its_own} cores"
    return Place(node.name, what, node.is_emulated, assignment.units, beside, measuring, quota)
