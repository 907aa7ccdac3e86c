"""Jobs that may not start yet: dependencies that are open, and arrays that run at their limit.

As live: a job with an open dependency on a job that the round does not see, on a start, or on one
of several jobs is not shown. Of an array only as many waiting elements are shown as may start
beside those that hold nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from controlplane.simulation.workloads.rules import After, Condition, Rules
from controlplane.simulation.world.job_table import JobEnd, JobTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.simulation.world.job_table import Launch


class Gates:
    """Dependencies and arrays of a workload. `ready_s` float64[J]: end of the last delay."""

    def __init__(self, table: JobTable, rules: Rules) -> None:
        self._table = table
        self._after = {row: found for row, found in _dependencies(table, rules) if found}
        self._waiters: dict[int, list[int]] = defaultdict(list)
        for row, found in self._after.items():
            for other in {at for after in found for at in _rows(table, after)}:
                self._waiters[other].append(row)
        self._arrays = [
            ([table.row_of[job] for job in array.elements if job in table.row_of], array)
            for array in rules.arrays.values()
            if array.at_once
        ]
        self.ready_s = np.full(len(table), -inf)

    @property
    def are_open(self) -> bool:
        """Return True if no job has a dependency or an array with a limit."""
        return not self._after and not self._arrays

    def waiters(self, row: int) -> Sequence[int]:
        """Return the rows of the jobs that wait for this one."""
        return self._waiters.get(row, ())

    def starts_matter(self, row: int) -> bool:
        """Return True if a job waits for the start of this one."""
        for waiter in self.waiters(row):
            for after in self._after[waiter]:
                if after.condition is Condition.AFTER and row in _rows(self._table, after):
                    return True
        return False

    def never(self, row: int) -> str:
        """Return why a job's dependencies can no longer be satisfied; "" if they can."""
        why = ""
        for after in self._after.get(row, ()):
            reason = self._never(after)
            if after.alternative and not reason:
                return ""
            why = why or reason
        return why

    def _never(self, after: After) -> str:
        """Return why a dependency can no longer be satisfied; "" if it can."""
        states = {job: self._state(job) for job in after.jobs}
        ended = {job: state for job, state in states.items() if state is not JobEnd.OPEN}
        failed = {job: state for job, state in ended.items() if state is not JobEnd.COMPLETED}
        if after.condition is Condition.AFTEROK and failed:
            job, state = next(iter(failed.items()))
            return _words(after, job, state)
        if after.condition is Condition.AFTERNOTOK and not failed and len(ended) == len(states):
            return _words(after, after.jobs[-1], JobEnd.COMPLETED)
        return ""

    def delay_until(self, row: int, now_s: float) -> float | None:
        """Note the end of a job's delay; return it if all it waits for has come just now."""
        afters = self._after.get(row, ())
        has_delay = any(after.delay_s for after in afters)
        if self._open(row) or not has_delay or self.ready_s[row] > -inf:
            return None
        moments = [
            self._came_s(after, now_s) + after.delay_s
            for after in afters
            if not self._open_rows(after)
        ]
        ready_s = min(moments) if afters[0].alternative else max(moments)
        self.ready_s[row] = max(now_s, ready_s)
        return float(self.ready_s[row])

    def _came_s(self, after: After, now_s: float) -> float:
        """Time from which the delay counts: now, or for AFTER that of the last start."""
        if after.condition is not Condition.AFTER:
            return now_s
        table = self._table
        times = [-inf]
        for at in _rows(table, after):
            started = bool(table.launched[at])
            times.append(float(table.first_start_s[at] if started else table.ended_s[at]))
        return max(times)

    def within_limits(
        self, rows: Sequence[int], launches: Mapping[int, Launch], now_s: float
    ) -> Sequence[int]:
        """Return these rows without jobs in a delay and elements beyond their array's limit."""
        hidden = {row for row in self._after if self.ready_s[row] > now_s}
        if self._arrays:
            shown = set(rows)
            for elements, array in self._arrays:
                waiting = [row for row in elements if row in shown and row not in launches]
                ready = [row for row in waiting if not self._open(row)]
                room = max(0, array.at_once - sum(row in launches for row in elements))
                if len(ready) > room:
                    hidden |= set(waiting) - set(ready[:room])
        return [row for row in rows if row not in hidden] if hidden else rows

    def without_blocked(self, rows: Sequence[int]) -> Sequence[int]:
        """Return these rows without jobs that wait, directly or not, for a job that is not there.

        A policy takes a dependency for done that it does not see. Nor does it see what waits for an
        array, a start, or one of several jobs.
        """
        shown = {row for row in rows if not self._is_hidden(row)}
        waits = {row: self._open(row) for row in rows if row in self._after}
        while blocked := {row for row, of in waits.items() if row in shown and of - shown}:
            shown -= blocked
        return [row for row in rows if row in shown] if len(shown) < len(rows) else rows

    def _open(self, row: int) -> set[int]:
        """Rows that a job still waits for; none once one of its alternatives is satisfied."""
        open_rows = set[int]()
        for after in self._after.get(row, ()):
            of_after = self._open_rows(after)
            if after.alternative and not of_after:
                return set()
            open_rows |= of_after
        return open_rows

    def _open_rows(self, after: After) -> set[int]:
        """Rows that a dependency still waits for; of an alternative those that failed it too."""
        rows = set(_rows(self._table, after))
        state = self._table.state
        open_rows = {at for at in rows if state[at] == JobEnd.OPEN}
        if after.condition is Condition.AFTER:
            return {at for at in open_rows if not self._table.launched[at]}
        if after.alternative and not open_rows and self._never(after):
            return rows
        return open_rows

    def _is_hidden(self, row: int) -> bool:
        """Return True if no policy sees the job while it waits."""
        afters = self._after.get(row, ())
        hides = any(after.is_hidden and self._open_rows(after) for after in afters)
        return hides and bool(self._open(row))

    def _state(self, job: str) -> JobEnd:
        """State of a job; one that the workload does not have is over and well."""
        row = self._table.row_of.get(job)
        return JobEnd.COMPLETED if row is None else JobEnd(int(self._table.state[row]))


def _dependencies(table: JobTable, rules: Rules) -> Iterable[tuple[int, tuple[After, ...]]]:
    for row, (job, others) in enumerate(
        zip(table.columns.ids, table.columns.others["dependencies"], strict=True)
    ):
        if others or job in rules.after:
            yield row, rules.after.get(job) or tuple(After((other,)) for other in others)


def _rows(table: JobTable, after: After) -> Iterable[int]:
    return (table.row_of[job] for job in after.jobs if job in table.row_of)


def _words(after: After, job: str, state: JobEnd) -> str:
    of = f"array {after.name}, of which job {job}" if after.name else f"job {job}, which"
    return f"it waited for {of} {state.words} ({after.condition})"
