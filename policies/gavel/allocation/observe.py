"""From a snapshot to what shares are made of: who takes part, what there is to divide, how fast
each class is on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from policies.contract.job_columns import frozen
from policies.contract.plan import Waiting
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.gavel.allocation.allocatable import Allocatable, Outside, allocatable_of, outside_of
from policies.gavel.allocation.job_classes import PLAIN, GroupingOptions, JobClasses, job_classes
from policies.gavel.allocation.problem import AllocationProblem
from policies.placement.eligibility import not_eligible

__all__ = ["GroupingOptions", "Observed", "in_order", "observe"]


@dataclass(frozen=True)
class Observed:
    """A snapshot as share policies look at it.

    `rows` int64[E]: rows of the jobs that take part: all but those that must wait whatever the
    capacity (`waiting`, by row) and those that stay where they are without being decided about
    (`outside`). `classes` has their problem, `allocatable` the nodes.
    """

    snapshot: Snapshot
    rows: Ints
    classes: JobClasses
    allocatable: Allocatable
    outside: Outside
    waiting: Mapping[int, Waiting]

    @property
    def problem(self) -> AllocationProblem:
        """What is divided among whom."""
        return self.classes.problem

    @cached_property
    def row_list(self) -> list[int]:
        """`rows` for whoever looks at jobs one by one."""
        rows: list[int] = self.rows.tolist()
        return rows

    def taking_part(self, values: tuple[Any, ...]) -> Sequence[Any]:
        """Of a column of all jobs, what those have that take part."""
        return values if len(self.rows) == len(values) else [values[row] for row in self.row_list]

    @cached_property
    def pair_row(self) -> Mapping[tuple[int, int], int]:
        """Number of the pair of two classes, the first not above the second."""
        return {(a, b): p for p, (a, b) in enumerate(self.problem.pairs.tolist())}

    def number(self, name: str) -> Floats:
        """float64[M]: a numeric column of the first job of each class; for problems in which every
        job is one.
        """
        first = np.array([members[0] for members in self.classes.members], dtype=np.int64)
        return self.snapshot.jobs.columns.numbers[name][self.rows[first]]


def in_order(a: int, b: int) -> tuple[int, int]:
    """Two classes as a pair has them."""
    return (a, b) if a <= b else (b, a)


def observe(snapshot: Snapshot, asked: GroupingOptions = PLAIN) -> Observed:
    """What this snapshot has to divide.

    A job takes part with `gpus_min` GPUs. One of weight 0, or that can run nowhere now, has no
    claim: it is in no class, and has what is left over. Just launched jobs take part; jobs that
    stay on nodes which take nothing new do not, nor do their GPUs.
    """
    waiting = not_eligible(snapshot)
    outside = outside_of(snapshot, waiting)
    allocatable = allocatable_of(snapshot, outside)
    decided = waiting.keys() | {stay.row for stay in outside.stay}
    rows = np.arange(len(snapshot.jobs), dtype=np.int64)
    rows = frozen(np.delete(rows, sorted(decided)) if decided else rows)
    return Observed(
        snapshot,
        rows,
        job_classes(snapshot, allocatable, rows, asked),
        allocatable,
        outside,
        waiting,
    )
