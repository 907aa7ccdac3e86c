"""Arrays of jobs: elements by state, references to elements, variables of their processes."""

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

_ELEMENT = re.compile(r"(?P<array>.+?)(?:_(?P<index>\d{1,9})|\[(?P<inner>\d{1,9})\])")


class ArrayNotFound(Http404):
    """Missing array, or one of which the user may see no element."""


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
    """Numbers of elements by state, of each array; in one query."""
    found: dict[uuid.UUID, dict[str, int]] = defaultdict(dict)
    wanted = sorted(set(arrays))
    if wanted:
        elements = Job.objects.filter(array__in=wanted).order_by()
        for array, state, count in elements.values_list("array", "state").annotate(n=Count("*")):
            found[array][state] = count
    order = {str(state): place for place, state in enumerate(JobState)}
    return {a: dict(sorted(of.items(), key=lambda one: order[one[0]])) for a, of in found.items()}


def first_of_array(states: Q) -> Q:
    """Condition of jobs outside of arrays, and of each array's first element of those in `states`.

    Running elements come first, then waiting, then ended ones; of equals the lowest index.
    """
    elements = Job.objects.filter(states, array=OuterRef("pk"))
    first = elements.order_by("queue_rank", "array_index").values("pk")[:1]
    first_elements = JobArray.objects.annotate(first=Subquery(first)).values("first")
    # Asked of the index, not of the array: SQLite would else collect all jobs without an array by
    # that column's index, and sort them, where it can read them in the queue's order.
    return Q(array_index__isnull=True) | Q(pk__in=first_elements)


def element_of(text: str) -> tuple[str, int | None]:
    """Array and index of a reference such as ID_3 or ID[3]; (text, None) for any other."""
    match = _ELEMENT.fullmatch(text)
    return (match["array"], int(match["index"] or match["inner"])) if match else (text, None)


def variables_of(job: Job) -> Mapping[str, str]:
    """Environment of an element: its array and index, and the array's indices; else empty."""
    if (array := job.array) is None:
        return {}
    values = {
        "": array.pk,
        "_INDEX": job.array_index,
        "_COUNT": array.size,
        "_MIN": array.lowest,
        "_MAX": array.highest,
        "_STEP": array.step,
    }
    return {f"LOADMASTER_ARRAY{name}": str(value) for name, value in values.items()}
