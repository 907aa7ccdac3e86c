"""Arrays on pages: one row in the queue that unfolds, and a page of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet

from jobs.arrays.actions import ACTIONS
from jobs.arrays.selectors import get_array, states_of
from jobs.lifecycle import JobState
from jobs.models import Job, JobArray
from jobs.pages.selectors import PAGE_SIZE, JobRow, QueueFilters, rows_of
from jobs.roles import refusal

UNFOLDED = 20
"""Elements of an unfolded array in the queue; its own page has all of them."""


@dataclass(frozen=True, slots=True)
class ArrayPage:
    """Page of an array: numbers of elements by state, and a page of its elements."""

    array: JobArray
    name: str
    states: Mapping[str, int]
    page: Page[Any]
    rows: Sequence[JobRow]
    refusal: str

    @property
    def percent(self) -> float:
        return percent_done(self.states)

    @property
    def actions(self) -> tuple[str, ...]:
        """Actions that reach at least one element; none where the user may not change them."""
        if self.refusal:
            return ()
        possible = ((verb, {*act.bulk, *act.others}) for verb, act in ACTIONS.items())
        return tuple(verb for verb, states in possible if states & self.states.keys())


def array_page(user: User, array_id: UUID, number: str | None) -> ArrayPage:
    """Return the page of an array that this user may see; raise ArrayNotFound otherwise."""
    array = get_array(user, array_id)
    page = Paginator(_in_order(array.pk).values_list("pk", flat=True), PAGE_SIZE).get_page(number)
    rows = rows_of(user, list(page.object_list))
    element, states = rows[0].job, states_of([array.pk])[array.pk]
    return ArrayPage(array, element.name, states, page, rows, refusal(user, element))


def percent_done(states: Mapping[str, int]) -> float:
    """Per cent of an array's elements that have completed."""
    return 100 * states.get(JobState.COMPLETED, 0) / max(1, sum(states.values()))


def with_arrays(user: User, rows: Sequence[JobRow], filters: QueueFilters) -> list[JobRow]:
    """The queue's rows; those that stand for an array have its numbers, and elements if unfolded.

    An element that was searched for by its own id stands for itself.
    """
    sought = filters.search.replace("-", "").lower()
    folded = {
        row.job.array_id
        for row in rows
        if row.job.array_id and not (sought and row.job.pk.hex.startswith(sought))
    }
    states = states_of(folded)
    return [
        row
        if (array := row.job.array_id) is None or array not in states
        else _with_array(user, row, array, states[array], str(array) == filters.open)
        for row in rows
    ]


def _with_array(
    user: User, row: JobRow, array: UUID, states: Mapping[str, int], is_open: bool
) -> JobRow:
    ids = list(_in_order(array).values_list("pk", flat=True)[:UNFOLDED]) if is_open else []
    elements = tuple(rows_of(user, ids))
    return replace(row, states=states, percent=percent_done(states), elements=elements)


def _in_order(array: UUID) -> QuerySet[Job]:
    """Elements of an array: running, waiting, ended; of equals by index."""
    return Job.objects.filter(array=array).order_by("queue_rank", "array_index")
