"""Selection of the jobs that have a time slice in the next round (Gavel, section 5).

The service account has the shares, and the time received since they were made; it is kept in plan
memory. A row is a job class, or a pair of classes; an entry is a row on a column (a GPU type, on
one node or spread) in which it has a share. Times of a row are those of all its jobs (or pairs)
together: with a share of 2.5 two or three of its jobs run there at any time. An entry lags by the
time that it should have received and has not.

Slices go to the entries that would lag most at the end of the round without a slice in it, as long
as their GPUs fit. A job has one slice only, and a gang runs whole. A row of n jobs gets up to n
slices: for the k-th it counts as having had the first k - 1. Within a class the job that has
received least there comes first, then the oldest. A job that runs on another GPU type comes first
only if it is PATIENCE behind.

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats
from policies.gavel.allocation.job_classes import JobClasses
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import Shares
from policies.placement.time_slices import ALONE, CurrentSlice, Slice

SMALLEST_SHARE = 1e-6
"""Shares below are a solver's zeros."""

MOST_AHEAD = 1.0
"""Most rounds by which a row counts as ahead of its share when new shares are made."""

MOST_BEHIND = 10.0
"""Most rounds by which a row counts as behind its share when new shares are made."""

PATIENCE = 10.0
"""Rounds that a job may be ahead of another of its class on a GPU type before they change places.

Gavel changes places in every round: the same mean, with three times as many migrations.
"""

SLIGHT = 1e-6
"""Fraction of a round below which a lag is a rounding error."""

VERSION = 3
"""Version of the form of the account in plan memory."""

PLAIN_FIELDS = ("problem", "made_s", "seen_s", "round_end_s", "objective", "credit")
"""Fields of the account that are kept in memory as they are."""

ENTRY_FIELDS = ("share", "received_s", "ahead_s")
"""Fields of the account that are arrays by entry."""

Name: TypeAlias = tuple[tuple[str, ...], str]
"""Keys of the classes of an entry's row, and the name of its column."""

Credits: TypeAlias = Mapping[str, Mapping[str, float]]
"""By job and GPU type: seconds that others of its class had received when it arrived."""


@dataclass(slots=True)
class ServiceAccount:
    """Account of n entries.

    `policy`: name and parameters of the policy that made the shares; `problem`: fingerprint of
    their inputs; `objective`: theirs.

    `names`: of the entries, the same in every snapshot; `entry`: their numbers by (row, column) of
    this snapshot. `share` float64[n]: made at `made_s`. `ahead_s` float64[n]: seconds by which the
    row was ahead of its share then (below 0: behind). `received_s` float64[n]: seconds since then
    up to `seen_s`, the last round. Slices end at `round_end_s`.
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
        received_s = self.received_s.tolist()
        for row, column, since_s in running:
            begin_s = max(since_s, self.seen_s)
            entry = self.entry.get((row, column))
            if entry is not None and begin_s < now_s:
                received_s[entry] += now_s - begin_s
        self.received_s = np.array(received_s, dtype=np.float64)
        self.seen_s = now_s

    def to_memory(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "version": VERSION,
            "policy": self.policy,
            "names": [[list(keys), column] for keys, column in self.names],
            **{name: getattr(self, name) for name in PLAIN_FIELDS},
            **{name: getattr(self, name).tolist() for name in ENTRY_FIELDS},
        }


def from_memory(
    memory: Mapping[str, Any], policy: str, classes: JobClasses
) -> ServiceAccount | None:
    """Return the account that this policy's last plan kept; None if there is none."""
    if (memory.get("policy"), memory.get("version")) != (policy, VERSION):
        return None
    names = [(tuple(keys), column) for keys, column in memory["names"]]
    arrays: dict[str, Any] = {}
    for field in ENTRY_FIELDS:
        arrays[field] = np.array(memory[field], dtype=np.float64)
    return ServiceAccount(
        policy=policy,
        names=names,
        entry=_entry_numbers(names, classes),
        **{name: memory[name] for name in PLAIN_FIELDS},
        **arrays,
    )


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
    # 1. Entries: every class or pair on every column in which it has a share.
    table = shares.alone
    if len(shares.paired):
        table = np.concatenate([shares.alone, shares.paired])
    row, column = np.nonzero(table > SMALLEST_SHARE)
    share = table[row, column]
    entry: dict[tuple[int, int], int] = {}
    names: list[Name] = []
    for r, c in zip(row.tolist(), column.tolist(), strict=True):
        entry[r, c] = len(names)
        names.append((classes.row_keys[r], classes.column_names[c]))

    # 2. What stays from before.
    ahead_s = np.zeros(len(row))
    round_end_s = now_s
    credit: Credits = {}
    if before is not None:
        ahead_s = _kept_ahead_s(names, share, before, now_s, round_s)
        round_end_s = before.round_end_s
        credit = before.credit
    return ServiceAccount(
        policy=policy,
        problem=problem,
        made_s=now_s,
        seen_s=now_s,
        round_end_s=round_end_s,
        objective=shares.objective,
        names=names,
        entry=entry,
        share=share,
        received_s=np.zeros(len(row)),
        ahead_s=ahead_s,
        credit=credit,
    )


def _entry_numbers(names: Iterable[Name], classes: JobClasses) -> dict[tuple[int, int], int]:
    """Return the number of each entry by (row, column), if both are still there."""
    row_of = {key: row for row, key in enumerate(classes.row_keys)}
    column_of = {name: column for column, name in enumerate(classes.column_names)}
    numbers: dict[tuple[int, int], int] = {}
    for number, (key, name) in enumerate(names):
        if key in row_of and name in column_of:
            numbers[row_of[key], column_of[name]] = number
    return numbers


def _kept_ahead_s(
    names: Sequence[Name], share: Floats, before: ServiceAccount, now_s: float, round_s: float
) -> Floats:
    """float64[n]: seconds by which each entry is ahead by the account before, within limits."""
    ahead_of_name = dict(zip(before.names, (-before.lag_s(now_s)).tolist(), strict=True))
    ahead_s = np.array([ahead_of_name.get(name, 0.0) for name in names], dtype=np.float64)
    unit_s = round_s * np.maximum(share, 1.0)
    kept_s: Floats = np.clip(ahead_s, -MOST_BEHIND * unit_s, MOST_AHEAD * unit_s)
    return kept_s


def running_rows(
    observed: Observed, current: Mapping[int, CurrentSlice]
) -> Iterator[tuple[int, int, float]]:
    """Yield (row, column, since when) of everything that runs in a class, a pair once."""
    class_of = observed.classes.class_of
    classes = len(observed.classes.keys)
    for job, running in current.items():
        row = class_of[job]
        if running.partner != ALONE:
            # A pair's row, at the one of its jobs that comes first.
            other = class_of[running.partner]
            pair = observed.classes.pair_row.get((min(row, other), max(row, other)))
            if pair is None or job > running.partner:
                continue
            row = classes + pair
        if row >= 0:
            yield row, running.column, running.run.since_s


class _Candidate(NamedTuple):
    """Entry that may get a slice; candidates compare by `ahead_s`, then by `entry`.

    `ahead_s`: seconds by which its row would be ahead of its share at the end of the round without
    another slice. `slices`: that it has in this round. `gpu_type`: number of the type of `column`;
    `gpus`: of one slice. `lag_s`: at the start of the round.
    """

    ahead_s: float
    entry: int
    slices: int
    row: int
    column: int
    gpu_type: int
    gpus: int
    lag_s: float
    share: float


class Selection:
    """Slices for jobs that are not in `placed`, on `free_gpus` by type.

    `unplaced` by row: jobs of a class without a place; 1 for a pair; the last, -1, of no class.
    `gpus_left` by number of the type. `taken`: jobs with a place. With `lagging_only` no slice puts
    a row ahead of its share: GPUs may stay idle.
    """

    def __init__(
        self,
        observed: Observed,
        account: ServiceAccount,
        queues: ClassQueues,
        free_gpus: Mapping[str, int],
        placed: Container[int],
        *,
        lagging_only: bool,
    ) -> None:
        self.observed = observed
        self.account = account
        self.queues = queues
        self.lagging_only = lagging_only
        self.class_of = observed.classes.class_of
        self.current = queues.current
        self.round_s = length_s(observed.snapshot.round_s)
        problem = observed.problem
        self.gpus_left = [free_gpus.get(name, 0) for name in problem.types]
        self.pairs: list[list[int]] = problem.pairs.tolist()
        self.classes = len(observed.classes.keys)
        self.unplaced = [*problem.count.tolist(), *([1] * len(self.pairs)), 0]
        self.taken = {job for job in queues.current if job in placed}
        for job in self.taken:
            self.unplaced[self.class_of[job]] -= 1

    def slices(self) -> Iterator[Slice]:
        """Yield slices for the rows that lag most, as long as their GPUs fit.

        A row with further jobs becomes a candidate again, a slice further ahead.
        """
        candidates = self._candidates()
        most_ahead_s = -SLIGHT * self.round_s if self.lagging_only else inf
        while candidates and candidates[0].ahead_s < most_ahead_s and any(self.gpus_left):
            candidate = candidates[0]
            row = candidate.row
            jobs: tuple[int, ...] = ()
            has_gpus = self.gpus_left[candidate.gpu_type] >= candidate.gpus
            if has_gpus and self.unplaced[row] > 0:
                jobs = self._take_jobs(row, candidate.column)
            if jobs:
                yield Slice(jobs, candidate.column, candidate.gpus)
                self.gpus_left[candidate.gpu_type] -= candidate.gpus
            if jobs and self.unplaced[row] > 0:
                slices = candidate.slices + 1
                ahead_s = self._ahead_s(candidate.lag_s, candidate.share, slices)
                heapreplace(candidates, candidate._replace(ahead_s=ahead_s, slices=slices))
            else:
                heappop(candidates)

    def _ahead_s(self, lag_s: float, share: float, slices: int) -> float:
        """Return how far ahead of its share a row is at the end of a round with these slices."""
        return -(lag_s + self.round_s * (share - slices))

    def _candidates(self) -> list[_Candidate]:
        """Return a heap of the entries for which there are GPUs and a job without a place."""
        problem = self.observed.problem
        gpus_of_row: list[int] = problem.scale.tolist()
        gpus_of_row += [gpus_of_row[first] for first, _ in self.pairs]
        type_of_column: list[int] = problem.column_type.tolist()
        lag_s = self.account.lag_s(self.observed.snapshot.now_s).tolist()
        share = self.account.share.tolist()
        slices_of = self._slices_placed()
        candidates = []
        for (row, column), entry in self.account.entry.items():
            gpu_type = type_of_column[column]
            gpus = gpus_of_row[row]
            if self.unplaced[row] <= 0 or self.gpus_left[gpu_type] < gpus:
                continue
            slices = slices_of.get((row, column), 0)
            candidate = _Candidate(
                ahead_s=self._ahead_s(lag_s[entry], share[entry], slices),
                entry=entry,
                slices=slices,
                row=row,
                column=column,
                gpu_type=gpu_type,
                gpus=gpus,
                lag_s=lag_s[entry],
                share=share[entry],
            )
            candidates.append(candidate)
        heapify(candidates)
        return candidates

    def _slices_placed(self) -> Mapping[tuple[int, int], int]:
        """Return the number of slices of each (row, column) by what is placed already."""
        placed = {job: self.current[job] for job in self.taken}
        return Counter((row, column) for row, column, _ in running_rows(self.observed, placed))

    def _take_jobs(self, row: int, column: int) -> tuple[int, ...]:
        """Take the next job of a class, or the next two of a pair; () if they are not there."""
        if row < self.classes:
            jobs: tuple[int, ...] = (self.queues.waiting(row, column, self.taken)[-1],)
        else:
            jobs = self._next_pair(self.pairs[row - self.classes], column)
        self.taken.update(jobs)
        for job in jobs:
            self.unplaced[self.class_of[job]] -= 1
        return jobs

    def _next_pair(self, classes: Sequence[int], column: int) -> tuple[int, ...]:
        """Return the next jobs of two classes, () if one has none.

        Two that are on one device already go on together.
        """
        first_class, second_class = classes
        first = self.queues.next(first_class, column, self.taken)
        if first is None:
            return ()
        if first in self.current:
            partner = self.current[first].partner
            is_waiting = partner != ALONE and partner not in self.taken
            if is_waiting and self.class_of[partner] == second_class:
                return first, partner
        second = self.queues.next(second_class, column, self.taken, other_than=first)
        if second is None:
            return ()
        return first, second


class ClassQueues:
    """The jobs of each class in the order in which they get GPUs of a type."""

    def __init__(
        self, observed: Observed, credit: Credits, current: Mapping[int, CurrentSlice]
    ) -> None:
        self.observed = observed
        self.credit = credit
        self.current = current
        columns = observed.snapshot.jobs.columns
        self.ids = columns.ids
        self.received_s = columns.others["received_s"]
        self.arrival_s = columns.numbers["arrival_s"].tolist()
        self.patience_s = PATIENCE * length_s(observed.snapshot.round_s)
        self._queues: dict[tuple[int, int], list[int]] = {}

    def waiting(self, class_number: int, column: int, taken: Container[int]) -> list[int]:
        """Return the jobs of a class that are not taken, the first one last.

        A job that is taken once must be so in every later call. Taken jobs may remain, but not as
        the first one.
        """
        queue = self._queues.get((class_number, column))
        if queue is None:
            members = self.observed.classes.members[class_number]
            queue = [job for job in members if job not in taken]
            if len(queue) > 1:
                queue = self._sorted(queue, column)
            self._queues[class_number, column] = queue
        while queue and queue[-1] in taken:
            queue.pop()
        return queue

    def next(
        self, class_number: int, column: int, taken: Container[int], other_than: int = ALONE
    ) -> int | None:
        """Return the first job of a class that is not taken, nor `other_than`; None without one."""
        for job in reversed(self.waiting(class_number, column, taken)):
            if job != other_than and job not in taken:
                return job
        return None

    def by_need(self, jobs: list[int]) -> list[int]:
        """Return jobs of one class, those first that have received least of all types together."""
        if len(jobs) == 1:
            return jobs
        total_s = {job: sum(received_s(self.observed, self.credit, job).values()) for job in jobs}
        return sorted(jobs, key=lambda job: (total_s[job], self.arrival_s[job], job))

    def _sorted(self, jobs: Sequence[int], column: int) -> list[int]:
        """Return jobs of one class, the last one first."""
        gpu_type = self.observed.problem.columns[column].gpu_type
        keys = []
        for job in jobs:
            on_type_s = self._received_on_s(job, gpu_type)
            current = self.current.get(job)
            is_move = current is None or current.column != column
            if current is not None and is_move:
                on_type_s += self.patience_s
            keys.append((on_type_s, is_move, self.arrival_s[job], job))
        keys.sort(reverse=True)
        return [job for _, _, _, job in keys]

    def _received_on_s(self, job: int, gpu_type: str) -> float:
        """Return the seconds that a job has received on a GPU type, with its credit."""
        seconds: float = dict(self.received_s[job]).get(gpu_type, 0.0)
        credit = self.credit.get(self.ids[job])
        if credit:
            seconds += credit.get(gpu_type, 0.0)
        return seconds


def received_s(observed: Observed, credit: Credits, job: int) -> dict[str, float]:
    """Return the seconds that a job has received by GPU type, with its credit."""
    columns = observed.snapshot.jobs.columns
    received = dict(columns.others["received_s"][job])
    for gpu_type, seconds in credit.get(columns.ids[job], {}).items():
        received[gpu_type] = received.get(gpu_type, 0.0) + seconds
    return received


def length_s(round_s: float) -> float:
    """Return the length of a round in seconds, at least 1."""
    return max(round_s, 1.0)
