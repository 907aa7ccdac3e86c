"""Rows of submitted arrays: one description becomes as many jobs as there are indices.

A large array is written in parts, so that others write in between. What its other elements are made
from is kept until the last of them is written: whoever submitted it may be killed meanwhile.
"""

import copy
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.lifecycle import JobState
from jobs.models import Dependency, Job, JobArray, UnfinishedArray
from jobs.submission.array_expression import array_indices
from jobs.submission.validation import JobRequest
from jobs.wording.reasons import ARRAY_LIMIT

_OWN = ("id", "number", "array_id", "array_index", "submitted_at")
"""Columns of an element that are not copied from the first one."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Jobs to write, with their dependencies; `array` is None for a single job.

    `unfinished`: the row of an array of which these are not all elements.
    """

    array: JobArray | None
    jobs: Sequence[Job]
    dependencies: Sequence[Dependency]
    warnings: Sequence[str]
    unfinished: UnfinishedArray | None = None

    @classmethod
    def of(cls, request: JobRequest, most: int) -> "Elements":
        """Return the job of a request, or the first elements of its array, `most` at most."""
        if request.array is None:
            return cls(None, (request.job,), request.dependencies, request.warnings)
        spec = request.array
        array = JobArray(
            indices=spec.text,
            at_once=spec.at_once,
            size=len(spec.indices),
            lowest=spec.indices[0],
            highest=spec.indices[-1],
            step=spec.step,
        )

        # The request's own job is the first element.
        indices = spec.indices[:most]
        jobs = [request.job, *_copies(request.job, array, 1, indices[1:])]
        request.job.array = array
        request.job.array_index = indices[0]

        waits = _waits(request)
        unfinished = None
        if len(indices) < array.size:
            kept = {"element": _form(request.job), "warnings": list(request.warnings), **waits}
            unfinished = UnfinishedArray(
                array=array, team=request.job.team, written=len(indices), rest=kept
            )
        return cls(array, jobs, _dependencies(jobs, waits), request.warnings, unfinished)

    @classmethod
    def next_of(cls, unfinished: UnfinishedArray, most: int) -> "Elements":
        """Return the next elements of an array, `most` at most."""
        array, rest = unfinished.array, unfinished.rest
        indices = array_indices(array.indices).indices
        element = _element(rest["element"])
        place = unfinished.written
        jobs = _copies(element, array, place, indices[place : place + most])
        return cls(array, jobs, _dependencies(jobs, rest), rest["warnings"], unfinished)


def _copies(element: Job, array: JobArray, place: int, indices: Iterable[int]) -> list[Job]:
    """Return elements of these indices like the given one; `place`: how many come before them."""
    jobs = []
    for number, index in enumerate(indices, start=place):
        job = copy.copy(element)
        job.pk = uuid.uuid4()
        job.array = array
        job.array_index = index
        over_limit = array.at_once is not None and number >= array.at_once
        if over_limit and job.state != JobState.HELD:
            job.waiting_code = ARRAY_LIMIT
            job.waiting_detail = {"at_once": array.at_once}
        jobs.append(job)
    return jobs


def _form(element: Job) -> dict[str, Any]:
    """Return the copied columns of an element as JSON."""
    form = {}
    for field in Job._meta.concrete_fields:
        if field.generated or field.attname in _OWN:
            continue
        value = field.value_from_object(element)
        form[field.attname] = None if value is None else field.value_to_string(element)
    return form


def _element(form: Mapping[str, Any]) -> Job:
    """Return the element of a form; columns that are newer than the form have their defaults."""
    element = Job()
    for field in Job._meta.concrete_fields:
        value = form.get(field.attname)
        if value is not None:
            setattr(element, field.attname, field.to_python(value))
    # Read here once, and not again for each copy.
    for relation in ("user", "team", "cluster", "kind"):
        getattr(element, relation)
    return element


def _waits(request: JobRequest) -> dict[str, Any]:
    """Return as JSON what all elements wait for, and what those of an index wait for besides."""
    dependencies = []
    for one in request.dependencies:
        delay_s = one.delay.total_seconds()
        others = _text(one.on_id), _text(one.on_array_id)
        dependencies.append([*others, str(one.condition), delay_s])
    of_index = {str(index): list(map(str, jobs)) for index, jobs in request.of_index.items()}
    return {
        "dependencies": dependencies,
        "of_index": of_index,
        "one_suffices": request.one_suffices,
    }


def _text(key: uuid.UUID | None) -> str | None:
    return None if key is None else str(key)


def _dependencies(jobs: Iterable[Job], waits: Mapping[str, Any]) -> list[Dependency]:
    """Return the dependencies of these elements. `waits` may be of an older version."""
    found = []
    for job in jobs:
        for on, on_array, condition, *delays_s in waits["dependencies"]:
            one = Dependency(job=job, on_id=_key(on), on_array_id=_key(on_array))
            one.condition = condition
            if delays_s:
                one.delay = timedelta(seconds=delays_s[0])
            found.append(one)
        for on in waits["of_index"].get(str(job.array_index), ()):
            found.append(Dependency(job=job, on_id=_key(on)))
    for one in found:
        one.alternative = waits.get("one_suffices", False)
    return found


def _key(text: str | None) -> uuid.UUID | None:
    return None if text is None else uuid.UUID(text)
