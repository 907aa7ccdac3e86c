"""Gavel's round mechanism (section 5): who has a turn in the next round, so that time received comes near the shares.

Every row (class, or pair of classes) is owed time on each column in which it has a share: what the share comes to since shares
were made, less what the row received, less what it was ahead of its share then. Rows are taken by what they would be owed at the
end of the round to come without a turn in it, the most first, as long as their GPUs fit; a job is in one row only, and a gang
runs whole. A row of n jobs is taken up to n times: its k-th turn counts as if it had already had the first k - 1. Within a class
whoever has received least there comes first (from other GPUs only who is PATIENCE behind), then the oldest.

The paper takes rows by X / f, f the part of the column's time received: by how far they are behind in proportion. A row with a
share of a hundredth that has received nothing comes first of all (f = 0), and is then ahead by ninety-nine rounds, all but one of
which are forgotten when shares are made anew, as at every arrival and end. By time owed nobody on a GPU of n jobs is ever ahead
by a turn, nor behind by more than 1/2 + 1/3 + ... + 1/n turns; jobs end nearer to when they would with exactly their shares
(docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from policies.mechanisms.homes import ALONE, Home
from policies.shares.ledger import Ledger, Levels
from policies.shares.observe import Observed, in_order
from policies.snapshot import Floats, Ints

PATIENCE = 10.0
"""Rounds that a job may be ahead of another of its class, on this type, before the two change places; one without GPUs is not made
to wait for them. Gavel changes places in every round; with the same mean for all, on its streams that is three times as many
migrations, and later ends where a migration costs anything.
"""
SLIGHT = 1e-6
"""Part of a round. Time owed that is less is an error of rounding."""

NOWHERE = -1


class Turn(NamedTuple):
    """One job, or two that share their device, to run on this column in the coming round on so many GPUs."""

    jobs: tuple[int, ...]
    column: int
    gpus: int


def under_way(observed: Observed, homes: Mapping[int, Home]) -> list[tuple[int, int, float]]:
    """(row, column, since when) of everything that runs, a pair once; jobs without a claim are of no row."""
    of, classes, found = observed.classes.class_list, len(observed.classes.keys), []
    for home in homes.values():
        row = of[home.job]
        if home.partner != ALONE:
            pair = observed.pair_row.get(in_order(row, of[home.partner])) if home.job < home.partner else None
            row = -1 if pair is None else classes + pair
        if row >= 0:
            found.append((row, home.column, home.run.since_s))
    return found


def turns(
    observed: Observed, ledger: Ledger, queues: Queues, left: list[int], fixed: Container[int], *, owed_only: bool = False
) -> list[Turn]:
    """Who runs next by the shares, who is owed most first. `left`: GPUs by type still to be given; `fixed`: who has a place.

    With `owed_only`, rows have no turn for which they would not be owed time at its end: GPUs stay idle where shares leave them so.
    """
    if not len(ledger.row) or not any(left):
        return []
    return list(_Selection(observed, ledger, queues, left, fixed, owed_only).turns())


class _Selection:
    def __init__(
        self, observed: Observed, ledger: Ledger, queues: Queues, left: list[int], fixed: Container[int], owed_only: bool
    ) -> None:
        homes, self.owed_only = queues.homes, owed_only
        self.observed, self.ledger, self.homes, self.left = observed, ledger, homes, list(left)
        self.fixed = {e: home for e, home in homes.items() if e in fixed}
        self.taken = set(self.fixed)
        self.round_s, self.now_s = length_s(observed.snapshot.round_s), observed.snapshot.now_s
        self.queues = queues
        division = observed.division
        self.pairs: list[list[int]] = division.pairs.tolist()
        self.gpus = np.concatenate([division.scale, division.scale[division.pairs[:, 0]]])[ledger.row]
        self.type_of = division.column_type[ledger.column]

    def turns(self) -> Iterator[Turn]:
        """Take rows by what they are owed as long as their GPUs fit."""
        row, column, gpus, type_of = (a.tolist() for a in (self.ledger.row, self.ledger.column, self.gpus, self.type_of))
        left, taken, classes, of_class = self.left, self.taken, self.observed.classes.keys, self.observed.classes.class_list
        free = self.free.tolist()
        for entry in self._by_time_owed():
            needed, of, at = gpus[entry], type_of[entry], row[entry]
            if left[of] < needed or (at < len(classes) and not free[at]):
                continue
            jobs = self._job(at, column[entry]) if at < len(classes) else self._two(at, column[entry])
            if jobs:
                taken.update(jobs)
                left[of] -= needed
                for e in jobs:
                    free[of_class[e]] -= 1
                yield Turn(jobs, column[entry], needed)

    def _by_time_owed(self) -> list[int]:
        """Entries in the order of their turns, each as often as its jobs without a place and its GPUs allow."""
        ledger, division = self.ledger, self.observed.division
        running = self._running()
        room = np.array(self.left, dtype=np.int64)[self.type_of] // self.gpus
        free = np.minimum(self._counts(division.count) - running, self._counts(self.free))
        times = np.maximum(np.minimum(free, room), 0)
        entry = np.repeat(np.arange(len(times)), times)
        turn = np.arange(len(entry)) - np.repeat(np.cumsum(times) - times, times) + running[entry]
        owed = ledger.owed_s(self.now_s)[entry] + self.round_s * (ledger.share[entry] - turn)
        order = np.argsort(-owed, kind="stable")
        due: list[int] = entry[order[owed[order] > SLIGHT * self.round_s] if self.owed_only else order].tolist()
        return due

    def _running(self) -> Ints:
        """int64[n]: jobs, or pairs of them, of each entry's row that have a place on its column."""
        running = np.zeros(len(self.ledger.row), dtype=np.int64)
        for row, column, _ in under_way(self.observed, self.fixed):
            if (at := self.ledger.entry.get((row, column))) is not None:
                running[at] += 1
        return running

    @cached_property
    def free(self) -> Ints:
        """int64[M]: jobs of each class that had no place before turns are given out."""
        of = self.observed.classes.of[list(self.fixed)]
        count = self.observed.division.count
        free: Ints = np.subtract(count, np.bincount(of[of >= 0], minlength=len(count)))
        return free

    def _counts(self, count: Ints) -> Ints:
        """int64[n]: jobs, or pairs of them, that each entry's row has, with so many jobs of each class."""
        pairs = self.observed.division.pairs
        a, b = count[pairs[:, 0]], count[pairs[:, 1]]
        of_pairs = np.where(pairs[:, 0] == pairs[:, 1], a // 2, np.minimum(a, b))
        counts: Ints = np.concatenate([count, of_pairs])[self.ledger.row]
        return counts

    def _job(self, of_class: int, column: int) -> tuple[int, ...]:
        """The next job of a class; none if all have a place."""
        first = self.queues.next(of_class, column, self.taken)
        return () if first is None else (first,)

    def _two(self, row: int, column: int) -> tuple[int, ...]:
        """The next two of a pair of classes; none if they are not there."""
        a, b = self.pairs[row - len(self.observed.classes.keys)]
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

    def __init__(self, observed: Observed, ledger: Ledger, homes: Mapping[int, Home]) -> None:
        self.observed, self.homes, self.level = observed, homes, ledger.level
        self.members = observed.classes.members
        self.patience_s = PATIENCE * length_s(observed.snapshot.round_s)
        self.queues: dict[int, list[list[int]]] = {}
        self.ids = observed.snapshot.jobs.columns.ids

    def next(self, of_class: int, column: int, taken: Container[int], but: int = ALONE) -> int | None:
        """The first of the class that is not taken, `but` for one."""
        members = self.members[of_class]
        if len(members) == 1:
            return None if members[0] in taken or members[0] == but else members[0]
        if column not in self.queues:
            self.queues[column] = self._sorted(column)
        queue = self.queues[column][of_class]
        while queue and queue[-1] in taken:
            queue.pop()
        if not queue or queue[-1] != but:
            return queue[-1] if queue else None
        return next((e for e in reversed(queue[:-1]) if e not in taken), None)

    def in_need(self, jobs: list[int]) -> list[int]:
        """Jobs of one class, whoever has received least of all types together first."""
        return (
            jobs
            if len(jobs) == 1
            else sorted(jobs, key=lambda e: (sum(attained_s(self.observed, self.level, e).values()), self.arrival[e], e))
        )

    def _sorted(self, column: int) -> list[list[int]]:
        """By class its jobs, the last one first: all classes at once cost as much as a few of them one by one."""
        moves = self.home_columns != column
        waits_s = self._attained[self.observed.division.columns[column].gpu_type] + self.patience_s * (
            moves & (self.home_columns != NOWHERE)
        )
        order = np.lexsort((self.observed.snapshot.jobs.columns.numbers["arrival_s"][self.observed.rows], moves, waits_s))
        of, queues = self.observed.classes.class_list, [list[int]() for _ in self.members]
        for e in order[::-1].tolist():
            if of[e] >= 0:
                queues[of[e]].append(e)
        return queues

    @cached_property
    def home_columns(self) -> Ints:
        """int64[E]: the column of each job's home, NOWHERE for none."""
        columns = np.full(len(self.observed.row_list), NOWHERE, dtype=np.int64)
        columns[list(self.homes)] = [home.column for home in self.homes.values()]
        return columns

    @cached_property
    def _attained(self) -> Mapping[str, Floats]:
        """By GPU type float64[E]: time that each job has received there so far; 0 for a job that is all its class, first anyway."""
        received, rows = self.observed.snapshot.jobs.columns.others["received_s"], self.observed.row_list
        table = {gpu_type: [0.0] * len(rows) for gpu_type in self.observed.ground.types}
        in_company = [e for members in self.members if len(members) > 1 for e in members]
        for e in in_company:
            for gpu_type, seconds in received[rows[e]]:
                if (of_type := table.get(gpu_type)) is not None:
                    of_type[e] += seconds
        for e in in_company if self.level else ():
            for gpu_type, seconds in self.level.get(self.ids[rows[e]], {}).items():
                if gpu_type in table:
                    table[gpu_type][e] += seconds
        return {gpu_type: np.array(of_type) for gpu_type, of_type in table.items()}

    @cached_property
    def arrival(self) -> list[float]:
        """By job."""
        arrival: list[float] = self.observed.snapshot.jobs.columns.numbers["arrival_s"][self.observed.rows].tolist()
        return arrival


def attained_s(observed: Observed, level: Levels, e: int) -> dict[str, float]:
    """By GPU type, the time that job e has received so far; one that came in after its class mates starts level with them."""
    columns, row = observed.snapshot.jobs.columns, observed.row_list[e]
    had = dict(columns.others["received_s"][row])
    for gpu_type, seconds in level.get(columns.ids[row], {}).items() if level else ():
        had[gpu_type] = had.get(gpu_type, 0.0) + seconds
    return had


def length_s(round_s: float) -> float:
    """A round's length to reckon with; rounds without any are as long as a second."""
    return max(round_s, 1.0)
