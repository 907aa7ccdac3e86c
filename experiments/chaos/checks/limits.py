"""Ends at the walltime, as the journals of the batch jobs show them.

Each such job never ends by itself. Its guard ends it at its walltime, whatever is away meanwhile;
so the journal of each launch stops at the walltime, or at the end of the grace if the job ignores
SIGTERM, and some launch of each job got so far.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.invariants import Invariant
from experiments.chaos.checks.training import launched_once, relaunches
from loadmaster.demo.journal_checks import Launch, launches_in, overlaps

EARLY_S = 0.5
"""Time by which a journal's last beat may be before the end of its launch."""

LATE_S = 3.0
"""Time after the grace in which a guard must have killed, on two free cores."""

Away = tuple[float, float]
"""From when to when a part was away, by the boot clock."""


@dataclass(frozen=True, slots=True)
class Limited:
    """Ends at the walltime, those of them while a part was away, and what was checked."""

    jobs: int
    launches: int
    ended: int
    while_away: Mapping[str, int]
    on_silent_node: int
    """Ends on nodes whose own agent was away."""

    invariants: tuple[Invariant, ...]
    first_end_s: Mapping[str, float]
    """When a launch of each job first ended at the walltime, by the boot clock."""


def check_limits(
    folder: Path,
    jobs: Sequence[Mapping[str, Any]],
    grace_s: float,
    away: Mapping[str, Iterable[Away]],
    slowness: float = 1.0,
    nodes: Mapping[str, str] = MappingProxyType({}),
) -> Limited:
    """Check the journals of `jobs` ({"id", "walltime_s"}).

    `away`: by part of the system, agents by the names of their nodes; `nodes`: by assignment.
    """
    by_job: dict[str, list[Launch]] = defaultdict(list)
    launches = sorted(launches_in(folder), key=lambda launch: launch.born_s)
    for launch in launches:
        by_job[launch.job].append(launch)
    wrong, lost, ended = list[str](), list[str](), list[Launch]()
    first_end_s: dict[str, float] = {}
    for job in jobs:
        walltime_s, of_job = float(job["walltime_s"]), by_job.pop(str(job["id"]), [])
        latest_s = walltime_s + grace_s + LATE_S * slowness
        wrong += [_too_long(one, latest_s) for one in of_job if lived_s(one) > latest_s]
        wrong += [f"{_who(one)} ended by itself" for one in of_job if one.how]
        whole = [one for one in of_job if lived_s(one) >= walltime_s - EARLY_S]
        ended += whole
        first_end_s[str(job["id"])] = min((one.last_s for one in whole), default=inf)
        if not whole:
            lost.append(f"job {job['id']}: no launch ran until its walltime of {walltime_s:g} s")
    lost += [f"job {job} ran but was never submitted" for job in by_job]
    counts = {part: sum(_during(spans, ended)) for part, spans in away.items()}
    silent = sum(any(_during(away.get(nodes.get(one.assignment, ""), ()), [one])) for one in ended)
    invariants = (
        Invariant(named.WALLTIMES, len(launches), tuple(wrong)),
        Invariant(named.JOB_LOST, len(jobs), tuple(lost)),
        Invariant(named.ONE_PROCESS, relaunches(launches), overlaps(launches)),
        launched_once(launches),
    )
    return Limited(len(jobs), len(launches), len(ended), counts, silent, invariants, first_end_s)


def lived_s(launch: Launch) -> float:
    """Time from a launch's birth to its last sign of life."""
    return launch.last_s - launch.born_s


def _during(spans: Iterable[Away], ended: Sequence[Launch]) -> Iterable[bool]:
    known = list(spans)
    return (any(a <= one.last_s <= b for a, b in known) for one in ended)


def _too_long(launch: Launch, latest_s: float) -> str:
    return f"{_who(launch)} lived for {lived_s(launch):.1f} s, not {latest_s:.1f} s at most"


def _who(launch: Launch) -> str:
    return f"job {launch.job}: launch {launch.name}"
