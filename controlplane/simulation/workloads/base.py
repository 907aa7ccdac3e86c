"""Workloads: jobs by arrival, their kinds, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.contract.plan import Placement
from policies.contract.snapshot import Jobs, KindView

LONGEST_RUN_S = 1e9
"""No job runs longer: 31 years."""

FURTHEST_S = 1e12
"""No job arrives, or is due, further from 0."""

MOST_WEIGHT = 1e12

SHOWN = 20
"""Bad lines that an error's message lists; `WorkloadError.bad_lines` has them all."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a file, counted from 1, or an item of a list, and what is wrong with it."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs to simulate, ordered by `arrival_s`, which counts in seconds from 0, and the kinds they
    are of.

    `skipped`: lines left out with skip_bad. `facts`: plain JSON data about the workload for the
    report (where it is from, the load it makes, what was assumed). `seats`: where jobs that arrive
    at 0 run already, as far as the cluster has those devices.
    """

    name: str
    jobs: Jobs
    kinds: tuple[KindView, ...]
    skipped: tuple[BadLine, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seats: tuple[Placement, ...] = ()


class WorkloadError(ValueError):
    """A workload cannot be made; the message says why, `bad_lines` which lines are bad."""

    def __init__(self, message: str, bad_lines: Sequence[BadLine] = ()) -> None:
        super().__init__(message + listed(bad_lines))
        self.bad_lines = tuple(bad_lines)


def listed(bad_lines: Sequence[BadLine]) -> str:
    """The first bad lines, one a line, and how many there are more; empty if there is none."""
    shown = "".join(f"\n  {bad}" for bad in bad_lines[:SHOWN])
    more = len(bad_lines) - SHOWN
    return shown + (f"\n  and {more:,} more" if more > 0 else "")
