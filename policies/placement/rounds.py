"""Gavel's round mechanism (section 5): who has a turn in the next round, so that time received
comes near the shares.

Every row (class, or pair of classes) is lag time on each column in which it has a share: what the
share comes to since shares were made, less what the row received, less what it was ahead of its
share then. Rows are taken by what they would be lag at the end of the round to come without a turn
in it, the most first, as long as their GPUs fit; a job is in one row only, and a gang runs whole. A
row of n jobs is taken up to n times: its k-th turn counts as if it had already had the first k - 1.
Within a class whoever has received least there comes first (from other GPUs only who is PATIENCE
behind), then the oldest.

The paper takes rows by X / f, f the part of the column's time received: by how far they are behind
in proportion. A row with a share of a hundredth that has received nothing comes first of all (f =
0), and is then ahead by ninety-nine rounds, all but one of which are forgotten when shares are made
anew, as at every arrival and end. By time lag nobody on a GPU of n jobs is ever ahead by a turn,
nor behind by more than 1/2 + 1/3 + ... + 1/n turns; jobs end nearer to when they would with exactly
their shares (docs/benchmarks.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.observe import Observed, in_order
from policies.gavel.service_account import Levels, ServiceAccount
from policies.placement.homes import ALONE, Home

PATIENCE = 10.0
"""Rounds that a job may be ahead of another of its class, on this type, before the two change
places; one without GPUs is not made to wait for them. Gavel changes places in every round; with the
same mean for all, on its streams that is three times as many migrations, and later ends where a
migration costs anything.
"""
SLIGHT = 1e-6
"""Part of a round. Time lag that is less is an error of rounding."""
MANY = 64
"""Jobs of a class: so many are sorted more quickly in arrays."""

NOWHERE = -1


class Turn(NamedTuple):
    """One job, or two that share their device, to run on this column in the coming round on so many
    GPUs.
    """

    jobs: tuple[int, ...]
    column: int
    gpus: int


def under_way(observed: Observed, homes: Mapping[int, Home]) -> list[tuple[int, int, float]]:
    """(row, column, since when) of everything that runs, a pair once; jobs without a claim are of
    no row.
    """
    of, classes, found = observed.classes.class_list, len(observed.classes.keys), []
    for home in homes.values():
        row = of[home.job]
        if home.partner != ALONE:
            pair = (
                observed.pair_row.get(in_order(row, of[home.partner]))
                if home.job < home.partner
                else None
            )
            row = -1 if pair is None else classes + pair
        if row >= 0:
            found.append((row, home.column, home.run.since_s))
    return found


def turns(
    observed: Observed,
    account: ServiceAccount,
    queues: Queues,
    left: list[int],
    fixed: Collection[int],
    *,
    lagging_only: bool = False,
) -> list[Turn]:
    """Who runs next by the shares, who is lag most first. `left`: GPUs by type still to be given;
    `fixed`: who has a place.

    With `lagging_only`, rows have no turn that would put them ahead of their share.
    """
    if not any(left) or len(fixed) == len(observed.row_list):
        return []
    return list(_Selection(observed, account, queues, left, fixed, lagging_only).turns())


_Due: TypeAlias = tuple[float, int, int, int, int, int, int, float, float]
"""(less by what its row would be lag at the end of the round without another turn, number, turns
that it has, row, column, type, GPUs of a turn, what is lag now, share) of an entry: the first is
due first. (Plain, as one is made for each turn.)
"""


class _Selection:
    """`free` by row: jobs of a class that have no place; 1 for a pair of classes, of which is found
    out when it is its turn; last (-1) a number for jobs of no class, of which nobody asks.
    """

    def __init__(
        self,
        observed: Observed,
        account: ServiceAccount,
        queues: Queues,
        left: list[int],
        fixed: Collection[int],
        lagging_only: bool,
    ) -> None:
        self.observed, self.account, self.queues, self.homes, self.left = (
            observed,
            account,
            queues,
            queues.homes,
            list(left),
        )
        self.round_s, self.lagging_only = length_s(observed.snapshot.round_s), lagging_only
        self.placed = {e: home for e, home in queues.homes.items() if e in fixed}
        self.taken = set(self.placed)
        problem, self.of_class, self.classes = (
            observed.problem,
            observed.classes.class_list,
            len(observed.classes.keys),
        )
        self.pairs: list[list[int]] = problem.pairs.tolist()
        self.free = [*problem.count.tolist(), *([1] * len(self.pairs)), 0]
        for e in self.taken:
            self.free[self.of_class[e]] -= 1

    def turns(self) -> Iterator[Turn]:
        """Take rows by what they are lag as long as their GPUs fit. Each comes again, lag a turn
        less, until it can have none: GPUs and jobs that are left only become fewer.
        """
        left, free, round_s, due = self.left, self.free, self.round_s, self._due()
        most_s = -SLIGHT * round_s if self.lagging_only else inf
        while due and due[0][0] < most_s and any(left):
            _, i, had, row, column, of_type, gpus, lag_s, share = due[0]
            jobs = self._jobs(row, column) if left[of_type] >= gpus and free[row] > 0 else ()
            if jobs:
                yield Turn(jobs, column, gpus)
                left[of_type] -= gpus
            if jobs and free[row] > 0:
                ahead_s = -(lag_s + round_s * (share - (had + 1)))
                heapreplace(due, (ahead_s, i, had + 1, row, column, of_type, gpus, lag_s, share))
            else:
                heappop(due)

    def _due(self) -> list[_Due]:
        """A heap of the entries for which there are GPUs, and somebody without a place."""
        account, problem, left, free, round_s = (
            self.account,
            self.observed.problem,
            self.left,
            self.free,
            self.round_s,
        )
        gpus, type_of, running = (
            problem.scale.tolist(),
            problem.column_type.tolist(),
            self._running(),
        )
        gpus += [gpus[a] for a, _ in self.pairs]
        numbers = (
            a.tolist()
            for a in (
                account.row,
                account.column,
                account.lag_s(self.observed.snapshot.now_s),
                account.share,
            )
        )
        due = []
        for i, (row, column, lag_s, share) in enumerate(zip(*numbers, strict=True)):
            if free[row] > 0 and left[type_of[column]] >= gpus[row]:
                had = running.get((row, column), 0)
                ahead_s = -(lag_s + round_s * (share - had))
                due.append((ahead_s, i, had, row, column, type_of[column], gpus[row], lag_s, share))
        heapify(due)
        return due

    def _running(self) -> Mapping[tuple[int, int], int]:
        """By (row, column): jobs, or pairs of them, that have a place there, of classes of which
        others are still without.
        """
        running: dict[tuple[int, int], int] = defaultdict(int)
        wanted = {e: home for e, home in self.placed.items() if self.free[self.of_class[e]] > 0}
        for row, column, _ in under_way(self.observed, wanted):
            running[row, column] += 1
        return running

    def _jobs(self, row: int, column: int) -> tuple[int, ...]:
        """Take the next job of a class that has one, or two of a pair of classes; none if they are
        not there.
        """
        if row < self.classes:
            queue = self.queues.of(row, column, self.taken)
            self.taken.add(queue[-1])
            self.free[row] -= 1
            return (queue[-1],)
        a, b = self.pairs[row - self.classes]
        jobs = self._two(a, b, column)
        self.taken.update(jobs)
        for e in jobs:
            self.free[self.of_class[e]] -= 1
        return jobs

    def _two(self, a: int, b: int, column: int) -> tuple[int, ...]:
        """The next two of these classes: on a device that the first has already with one of the
        second, they go on together.
        """
        first = self.queues.next(a, column, self.taken)
        if first is None:
            return ()
        second = self.homes[first].partner if first in self.homes else ALONE
        if second == ALONE or second in self.taken or self.observed.classes.class_list[second] != b:
            found = self.queues.next(b, column, self.taken, but=first)
            return () if found is None else (first, found)
        return first, second


class Queues:
    """The jobs of each class in the order in which they come to have GPUs of a type."""

    def __init__(
        self, observed: Observed, account: ServiceAccount, homes: Mapping[int, Home]
    ) -> None:
        self.observed, self.homes, self.level = observed, homes, account.level
        self.members, self.rows = observed.classes.members, observed.row_list
        self.patience_s = PATIENCE * length_s(observed.snapshot.round_s)
        self.queues: dict[tuple[int, int], list[int]] = {}
        self.ids = observed.snapshot.jobs.columns.ids

    def of(self, of_class: int, column: int, taken: Container[int]) -> list[int]:
        """Whoever of the class is not taken, the first one last; before him may be some who are.
        Who is taken once must be so in every later question.
        """
        queue = self.queues.get((of_class, column))
        if queue is None:
            waiting = [e for e in self.members[of_class] if e not in taken]
            queue = self.queues[of_class, column] = (
                self._sorted(waiting, column) if len(waiting) > 1 else waiting
            )
        while queue and queue[-1] in taken:
            queue.pop()
        return queue

    def next(
        self, of_class: int, column: int, taken: Container[int], but: int = ALONE
    ) -> int | None:
        """The first of the class that is not taken, `but` for one."""
        queue = self.of(of_class, column, taken)
        if not queue or queue[-1] != but:
            return queue[-1] if queue else None
        return next((e for e in reversed(queue[:-1]) if e not in taken), None)

    def in_need(self, jobs: list[int]) -> list[int]:
        """Jobs of one class, whoever has received least of all types together first."""
        return (
            jobs
            if len(jobs) == 1
            else sorted(
                jobs,
                key=lambda e: (
                    sum(attained_s(self.observed, self.level, e).values()),
                    self.arrival[e],
                    e,
                ),
            )
        )

    def _sorted(self, jobs: list[int], column: int) -> list[int]:
        """Jobs of one class, the last one first."""
        if len(jobs) >= MANY:
            return self._many_sorted(np.array(jobs), column)
        gpu_type, arrival, rows, keys = (
            self.observed.problem.columns[column].gpu_type,
            self.arrival,
            self.rows,
            [],
        )
        for e in jobs:
            home, waits_s = self.homes.get(e), self._attained_s(rows[e], gpu_type)
            if home is None:
                keys.append((waits_s, True, arrival[e], e))
            elif home.column == column:
                keys.append((waits_s, False, arrival[e], e))
            else:
                keys.append((waits_s + self.patience_s, True, arrival[e], e))
        keys.sort(reverse=True)
        return [e for _, _, _, e in keys]

    def _many_sorted(self, jobs: Ints, column: int) -> list[int]:
        """The same of many jobs, which come rising."""
        homes = self.home_columns[jobs]
        moves = homes != column
        waits_s = self._attained[self.observed.problem.columns[column].gpu_type][
            jobs
        ] + self.patience_s * (moves & (homes != NOWHERE))
        arrival = self.observed.snapshot.jobs.columns.numbers["arrival_s"][self.observed.rows[jobs]]
        last: list[int] = jobs[np.lexsort((arrival, moves, waits_s))[::-1]].tolist()
        return last

    @cached_property
    def home_columns(self) -> Ints:
        """int64[E]: the column of each job's home, NOWHERE for none."""
        columns = np.full(len(self.rows), NOWHERE, dtype=np.int64)
        columns[list(self.homes)] = [home.column for home in self.homes.values()]
        return columns

    @cached_property
    def _attained(self) -> Mapping[str, Floats]:
        """By GPU type float64[E]: time that each job has received there so far."""
        received, level, of = self.received, self.level, self._attained_s
        return {
            t: np.array([of(row, t) if level or received[row] else 0.0 for row in self.rows])
            for t in self.observed.allocatable.types
        }

    def _attained_s(self, row: int, gpu_type: str) -> float:
        """Time that the job in this row has received on GPUs of this type so far."""
        attained_s = 0.0
        for of, seconds in self.received[row]:
            if of == gpu_type:
                attained_s += seconds
        if self.level and (level := self.level.get(self.ids[row])):
            attained_s += level.get(gpu_type, 0.0)
        return attained_s

    @cached_property
    def received(self) -> Sequence[Sequence[tuple[str, float]]]:
        """By row the time received on each type; in most rounds in which turns go on nobody
        asks.
        """
        received: Sequence[Sequence[tuple[str, float]]] = (
            self.observed.snapshot.jobs.columns.others["received_s"]
        )
        return received

    @cached_property
    def arrival(self) -> list[float]:
        """By job."""
        arrival: list[float] = self.observed.snapshot.jobs.columns.numbers["arrival_s"][
            self.observed.rows
        ].tolist()
        return arrival


def attained_s(observed: Observed, level: Levels, e: int) -> dict[str, float]:
    """By GPU type, the time that job e has received so far; one that came in after its class mates
    starts level with them.
    """
    columns, row = observed.snapshot.jobs.columns, observed.row_list[e]
    had = dict(columns.others["received_s"][row])
    for gpu_type, seconds in level.get(columns.ids[row], {}).items() if level else ():
        had[gpu_type] = had.get(gpu_type, 0.0) + seconds
    return had


def length_s(round_s: float) -> float:
    """A round's length to reckon with; rounds without any are as long as a second."""
    return max(round_s, 1.0)
