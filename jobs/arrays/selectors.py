"""Arrays of jobs: elements by state, references to elements, environment of their processes."""

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Count, OuterRef, Q, Subquery
from django.http import Http404

from jobs.lifecycle import JobState
from jobs.models import Job, JobArray
from jobs.selectors import visible_jobs

_ELEMENT = re.compile(r"(?P<array>.+?)(?:_(?P<index>\d{1,9})|\[(?P<bracketed>\d{1,9})\])")
"""Reference to an element of an array: ID_3 or ID[3]."""


class ArrayNotFound(Http404):
    """There is no such array, or the user may see none of its elements."""


def get_array(user: User | AnonymousUser, array_id: uuid.UUID | str) -> JobArray:
    """Return an array whose elements this user may see; raise ArrayNotFound otherwise.

    Its elements are of one user and one team, so whoever sees one sees all.
    """
    try:
        elements = visible_jobs(user).filter(array=uuid.UUID(str(array_id)))
        element = elements.select_related("array").first()
    except ValueError:
        element = None
    if element is None or element.array is None:
        raise ArrayNotFound(f"there is no array {array_id}")
    return element.array


def states_of(arrays: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, Mapping[str, int]]:
    """Count the elements of each array by state, in one query.

    The states of an array are in the order of `JobState`, without those that no element has.
    """
    # 1. Count.
    counts_of: dict[uuid.UUID, dict[str, int]] = defaultdict(dict)
    wanted = sorted(set(arrays))
    if wanted:
        elements = Job.objects.filter(array__in=wanted).order_by()
        for array, state, count in elements.values_list("array", "state").annotate(n=Count("*")):
            counts_of[array][state] = count

    # 2. Bring the states of each array in order.
    in_order: dict[uuid.UUID, dict[str, int]] = {}
    for array, counts in counts_of.items():
        in_order[array] = {}
        for job_state in JobState:
            if job_state in counts:
                in_order[array][str(job_state)] = counts[job_state]
    return in_order


def first_of_array(states: Q) -> Q:
    """Return the condition of jobs outside arrays, and of each array's first element in `states`.

    Running elements come first, then waiting ones, then ended ones; of equals the lowest index.
    """
    elements = Job.objects.filter(states, array=OuterRef("pk"))
    first = elements.order_by("queue_rank", "array_index").values("pk")[:1]
    first_elements = JobArray.objects.annotate(first=Subquery(first)).values("first")
    # Jobs outside arrays are those without `array_index`. With a condition on `array` SQLite would
    # collect them by that column's index and sort them; so it reads them in the queue's order.
    return Q(array_index__isnull=True) | Q(pk__in=first_elements)


def element_of(text: str) -> tuple[str, int | None]:
    """Return array and index of a reference such as ID_3 or ID[3]; (text, None) for any other."""
    match = _ELEMENT.fullmatch(text)
    if match is None:
        return text, None
    return match["array"], int(match["index"] or match["bracketed"])


def variables_of(job: Job) -> Mapping[str, str]:
    """Return the environment variables of an element of an array; none for another job."""
    array = job.array
    if array is None:
        return {}
    return {
        "LOADMASTER_ARRAY": str(array.pk),
        "LOADMASTER_ARRAY_INDEX": str(job.array_index),
        "LOADMASTER_ARRAY_COUNT": str(array.size),
        "LOADMASTER_ARRAY_MIN": str(array.lowest),
        "LOADMASTER_ARRAY_MAX": str(array.highest),
        "LOADMASTER_ARRAY_STEP": str(array.step),
    }
