"""Plan of batch jobs and of jobs without GPUs, in progress: units on nodes, and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from policies.batch.fit import order_of
from policies.batch.orders import Queue
from policies.contract.plan import (
    Expected,
    Lack,
    Placement,
    WaitCode,
    Waiting,
)
from policies.contract.snapshot import Snapshot
from policies.placement.cluster_state import ClusterState, Shortage, ShortageCode, why_not
from policies.placement.layout import EVERY, Allocation, Layout, Request
from policies.placement.plan_builder import NO_STARTS, Placed, PlanBuilder
from policies.placement.timeline import vacant
from policies.placement.waiting.reasons import (
    Holders,
    Reasons,
    for_power,
    held_by,
    least_shortage,
    why_impossible,
)

LEAST_LEFT_S = 1.0
"""Least time that a running job is taken to need still: it may outlive what was expected."""

LEAST_LEFT = 0.001
"""The same as a part of the time that it has run, where a plan is to be free of time scales."""


def in_batch_queue(snapshot: Snapshot) -> frozenset[int]:
    """Return the rows of batch jobs and of jobs without GPUs."""
    columns = snapshot.jobs.columns
    is_batch = np.array(columns.others["batch"], dtype=np.bool_)
    return frozenset(np.flatnonzero(is_batch | (columns.counts["gpus_max"] == 0)).tolist())


class Choice(NamedTuple):
    """One way to start a job: its units, its nodes (a set), and its run time (s; inf: unknown)."""

    request: Request
    nodes: int
    run_s: float


class Started(NamedTuple):
    """Job that starts now: its row, its units, and its run time, a launch included."""

    row: int
    allocation: Allocation
    run_s: float


class BatchPlan:
    """Plan of some jobs, by rows of its `view`, beside the placements of all others.

    Running jobs of it stay, and hold what they have until they are expected to end (`left_s`, by
    row: time that they still need). `fit`: order of nodes, see `policies.batch.fit`. `scale_free`:
    a job that has outlived its run time is taken to need a part of it still, not a second.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        rows: Sequence[int],
        others: Iterable[Placement],
        fit: str = "best",
        *,
        scale_free: bool = False,
    ) -> None:
        others = tuple(others)
        self.snapshot, self.ids = snapshot, snapshot.jobs.columns.ids
        whole = not others and len(rows) == len(snapshot.jobs)
        self.view = snapshot
        if not whole:
            left_out = frozenset(range(len(snapshot.jobs))).difference(rows)
            self.view = snapshot.without(left_out, held=others)
        self.plan = PlanBuilder(self.view, never_touch=True, billed_nodes=snapshot.nodes)
        self.state, self.columns = self.plan.state, self.view.jobs.columns
        self.fit = order_of(fit, self.state.layout)
        self.of_others = self._nodes_of(others)
        self.left_s = {stay.row: self.plan.remaining_s(stay) for stay in self.plan.pinned}
        now_s, exclusive = self.view.now_s, self.columns.others["exclusive"]
        for stay in self.plan.pinned:
            row = stay.row
            least_s = LEAST_LEFT * (now_s - stay.run.since_s) if scale_free else LEAST_LEFT_S
            end_s = now_s + max(least_s, self.left_s[row])
            self.state.hold(row, stay.allocation, end_s, alone=exclusive[row])
        self.started: list[Started] = []
        self.rows = set(self.left_s)

    def copy(self) -> BatchPlan:
        """Return a copy, to try things."""
        new = copy(self)
        new.state, new.started, new.rows = self.state.copy(), self.started.copy(), set(self.rows)
        return new

    @property
    def placed(self) -> set[str]:
        """Ids of the jobs that stay and of those that start."""
        return {self.columns.ids[row] for row in self.rows}

    @property
    def placements(self) -> list[Placement]:
        """Placements of the jobs that stay and of those that start."""
        return [*self._staying, *[self._placement(started) for started in self.started]]

    @cached_property
    def _staying(self) -> list[Placement]:
        return [self.plan.staying(stay, self.left_s[stay.row]) for stay in self.plan.pinned]

    @cached_property
    def queued(self) -> frozenset[int]:
        """Rows of batch jobs and of those without GPUs."""
        return in_batch_queue(self.view)

    def run_s(self, row: int) -> float:
        """Run time of a batch job as the policy is told; inf if unknown."""
        return self.columns.told_run_s[row]

    def request(self, row: int) -> Request:
        """Return the request of a batch job, or of one without GPUs."""
        return self.plan.options.requests.batch(row)

    def is_alone(self, row: int) -> bool:
        """Return True if a job is to have its nodes to itself."""
        return bool(self.columns.others["exclusive"][row])

    def choices(self, row: int) -> list[Choice]:
        """Return the ways to start a job, the preferred first."""
        if row in self.queued:
            return [Choice(self.request(row), EVERY, self.run_s(row))]
        ranked = self.plan.options.ranked(row)
        return [Choice(option.request, option.nodes, run_s) for option, run_s in ranked]

    def find(
        self, row: int, choice: Choice, state: ClusterState | None = None, only: int = EVERY
    ) -> Allocation | None:
        """Return what a job would take, now or in another state, on some of its nodes only."""
        state = self.state if state is None else state
        nodes = choice.nodes & only
        if self.is_alone(row):
            nodes &= vacant(state) & ~self.of_others
        return state.find(choice.request, nodes, self.fit)

    def take(self, row: int, found: Allocation, run_s: float) -> None:
        """Start a job on these units; it holds them for `run_s`, a launch included."""
        self.state.take(found, row, self.view.now_s + run_s, alone=self.is_alone(row))
        self.started.append(Started(row, found, run_s))
        self.rows.add(row)

    def queue(self, rows: Sequence[int]) -> Queue:
        """Return these waiting jobs by column, for `policies.batch.orders`."""
        numbers, counts = self.columns.numbers, self.columns.counts
        at = np.array(rows, dtype=np.int64)
        run_s = np.array([self._told_s(row) for row in rows], dtype=np.float64)
        arrival_s, units = numbers["arrival_s"][at], counts["units"][at].astype(np.float64)
        return Queue(
            waited_s=np.maximum(0.0, self.view.now_s - arrival_s),
            run_s=np.maximum(1.0, run_s),
            cores=units * np.maximum(1.0, numbers["cores"][at]),
            arrival_s=arrival_s,
            priority=counts["priority"][at],
        )

    def sorted_by(self, order: str, rows: Sequence[int]) -> list[int]:
        """Return these waiting jobs by priority, then a given order."""
        return [rows[i] for i in self.queue(rows).sort(order)] if rows else []

    def eligible(self) -> list[int]:
        """Return the waiting jobs that may start."""
        fixed = self.rows | self.plan.not_eligible.keys()
        return [row for row in range(len(self.columns.ids)) if row not in fixed]

    def waiting(
        self, placements: Collection[Placement], expected: Mapping[int, Expected] = NO_STARTS
    ) -> Iterator[Waiting]:
        """Yield the reasons of the jobs without a placement; `placements`: of all jobs."""
        ids = self.columns.ids
        rows = [row for row in range(len(ids)) if row not in self.rows]
        for row, why in [
            *self._of_training(rows, placements),
            *self._of_batch(rows, placements, expected),
        ]:
            yield why.of(ids[row], expected.get(row))

    def _of_training(
        self, rows: Sequence[int], placements: Collection[Placement]
    ) -> Iterable[tuple[int, Waiting]]:
        fixed = self.plan.not_eligible
        asked = [row for row in rows if row not in self.queued and row not in fixed]
        reasons = Reasons(self.snapshot, self.state, self.plan.options, tuple(placements))
        others = [(row, fixed[row]) for row in rows if row not in self.queued and row in fixed]
        return [*others, *(zip(asked, reasons.of(asked), strict=True) if asked else ())]

    def _of_batch(
        self,
        rows: Sequence[int],
        placements: Collection[Placement],
        expected: Mapping[int, Expected],
    ) -> Iterable[tuple[int, Waiting]]:
        holders = Holders(self.snapshot, self.state, tuple(placements))
        known = dict[tuple[Request, bool], Waiting]()
        for row in [row for row in rows if row in self.queued]:
            if row in self.plan.not_eligible:
                yield row, self.plan.not_eligible[row]
                continue
            if row in expected and expected[row].nodes:
                nodes = sum(1 << self.state.layout.index[node] for node in expected[row].nodes)
                yield row, held_by(holders, WaitCode.NO_CAPACITY, nodes)
                continue
            key = self.request(row), self.is_alone(row)
            if key not in known:
                known[key] = self._why(row, holders)
            yield row, known[key]

    def _nodes_of(self, placements: Iterable[Placement]) -> int:
        index = self.state.layout.index
        nodes = {seat.node for placed in placements for seat in placed.ranks}
        return sum(1 << index[node] for node in nodes if node in index)

    def _placement(self, started: Started) -> Placement:
        return self.plan.placement(Placed(*started))

    def _told_s(self, row: int) -> float:
        """Return the run time that is told: of a training job on its first option."""
        if row in self.queued:
            return self.run_s(row)
        return next((run_s for _, run_s in self.plan.options.ranked(row)), inf)

    def _why(self, row: int, holders: Holders) -> Waiting:
        request = self.request(row)
        if least_shortage(self._empty, [(request, EVERY)]) == Shortage(ShortageCode.CAPACITY):
            return self._impossible(row, request)
        if self.state.cap_mw < inf:
            own = vacant(self.state) & ~self.of_others if self.is_alone(row) else EVERY
            shortage = why_not(self.state, request, own)
            if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
                return for_power(self.snapshot, shortage)
        classes, nodes = self._empty.layout.admitting(request)
        suitable = sum(self._empty.layout.members[c] for c in classes) & nodes & self._empty.open
        return held_by(holders, WaitCode.NO_CAPACITY, suitable)

    @cached_property
    def _empty(self) -> ClusterState:
        """Return the state of the cluster without any job and cap."""
        layout = self.state.layout
        if self.view is not self.snapshot or layout.levels:
            layout = Layout(self.snapshot.nodes, layout.resources, shares=False)
        empty = ClusterState(layout)
        for n, node in enumerate(self.snapshot.nodes):
            if not node.takes_training:
                empty.close(n)
        return empty

    def fits_when_empty(self, row: int) -> bool:
        """Return True if a job could start on the cluster without other jobs."""
        if row not in self.queued:
            return bool(self.plan.options.of(row))
        return why_not(self._empty, self.request(row)) is None

    def _impossible(self, row: int, request: Request) -> Waiting:
        """Return why a job fits on no open node, or has too many units for all of them."""
        fit = sum(g.units * g.nodes.bit_count() for g in self._empty.groups_for(request))
        if not fit:
            return why_impossible(self.snapshot, self.snapshot.jobs.position[self.columns.ids[row]])
        lack = Lack("units", float(request.units), float(min(fit, request.units - 1)))
        return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))
