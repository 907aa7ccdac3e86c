"""Which jobs have a time slice in the next round (Gavel, section 5), by the service account.

The account: shares, and time received since they were made, plain data in plan memory. A row is a
job class, or a pair of classes; an entry is a row on a column in which it has a share. Times of a
row are those of all its jobs (pairs) together: with a share of 2.5 two or three of its jobs run
there at any time. An entry lags by the time that it should have received and has not.

Rows are taken by what they would lag at the end of the round without a slice in it, as long as
their GPUs fit; a job is in one row only, and a gang runs whole. A row of n jobs is taken up to n
times: its k-th slice counts as if it had had the first k - 1. Within a class the job that has
received least there comes first (from other GPUs only if it is PATIENCE behind), then the oldest.

The paper takes rows by X / f, f the fraction of the column's time received. A row with a share of a
hundredth that has received nothing then comes first of all (f = 0) and is ahead by ninety-nine
rounds. By lag no job on a GPU of n jobs is ever ahead by a slice, nor behind by more than 1/2 +
1/3 + ... + 1/n slices; jobs end nearer to when they would with exactly their shares
(docs/benchmarks.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Any, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats
from policies.gavel.allocation.job_classes import JobClasses
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import Shares
from policies.placement.time_slices import ALONE, CurrentSlice, Slice

SMALLEST_SHARE = 1e-6
"""Shares below are a solver's zeros."""

MOST_AHEAD = 1.0
MOST_BEHIND = 10.0
"""Rounds that a row may be ahead of its share, or behind, when shares are made."""

VERSION = 3
"""Of the memory's form."""

KEPT = ("problem", "made_s", "seen_s", "round_end_s", "objective", "credit")
BY_ENTRY = ("share", "received_s", "ahead_s")
"""Fields of the account in the memory: plain data, and arrays by entry."""

Name: TypeAlias = tuple[tuple[str, ...], str]
"""Classes of an entry's row, and its column."""

Credits: TypeAlias = Mapping[str, Mapping[str, float]]
"""By job, and GPU type: the time that others of its class had received when it came in."""


@dataclass(slots=True)
class ServiceAccount:
    """Account of n entries: `names`, `rows` and `columns` (present numbers).

    `share` float64[n], `received_s` float64[n] since `made_s`, `ahead_s` float64[n]: by how much
    the row was ahead of its share then (below 0: behind). `policy`: whose shares these are,
    `problem`: the fingerprint of the problem. `received_s` counts up to `seen_s`; slices end at
    `round_end_s`.
    """

    policy: str
    problem: str
    made_s: float
    seen_s: float
    round_end_s: float
    objective: float
    names: Sequence[Name]
    entry: Mapping[tuple[int, int], int]
    share: Floats
    received_s: Floats
    ahead_s: Floats
    credit: Credits

    def lag_s(self, now_s: float) -> Floats:
        """float64[n]: time that each entry's row should have received by now and has not."""
        lag: Floats = self.share * (now_s - self.made_s) - self.received_s - self.ahead_s
        return lag

    def receive(self, now_s: float, running: Iterable[tuple[int, int, float]]) -> None:
        """Add the time until now; `running`: (row, column, since when) of everything that runs."""
        received, seen_s = self.received_s.tolist(), self.seen_s
        for row, column, since_s in running:
            since_s = max(since_s, seen_s)
            if since_s < now_s and (i := self.entry.get((row, column))) is not None:
                received[i] += now_s - since_s
        self.received_s, self.seen_s = np.array(received, dtype=np.float64), now_s

    def to_memory(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "version": VERSION,
            "policy": self.policy,
            "names": [[list(of), column] for of, column in self.names],
            **{name: getattr(self, name) for name in KEPT},
            **{name: getattr(self, name).tolist() for name in BY_ENTRY},
        }


def from_memory(
    memory: Mapping[str, Any], policy: str, classes: JobClasses
) -> ServiceAccount | None:
    """Return the account that this policy's last plan kept; None if there is none."""
    if (memory.get("policy"), memory.get("version")) != (policy, VERSION):
        return None
    names = [(tuple(of), column) for of, column in memory["names"]]
    share, received_s, ahead_s = (np.array(memory[name], dtype=np.float64) for name in BY_ENTRY)
    return ServiceAccount(
        policy=policy, names=names, entry=_numbers(names, classes), share=share,
        received_s=received_s, ahead_s=ahead_s, **{name: memory[name] for name in KEPT},
    )  # fmt: skip


def opened(
    policy: str,
    problem: str,
    classes: JobClasses,
    shares: Shares,
    now_s: float,
    round_s: float,
    before: ServiceAccount | None,
) -> ServiceAccount:
    """Return a new account for new shares; rows keep their lag of the one before.

    Time received counts from now on (Gavel, section 5). Without kept lags, events in every round
    would starve rows with small shares.
    """
    table = np.concatenate([shares.alone, shares.paired]) if len(shares.paired) else shares.alone
    row, column = np.nonzero(table > SMALLEST_SHARE)
    share, keys, columns = table[row, column], classes.row_keys, classes.column_names
    places = list(zip(row.tolist(), column.tolist(), strict=True))
    names = [(keys[r], columns[c]) for r, c in places]
    ahead_s = np.zeros(len(row))
    if before is not None:
        ahead_s = _taken_along(names, share, before, now_s, round_s)
    return ServiceAccount(
        policy=policy, problem=problem, made_s=now_s, seen_s=now_s,
        round_end_s=now_s if before is None else before.round_end_s,
        objective=shares.objective, names=names, share=share,
        entry={place: i for i, place in enumerate(places)},
        received_s=np.zeros(len(row)), ahead_s=ahead_s,
        credit={} if before is None else before.credit,
    )  # fmt: skip


def _numbers(names: Iterable[Name], classes: JobClasses) -> dict[tuple[int, int], int]:
    """Return the number of the entry of each (row, column) that is still there."""
    row_of = {key: row for row, key in enumerate(classes.row_keys)}
    column_of = {name: c for c, name in enumerate(classes.column_names)}
    places = ((row_of.get(key), column_of.get(column)) for key, column in names)
    return {(r, c): i for i, (r, c) in enumerate(places) if r is not None and c is not None}


def _taken_along(
    names: Sequence[Name], share: Floats, before: ServiceAccount, now_s: float, round_s: float
) -> Floats:
    stood = dict(zip(before.names, (-before.lag_s(now_s)).tolist(), strict=True))
    ahead = np.array([stood.get(name, 0.0) for name in names], dtype=np.float64)
    unit = round_s * np.maximum(share, 1.0)
    taken: Floats = np.clip(ahead, -MOST_BEHIND * unit, MOST_AHEAD * unit)
    return taken


PATIENCE = 10.0
"""Rounds that a job may be ahead of another of its class here before they change places.

Gavel changes places in every round: the same mean, with three times as many migrations.
"""
SLIGHT = 1e-6
"""Fraction of a round below which a lag is a rounding error."""


def running_rows(
    observed: Observed, current: Mapping[int, CurrentSlice]
) -> Iterator[tuple[int, int, float]]:
    """Yield (row, column, since when) of everything that runs in a class, a pair once."""
    class_of, pair_row = observed.classes.class_of, observed.classes.pair_row
    classes = len(observed.classes.keys)
    for job, of in current.items():
        row = class_of[job]
        if of.partner != ALONE:
            other = class_of[of.partner]
            pair = pair_row.get((min(row, other), max(row, other)))
            row = -1 if pair is None or job > of.partner else classes + pair
        if row >= 0:
            yield row, of.column, of.run.since_s


class Selection:
    """Slices for jobs that are not in `placed`, of `left` GPUs by type.

    `free` by row: jobs of a class without a place; 1 for a pair; last (-1) jobs of no class. With
    `lagging_only` no slice puts a row ahead of its share: GPUs may stay idle.
    """

    def __init__(
        self,
        observed: Observed,
        account: ServiceAccount,
        queues: ClassQueues,
        left: Mapping[str, int],
        placed: Container[int],
        *,
        lagging_only: bool,
    ) -> None:
        problem, self.class_of = observed.problem, observed.classes.class_of
        self.observed, self.account, self.queues = observed, account, queues
        self.current, self.lagging_only = queues.current, lagging_only
        self.round_s = length_s(observed.snapshot.round_s)
        self.left = [left.get(name, 0) for name in problem.types]
        self.pairs: list[list[int]] = problem.pairs.tolist()
        self.classes = len(observed.classes.keys)
        self.free = [*problem.count.tolist(), *([1] * len(self.pairs)), 0]
        self.taken = {job for job in queues.current if job in placed}
        for job in self.taken:
            self.free[self.class_of[job]] -= 1

    def slices(self) -> Iterator[Slice]:
        """Take rows by lag as long as their GPUs fit; each comes again, its lag a slice less."""
        left, free, round_s, due = self.left, self.free, self.round_s, self._due()
        most_s = -SLIGHT * round_s if self.lagging_only else inf
        while due and due[0][0] < most_s and any(left):
            _, i, had, row, column, of_type, gpus, lag_s, share = due[0]
            jobs = self._jobs(row, column) if left[of_type] >= gpus and free[row] > 0 else ()
            if jobs:
                yield Slice(jobs, column, gpus)
                left[of_type] -= gpus
            if jobs and free[row] > 0:
                ahead_s = -(lag_s + round_s * (share - (had + 1)))
                heapreplace(due, (ahead_s, i, had + 1, row, column, of_type, gpus, lag_s, share))
            else:
                heappop(due)

    def _due(self) -> list[tuple[float, int, int, int, int, int, int, float, float]]:
        """Return a heap of the entries for which there are GPUs and a job without a place.

        (how far ahead its row would be at the end of the round, number, slices that it has, row,
        column, type, GPUs of a slice, lag now, share).
        """
        problem, left, free, round_s = self.observed.problem, self.left, self.free, self.round_s
        gpus, type_of = problem.scale.tolist(), problem.column_type.tolist()
        gpus += [gpus[a] for a, _ in self.pairs]
        lag = self.account.lag_s(self.observed.snapshot.now_s).tolist()
        share, had = self.account.share.tolist(), self._slices_had()
        due = []
        for (row, column), i in self.account.entry.items():
            of_type = type_of[column]
            if free[row] > 0 and left[of_type] >= gpus[row]:
                k = had.get((row, column), 0)
                ahead_s = -(lag[i] + round_s * (share[i] - k))
                due.append((ahead_s, i, k, row, column, of_type, gpus[row], lag[i], share[i]))
        heapify(due)
        return due

    def _slices_had(self) -> Mapping[tuple[int, int], int]:
        """Return how many slices each (row, column) has by what is placed already."""
        placed = {job: self.current[job] for job in self.taken}
        return Counter((row, column) for row, column, _ in running_rows(self.observed, placed))

    def _jobs(self, row: int, column: int) -> tuple[int, ...]:
        """Take the next job of a class, or the next two of a pair; () if they are not there."""
        if row < self.classes:
            jobs: tuple[int, ...] = (self.queues.of(row, column, self.taken)[-1],)
        else:
            jobs = self._two(self.pairs[row - self.classes], column)
        self.taken.update(jobs)
        for job in jobs:
            self.free[self.class_of[job]] -= 1
        return jobs

    def _two(self, pair: Sequence[int], column: int) -> tuple[int, ...]:
        """Return the next two of these classes; two on one device already go on together."""
        a, b = pair
        first = self.queues.next(a, column, self.taken)
        if first is None:
            return ()
        second = self.current[first].partner if first in self.current else ALONE
        if second == ALONE or second in self.taken or self.class_of[second] != b:
            found = self.queues.next(b, column, self.taken, but=first)
            return () if found is None else (first, found)
        return first, second


class ClassQueues:
    """The jobs of each class in the order in which they get GPUs of a type."""

    def __init__(
        self, observed: Observed, credit: Credits, current: Mapping[int, CurrentSlice]
    ) -> None:
        columns = observed.snapshot.jobs.columns
        self.observed, self.current, self.credit = observed, current, credit
        self.members, self.ids = observed.classes.members, columns.ids
        self.received_s = columns.others["received_s"]
        self.arrival = columns.numbers["arrival_s"].tolist()
        self.patience_s = PATIENCE * length_s(observed.snapshot.round_s)
        self.queues: dict[tuple[int, int], list[int]] = {}

    def of(self, of_class: int, column: int, taken: Container[int]) -> list[int]:
        """Return the jobs of a class that are not taken, the first one last.

        A job that is taken once must be so in every later call.
        """
        queue = self.queues.get((of_class, column))
        if queue is None:
            waiting = [job for job in self.members[of_class] if job not in taken]
            queue = self._sorted(waiting, column) if len(waiting) > 1 else waiting
            self.queues[of_class, column] = queue
        while queue and queue[-1] in taken:
            queue.pop()
        return queue

    def next(
        self, of_class: int, column: int, taken: Container[int], but: int = ALONE
    ) -> int | None:
        """Return the first job of a class that is not taken, nor `but`."""
        queue = self.of(of_class, column, taken)
        return next((job for job in reversed(queue) if job != but and job not in taken), None)

    def by_need(self, jobs: list[int]) -> list[int]:
        """Return jobs of one class, those first that have received least of all types together."""
        if len(jobs) == 1:
            return jobs
        total_s = {job: sum(received_s(self.observed, self.credit, job).values()) for job in jobs}
        return sorted(jobs, key=lambda job: (total_s[job], self.arrival[job], job))

    def _sorted(self, jobs: Sequence[int], column: int) -> list[int]:
        """Return jobs of one class, the last one first."""
        gpu_type, keys = self.observed.problem.columns[column].gpu_type, []
        for job in jobs:
            had_s, current = self._had_on_s(job, gpu_type), self.current.get(job)
            moves = current is None or current.column != column
            if current is not None and moves:
                had_s += self.patience_s
            keys.append((had_s, moves, self.arrival[job], job))
        keys.sort(reverse=True)
        return [job for _, _, _, job in keys]

    def _had_on_s(self, job: int, gpu_type: str) -> float:
        had_s: float = dict(self.received_s[job]).get(gpu_type, 0.0)
        credit = self.credit.get(self.ids[job]) if self.credit else None
        return had_s + credit.get(gpu_type, 0.0) if credit else had_s


def received_s(observed: Observed, credit: Credits, job: int) -> dict[str, float]:
    """Return the time that a job has received by GPU type, with its credit."""
    columns = observed.snapshot.jobs.columns
    had = dict(columns.others["received_s"][job])
    for gpu_type, seconds in credit.get(columns.ids[job], {}).items():
        had[gpu_type] = had.get(gpu_type, 0.0) + seconds
    return had


def length_s(round_s: float) -> float:
    """Return a round's length to reckon with; rounds without any are as long as a second."""
    return max(round_s, 1.0)
