"""Batch jobs of several seats, arrays and dependencies, as their journals show them.

Launches of a job follow each other, and one of them did all of its seats to their end; no more
elements of an array were alive at once than its limit; no job began before those it waits for had
ended; one that waits for the impossible never ran.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from loadmaster.demo.journal_checks import Launch, launches_in, overlaps

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs (an array's elements each), launches, and what should not be."""

    jobs: int
    launches: int
    wrong: tuple[str, ...]


def check_batch(folder: Path, jobs: Sequence[Record], ended: Mapping[str, float]) -> Batch:
    """Check the journals of `jobs`; `ended`: when other jobs ended first, by the boot clock.

    Of a job `seats` counts those with a process (default 1), `elements` are ids of an array's, of
    which `at_once` run together, `after` are ids of jobs that it waits for, and `never` tells that
    it never runs.
    """
    by_job: dict[str, list[Launch]] = defaultdict(list)
    launches = sorted(launches_in(folder), key=lambda launch: launch.born_s)
    for launch in launches:
        by_job[launch.job].append(launch)
    wrong, ends = list(overlaps(launches)), dict(ended)
    for job in jobs:
        ids = _ids(job)
        parts = {pk: by_job.pop(pk, []) for pk in ids}
        for pk, of_job in parts.items():
            ends[pk] = first_end_s(of_job, job.get("seats", 1))
            wrong += _in_parallel(pk, of_job)
            if ends[pk] == inf and "never" not in job:
                wrong.append(f"job {pk} was submitted and never completed")
        ends[job["id"]] = max(ends[pk] for pk in ids)
        of_all = [launch for of_job in parts.values() for launch in of_job]
        if of_all and "never" in job:
            wrong.append(f"job {job['id']} ran, though it waits for the success of a failed one")
        wrong += _too_many(job, of_all)
        wrong += _too_early(job, of_all, ends)
    wrong += [f"job {pk} ran but was never submitted" for pk in by_job]
    return Batch(sum(len(_ids(job)) for job in jobs), len(launches), tuple(wrong))


def first_end_s(launches: Iterable[Launch], seats: int) -> float:
    """When the first launch had done all seats, by the boot clock; inf if none has."""
    done: dict[int, dict[int, float]] = defaultdict(dict)
    for one in launches:
        if one.how == "done":
            done[one.fence][one.rank] = one.last_s
    whole = (max(of.values()) for of in done.values() if len(of) >= seats)
    return min(whole, default=inf)


def _ids(job: Record) -> list[str]:
    return [str(pk) for pk in job.get("elements", [job["id"]])]


def _in_parallel(job: str, launches: Sequence[Launch]) -> Iterator[str]:
    """Seats of an older launch that were alive when one of a newer launch was born."""
    for new in launches:
        for old in launches:
            if old.fence < new.fence and old.last_s > new.born_s:
                both_s = old.last_s - new.born_s
                yield f"job {job}: launch {old.name} lived {both_s:.2f} s beside {new.name}"


def _too_many(job: Record, launches: Sequence[Launch]) -> Iterator[str]:
    at_once = job.get("at_once", inf)
    for new in launches:
        alive = {one.job for one in launches if one.born_s <= new.born_s < one.last_s}
        if len(alive | {new.job}) > at_once:
            yield f"array {job['id']}: {len(alive)} elements at once, not {at_once} at most"


def _too_early(job: Record, launches: Iterable[Launch], ends: Mapping[str, float]) -> Iterator[str]:
    born_s = min((one.born_s for one in launches), default=inf)
    for pk in job.get("after", ()):
        if born_s < ends[pk]:
            yield f"job {job['id']} began {ends[pk] - born_s:.2f} s before job {pk} had ended"
