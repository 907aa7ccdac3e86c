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

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.invariants import Invariant, summed
from experiments.chaos.checks.training import launched_once, relaunches
from loadmaster.demo.journal_checks import Launch, launches_in, overlaps

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs (an array's elements each), launches, and what was checked."""

    jobs: int
    launches: int
    invariants: tuple[Invariant, ...]


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
    ends, found = dict(ended), list[Invariant]()
    for job in jobs:
        of = {pk: by_job.pop(pk, []) for pk in _ids(job)}
        for pk, of_job in of.items():
            ends[pk] = first_end_s(of_job, job.get("seats", 1))
        ends[job["id"]] = max(ends[pk] for pk in of)
        found += _check(job, of, ends)
    unknown = tuple(f"job {pk} ran but was never submitted" for pk in by_job)
    found.append(Invariant(named.JOB_LOST, 0, unknown))
    found.append(Invariant(named.ONE_PROCESS, relaunches(launches), overlaps(launches)))
    found.append(launched_once(launches))
    return Batch(sum(len(_ids(job)) for job in jobs), len(launches), summed(found))


def _check(
    job: Record, of: Mapping[str, Sequence[Launch]], ends: Mapping[str, float]
) -> Iterator[Invariant]:
    """Check one job; `of`: launches by element."""
    launches = [launch for of_job in of.values() for launch in of_job]
    parallel = tuple(text for pk, of_job in of.items() for text in _in_parallel(pk, of_job))
    yield Invariant(named.ONE_PROCESS, 0, parallel)
    if "never" in job:
        text = f"job {job['id']} ran, though it waits for the success of a failed one"
        yield Invariant(named.IMPOSSIBLE, 1, (text,) if launches else ())
        return
    lost = (f"job {pk} was submitted and never completed" for pk in of if ends[pk] == inf)
    yield Invariant(named.JOB_LOST, len(of), tuple(lost))
    if "at_once" in job:
        yield Invariant(named.ARRAYS, len(launches), tuple(_too_many(job, launches)))
    if "after" in job:
        yield Invariant(
            named.DEPENDENCIES, len(job["after"]), tuple(_too_early(job, launches, ends))
        )


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
