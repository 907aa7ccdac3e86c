"""Limits of arrays: a round sees as many waiting elements as may start, lowest index first."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from controlplane.loop.rounds import RejectCode, Rejected
from jobs.dependencies import unsatisfied
from jobs.lifecycle import PLACED, JobState
from jobs.models import Dependency, Job, JobArray
from jobs.wording.reasons import ARRAY_LIMIT
from policies.contract.plan import Placement
from policies.contract.snapshot import Purpose

HOLDS_A_PLACE = sorted(str(state) for state in PLACED | {JobState.CANCELLING})
"""States of elements that count as running. A profile run of a waiting element does not."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Arrays with more ready elements than may start, and what a round may see of them.

    `full`: these arrays. `able`: their elements that may start. `others`: the limit of the array by
    each other waiting element, if its stored reason for waiting is not that limit yet.
    """

    full: frozenset[UUID]
    able: frozenset[UUID]
    others: Mapping[UUID, int]

    @classmethod
    def of(cls, queued: QuerySet[Job], now: datetime) -> "OverLimit":
        """Compare the arrays of `queued`, the jobs of a cluster that a round could place."""
        elements = queued.filter(array__isnull=False, array__at_once__isnull=False).order_by()
        limits = _limits(elements.values_list("array", "array__at_once").distinct())
        if not limits:
            return cls(frozenset(), frozenset(), {})

        # 1. Of an array with more ready elements than free places, those of the lowest indices.
        free_places = _free_places(limits)
        full: set[UUID] = set()
        able: set[UUID] = set()
        for array, ready in _ready(elements, now).items():
            if len(ready) > free_places[array]:
                full.add(array)
                able.update(ready[: max(0, free_places[array])])

        # 2. The other elements of these arrays, which get a new reason for waiting.
        others: dict[UUID, int] = {}
        if full:
            waiting = elements.filter(array__in=full).exclude(waiting_code=ARRAY_LIMIT)
            others = _limits(waiting.values_list("pk", "array__at_once"))
        for element in able:
            others.pop(element, None)
        return cls(frozenset(full), frozenset(able), others)

    def shown(self) -> Q:
        """Condition of the jobs that the round may see."""
        return ~Q(array__in=self.full, state=JobState.QUEUED) | Q(pk__in=self.able)


def _limits(rows: Iterable[tuple[UUID | None, int | None]]) -> dict[UUID, int]:
    """Limits by array or element; rows that lack either are left out."""
    return {key: limit for key, limit in rows if key is not None and limit is not None}


def _ready(elements: QuerySet[Job], now: datetime) -> Mapping[UUID, list[UUID]]:
    """Elements that wait for no other job, by array, in the order of their indices."""
    waits = Exists(Dependency.objects.filter(unsatisfied(now), job=OuterRef("pk")))
    ready: dict[UUID, list[UUID]] = defaultdict(list)
    rows = elements.filter(~waits).order_by("array", "array_index").values_list("array", "pk")
    for array, pk in rows:
        ready[array].append(pk)
    return ready


def _free_places(limits: Mapping[Any, int]) -> Counter[UUID]:
    """Number of elements of each array that may still start; negative after a lowered limit."""
    placed = Job.objects.filter(array__in=list(limits), state__in=HOLDS_A_PLACE).order_by()
    free_places = Counter(limits)
    free_places.subtract(dict(placed.values_list("array").annotate(n=Count("*"))))
    return free_places


class ArrayRooms:
    """Recheck of the limits at a launch, against the newest state and the launches before it."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        arrays = {job.array_id for job in jobs if job.array_id is not None}
        limits = _limits(JobArray.objects.filter(pk__in=arrays).values_list("pk", "at_once"))
        self._limited = frozenset(limits)
        self._free_places: Counter[UUID] = Counter()
        if limits:
            self._free_places = _free_places(limits)

    def refusal(self, placement: Placement, job: Job) -> Rejected | None:
        """Return the refusal if the job's array runs as many elements as it may."""
        if job.array_id is None or placement.purpose is not Purpose.TRAINING:
            return None
        if job.array_id not in self._limited or self._free_places[job.array_id] > 0:
            return None
        detail = f"array {job.array_id} has reached its limit of running elements"
        return Rejected(placement.key, RejectCode.STALE, detail)

    def take(self, job: Job) -> None:
        """Record a launch."""
        if job.array_id is not None:
            self._free_places[job.array_id] -= 1
