"""Training jobs, gangs and jobs that share a GPU, as their journals show them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.invariants import Invariant
from loadmaster.demo.journal_checks import Findings, Launch, check_journals, launches_in

Record = Mapping[str, Any]


def check_training(
    folder: Path, jobs: Sequence[Record], slots: int = 1
) -> tuple[Findings, list[Invariant]]:
    """Check the journals of `jobs` ({"id", "steps"}; of a gang "ranks"), on GPUs of `slots`."""
    found, launches = check_journals(folder, slots), tuple(launches_in(folder))
    holders = sum(len(one.devices) for one in launches)
    gangs = [job for job in jobs if "ranks" in job]
    checks = [
        Invariant(named.ONE_PROCESS, relaunches(launches), found.overlaps),
        launched_once(launches),
        Invariant(named.JOB_LOST, found.jobs, found.lost),
        Invariant(named.STEPS, found.steps, found.broken),
        Invariant(named.DEVICES, holders, found.held_twice),
    ]
    if gangs:
        checks.append(Invariant(named.GANGS, len(gangs), tuple(_torn(gangs, launches))))
    if slots > 1:
        checks.append(Invariant(named.PAIRS, sum(_is_beside(one, launches) for one in launches)))
    return found, checks


def relaunches(launches: Iterable[Launch]) -> int:
    """Number of launches that followed another one of their job and rank."""
    all_of = [(one.job, one.rank) for one in launches]
    return len(all_of) - len(set(all_of))


def launched_once(launches: Iterable[Launch]) -> Invariant:
    """Return whether each (job, fence, rank) had one process."""
    processes: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for one in launches:
        processes[one.job, one.fence, one.rank].append(one.name)
    wrong = (
        f"job {job}: fence {fence} was used by {' and '.join(names)}"
        for (job, fence, _), names in processes.items()
        if len(names) > 1
    )
    return Invariant(named.LAUNCHED_ONCE, len(processes), tuple(wrong))


def _torn(gangs: Iterable[Record], launches: Sequence[Launch]) -> Iterator[str]:
    """Gangs of which no one launch has done all ranks."""
    for job in gangs:
        done: dict[int, set[int]] = defaultdict(set)
        for one in launches:
            if one.job == job["id"] and one.how == "done":
                done[one.fence].add(one.rank)
        if not any(len(ranks) == job["ranks"] for ranks in done.values()):
            yield f"job {job['id']}: no launch ended on all of its {job['ranks']} ranks"


def _is_beside(launch: Launch, launches: Iterable[Launch]) -> bool:
    """Return True if another job held one of the launch's devices when it was born."""
    return any(
        other.job != launch.job
        and other.born_s <= launch.born_s < other.last_s
        and set(other.devices) & set(launch.devices)
        for other in launches
    )
