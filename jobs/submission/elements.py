"""Rows of submitted arrays: one description becomes as many jobs as there are indices."""

import copy
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.models import Dependency, Job, JobArray
from jobs.submission.validation import JobRequest
from jobs.wording import ARRAY_LIMIT


@dataclass(frozen=True, slots=True)
class Elements:
    """Jobs of a request with their dependencies; `array` is None for a single job."""

    array: JobArray | None
    jobs: Sequence[Job]
    dependencies: Sequence[Dependency]

    @classmethod
    def of(cls, request: JobRequest) -> "Elements":
        if request.array is None:
            return cls(None, (request.job,), request.dependencies)
        spec = request.array
        array = JobArray(
            indices=spec.text, at_once=spec.at_once, size=len(spec.indices),
            lowest=spec.indices[0], highest=spec.indices[-1], step=spec.step,
        )  # fmt: skip
        jobs = _jobs(request, array, spec.indices)
        return cls(array, jobs, [d for job in jobs for d in _dependencies(request, job)])


def _jobs(request: JobRequest, array: JobArray, indices: Sequence[int]) -> list[Job]:
    """Copies of the request's job, which is itself the first element."""
    jobs = [request.job, *(copy.copy(request.job) for _ in indices[1:])]
    for place, (job, index) in enumerate(zip(jobs, indices, strict=True)):
        job.array, job.array_index = array, index
        if place:
            job.pk = uuid.uuid4()
        if array.at_once is not None and place >= array.at_once and not request.hold:
            job.waiting_code, job.waiting_detail = ARRAY_LIMIT, {"at_once": array.at_once}
    return jobs


def _dependencies(request: JobRequest, job: Job) -> Iterator[Dependency]:
    for given in request.dependencies:
        yield Dependency(
            job=job, on_id=given.on_id, on_array_id=given.on_array_id, condition=given.condition
        )
    for other in request.of_index.get(job.array_index or 0, ()):
        yield Dependency(job=job, on_id=other)
