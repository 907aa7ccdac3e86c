"""Jobs that may not start yet: open dependencies, and arrays that run at their limit.

As live: a job with an open dependency on a job that the round does not see, on a start, or on one
of several jobs is not shown. Of an array only as many waiting elements are shown as may start
beside those that hold nodes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.workloads.rules import After, Condition, Rules
from controlplane.simulation.world.job_table import JobEnd, JobTable


class _LimitedArray(NamedTuple):
    """Rows of an array's elements by index; at most `at_once` of them run together."""

    rows: list[int]
    at_once: int


class StartRules:
    """Dependencies and limited arrays of a workload; jobs are named by their rows.

    `ready_s` float64[J]: end of the delay after the last job that each waited for; -inf if none.
    """

    def __init__(self, table: JobTable, rules: Rules) -> None:
        self._table = table
        self.ready_s = np.full(len(table), -inf)
        self._dependencies = _dependencies_of(table, rules)
        self._waiters: dict[int, list[int]] = defaultdict(list)
        for row, dependencies in self._dependencies.items():
            others: set[int] = set()
            for dependency in dependencies:
                others.update(self._rows_of(dependency))
            for other in others:
                self._waiters[other].append(row)

        self._arrays = []
        for array in rules.arrays.values():
            if array.at_once:
                rows = [table.row_of[job] for job in array.elements if job in table.row_of]
                self._arrays.append(_LimitedArray(rows, array.at_once))

    @property
    def is_empty(self) -> bool:
        """Return True if no job has a dependency or an array with a limit."""
        return not self._dependencies and not self._arrays

    def waiters(self, row: int) -> Sequence[int]:
        """Return the jobs that wait for this one."""
        return self._waiters.get(row, ())

    def impossible_reason(self, row: int) -> str:
        """Return why a job's dependencies can no longer be satisfied; "" if they can."""
        first_reason = ""
        for dependency in self._dependencies.get(row, ()):
            reason = self._reason_of(dependency)
            if dependency.alternative and not reason:
                return ""  # one of several suffices, and this one still can be satisfied
            first_reason = first_reason or reason
        return first_reason

    def _reason_of(self, dependency: After) -> str:
        """Return why a dependency can no longer be satisfied; "" if it can."""
        ended = []
        failed = []
        for job in dependency.jobs:
            state = self._state(job)
            if state is not JobEnd.OPEN:
                ended.append(job)
                if state is not JobEnd.COMPLETED:
                    failed.append(job)
        if dependency.condition is Condition.AFTEROK and failed:
            return _words(dependency, failed[0], self._state(failed[0]))
        have_all_completed = len(ended) == len(dependency.jobs) and not failed
        if dependency.condition is Condition.AFTERNOTOK and have_all_completed:
            return _words(dependency, dependency.jobs[-1], JobEnd.COMPLETED)
        return ""

    def is_start_awaited(self, row: int) -> bool:
        """Return True if a job waits for the start of this one."""
        for waiter in self.waiters(row):
            for dependency in self._dependencies[waiter]:
                is_start = dependency.condition is Condition.AFTER
                if is_start and row in self._rows_of(dependency):
                    return True
        return False

    def begin_delay(self, row: int, now_s: float) -> float | None:
        """Record and return the end of a job's delay, if all it waits for has come just now."""
        dependencies = self._dependencies.get(row, ())
        has_delay = any(dependency.delay_s for dependency in dependencies)
        if not has_delay or self.ready_s[row] > -inf or self._open_dependencies(row):
            return None
        ends_s = []
        for dependency in dependencies:
            if not self._open_rows(dependency):
                ends_s.append(self._satisfied_s(dependency, now_s) + dependency.delay_s)
        end_s = min(ends_s) if dependencies[0].alternative else max(ends_s)
        self.ready_s[row] = max(now_s, end_s)
        return float(self.ready_s[row])

    def _satisfied_s(self, dependency: After, now_s: float) -> float:
        """Return when a delay begins: now, or for AFTER at the last start (or end without one)."""
        if dependency.condition is not Condition.AFTER:
            return now_s
        table = self._table
        latest_s = -inf
        for row in self._rows_of(dependency):
            moments = table.first_start_s if table.launched[row] else table.ended_s
            latest_s = max(latest_s, float(moments[row]))
        return latest_s

    def within_limits(
        self, rows: Sequence[int], launches: Mapping[int, Launch], now_s: float
    ) -> Sequence[int]:
        """Return these jobs without those in a delay and elements beyond their array's limit."""
        # 1. Jobs in their delay.
        hidden = {row for row in self._dependencies if self.ready_s[row] > now_s}

        # 2. Waiting elements for which their array has no room, and all that still wait for others.
        shown = set(rows) if self._arrays else set()
        for array in self._arrays:
            waiting = [row for row in array.rows if row in shown and row not in launches]
            ready = [row for row in waiting if not self._open_dependencies(row)]
            holding_nodes = sum(row in launches for row in array.rows)
            room = max(0, array.at_once - holding_nodes)
            if len(ready) > room:
                hidden |= set(waiting) - set(ready[:room])

        if not hidden:
            return rows
        return [row for row in rows if row not in hidden]

    def without_blocked(self, rows: Sequence[int]) -> Sequence[int]:
        """Return these jobs without those that wait, directly or not, for a job not among them.

        A policy takes a dependency for done that it does not see. Nor does it see what waits for an
        array, a start, or one of several jobs.
        """
        shown = {row for row in rows if not self._is_hidden(row)}
        open_dependencies = {
            row: self._open_dependencies(row) for row in rows if row in self._dependencies
        }
        # A job that is left out blocks the jobs that wait for it, and these may block others.
        blocked = {-1}
        while blocked:
            blocked = set()
            for row, others in open_dependencies.items():
                if row in shown and not others <= shown:
                    blocked.add(row)
            shown -= blocked
        if len(shown) == len(rows):
            return rows
        return [row for row in rows if row in shown]

    def _open_dependencies(self, row: int) -> set[int]:
        """Return the jobs that a job still waits for; none once an alternative is satisfied."""
        waited_for: set[int] = set()
        for dependency in self._dependencies.get(row, ()):
            open_rows = self._open_rows(dependency)
            if dependency.alternative and not open_rows:
                return set()
            waited_for |= open_rows
        return waited_for

    def _open_rows(self, dependency: After) -> set[int]:
        """Return the jobs that a dependency waits for; all of them for an alternative that failed.

        So an alternative without open jobs is one that is satisfied.
        """
        table = self._table
        rows = set(self._rows_of(dependency))
        open_rows = {row for row in rows if table.state[row] == JobEnd.OPEN}
        if dependency.condition is Condition.AFTER:
            return {row for row in open_rows if not table.launched[row]}
        if dependency.alternative and not open_rows and self._reason_of(dependency):
            return rows
        return open_rows

    def _is_hidden(self, row: int) -> bool:
        """Return True if a job waits for what no policy could see."""
        for dependency in self._dependencies.get(row, ()):
            if dependency.is_hidden and self._open_rows(dependency):
                return bool(self._open_dependencies(row))
        return False

    def _rows_of(self, dependency: After) -> list[int]:
        """Return the rows of a dependency's jobs that the workload has."""
        row_of = self._table.row_of
        return [row_of[job] for job in dependency.jobs if job in row_of]

    def _state(self, job: str) -> JobEnd:
        """Return the state of a job; one that the workload does not have has completed."""
        row = self._table.row_of.get(job)
        if row is None:
            return JobEnd.COMPLETED
        return JobEnd(int(self._table.state[row]))


def _dependencies_of(table: JobTable, rules: Rules) -> dict[int, tuple[After, ...]]:
    """Return the dependencies of each job that has any, from the rules or else from its view."""
    dependencies: dict[int, tuple[After, ...]] = {}
    jobs_waited_for = table.columns.others["dependencies"]
    for row, job in enumerate(table.columns.ids):
        if rules.after.get(job):
            dependencies[row] = rules.after[job]
        elif jobs_waited_for[row]:
            dependencies[row] = tuple(After((other,)) for other in jobs_waited_for[row])
    return dependencies


def _words(dependency: After, job: str, state: JobEnd) -> str:
    """Return why a job never starts whose dependency on `job` cannot be satisfied."""
    subject = f"job {job}, which"
    if dependency.name:
        subject = f"array {dependency.name}, of which job {job}"
    return f"it waited for {subject} {state.words} ({dependency.condition})"
