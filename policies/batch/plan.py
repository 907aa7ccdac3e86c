"""Plan in progress of batch jobs and of jobs without GPUs: units on nodes, and reasons."""

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
from policies.placement.layout import EVERY, Allocation, Layout, NodeSet, Request
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

LEAST_REMAINING_S = 1.0
"""Least remaining time of a running job in seconds: it may outlive its predicted run time."""

LEAST_REMAINING_FRACTION = 0.001
"""The same as a fraction of the time that the job has run, for policies without a time scale."""


def in_batch_queue(snapshot: Snapshot) -> frozenset[int]:
    """Return the rows of batch jobs and of jobs without GPUs."""
    columns = snapshot.jobs.columns
    is_batch = np.array(columns.others["batch"], dtype=np.bool_)
    return frozenset(np.flatnonzero(is_batch | (columns.counts["gpus_max"] == 0)).tolist())


class Choice(NamedTuple):
    """One way to start a job: its units, the nodes to choose from, and its run time.

    `run_s`: in seconds, inf if unknown.
    """

    request: Request
    nodes: NodeSet
    run_s: float


class Started(NamedTuple):
    """Job that starts now: its row, its units, and its run time, a launch included."""

    row: int
    allocation: Allocation
    run_s: float


class BatchPlan:
    """Plan of some jobs, beside the placements of all others.

    Rows are those of `view`, the residual snapshot of these jobs. Its running jobs stay, and hold
    what they have until their expected end; `left_s` is the remaining time (s) of each by row.
    `rows`: jobs that stay or start. `builder` makes their placements. `fit`: order of nodes, see
    `policies.batch.fit`.
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
        """`rows`: jobs of this plan by their rows of `snapshot`; `others`: what the rest holds.

        `scale_free`: the remaining time of a job that outlives its prediction is a fraction of its
        run, not a second.
        """
        # 1. The view: the snapshot without the other jobs, beside their placements.
        others = tuple(others)
        self.snapshot = snapshot
        self.ids = snapshot.jobs.columns.ids
        self.view = snapshot
        if others or len(rows) < len(snapshot.jobs):
            left_out = frozenset(range(len(snapshot.jobs))).difference(rows)
            self.view = snapshot.without(left_out, held=others)
        self.columns = self.view.jobs.columns

        # 2. Its free capacity, beside the jobs that run.
        self.builder = PlanBuilder(self.view, never_touch=True, billed_nodes=snapshot.nodes)
        self.state = self.builder.state
        self.fit = order_of(fit, self.state.layout)
        self.nodes_of_others = self._node_set(others)

        # 3. Running jobs hold what they have until they are expected to end.
        self.left_s: dict[int, float] = {}
        now_s = self.view.now_s
        for current in self.builder.pinned:
            row = current.row
            self.left_s[row] = self.builder.remaining_s(current)
            least_s = LEAST_REMAINING_S
            if scale_free:
                least_s = LEAST_REMAINING_FRACTION * (now_s - current.run.since_s)
            end_s = now_s + max(least_s, self.left_s[row])
            self.state.hold(row, current.allocation, end_s, alone=self.is_alone(row))
        self.rows = set(self.left_s)
        self.started: list[Started] = []

    def copy(self) -> BatchPlan:
        """Return a copy, to try things."""
        new = copy(self)
        new.state = self.state.copy()
        new.started = self.started.copy()
        new.rows = set(self.rows)
        return new

    @property
    def placed(self) -> set[str]:
        """Ids of the jobs that stay and of those that start."""
        return {self.columns.ids[row] for row in self.rows}

    @property
    def placements(self) -> list[Placement]:
        """Placements of the jobs that stay and of those that start."""
        starting = [self.builder.placement(Placed(*started)) for started in self.started]
        return [*self._staying, *starting]

    @cached_property
    def _staying(self) -> list[Placement]:
        """Placements of the jobs that stay."""
        pinned = self.builder.pinned
        return [self.builder.staying(current, self.left_s[current.row]) for current in pinned]

    @cached_property
    def queued(self) -> frozenset[int]:
        """Rows of batch jobs and of those without GPUs."""
        return in_batch_queue(self.view)

    def run_s(self, row: int) -> float:
        """Return the predicted run time of a batch job in seconds; inf if unknown."""
        return self.columns.predicted_run_s[row]

    def request(self, row: int) -> Request:
        """Return the request of a batch job, or of one without GPUs."""
        return self.builder.options.requests.batch(row)

    def is_alone(self, row: int) -> bool:
        """Return True if a job is to have its nodes to itself."""
        return bool(self.columns.others["exclusive"][row])

    def choices(self, row: int) -> list[Choice]:
        """Return the ways to start a job, the preferred first."""
        if row in self.queued:
            return [Choice(self.request(row), EVERY, self.run_s(row))]
        ranked = self.builder.options.ranked(row)
        return [Choice(option.request, option.nodes, run_s) for option, run_s in ranked]

    def find(
        self,
        row: int,
        choice: Choice,
        state: ClusterState | None = None,
        within: NodeSet = EVERY,
    ) -> Allocation | None:
        """Return what a job would take now, or in another `state`; None if it does not fit.

        `within`: nodes to look at.
        """
        state = self.state if state is None else state
        nodes = choice.nodes & within
        if self.is_alone(row):
            nodes &= vacant(state) & ~self.nodes_of_others
        return state.find(choice.request, nodes, self.fit)

    def take(self, row: int, allocation: Allocation, run_s: float) -> None:
        """Start a job on these units; it holds them for `run_s`, a launch included."""
        end_s = self.view.now_s + run_s
        self.state.take(allocation, row, end_s, alone=self.is_alone(row))
        self.started.append(Started(row, allocation, run_s))
        self.rows.add(row)

    def queue(self, rows: Sequence[int]) -> Queue:
        """Return these waiting jobs by column, for `policies.batch.orders`."""
        numbers = self.columns.numbers
        counts = self.columns.counts
        index = np.array(rows, dtype=np.int64)
        run_s = np.array([self._first_run_s(row) for row in rows], dtype=np.float64)
        arrival_s = numbers["arrival_s"][index]
        units = counts["units"][index].astype(np.float64)
        return Queue(
            waited_s=np.maximum(0.0, self.view.now_s - arrival_s),
            run_s=np.maximum(1.0, run_s),
            cores=units * np.maximum(1.0, numbers["cores"][index]),
            arrival_s=arrival_s,
            priority=counts["priority"][index],
        )

    def _first_run_s(self, row: int) -> float:
        """Return a job's predicted run time: of a training job on its preferred option, or inf."""
        if row in self.queued:
            return self.run_s(row)
        choices = self.choices(row)
        return choices[0].run_s if choices else inf

    def sorted_by(self, order: str, rows: Sequence[int]) -> list[int]:
        """Return these waiting jobs by priority, then an order of `policies.batch.orders`."""
        if not rows:
            return []
        return [rows[position] for position in self.queue(rows).sort(order)]

    def eligible(self) -> list[int]:
        """Return the waiting jobs that may start."""
        excluded = self.rows | self.builder.not_eligible.keys()
        return [row for row in range(len(self.columns.ids)) if row not in excluded]

    # ---- reasons of waiting jobs

    def waiting(
        self, placements: Collection[Placement], expected: Mapping[int, Expected] = NO_STARTS
    ) -> Iterator[Waiting]:
        """Yield the reasons of the jobs without a placement, training jobs first.

        `placements`: of all jobs; `expected`: by row, starts that the policy has scheduled.
        """
        ids = self.columns.ids
        training: list[int] = []
        queued: list[int] = []
        for row in range(len(ids)):
            if row in self.rows:
                continue
            if row in self.queued:
                queued.append(row)
            else:
                training.append(row)
        for row, reason in self._reasons_of_training(training, placements):
            yield reason.of(ids[row], expected.get(row))
        for row, reason in self._reasons_of_queued(queued, placements, expected):
            yield reason.of(ids[row], expected.get(row))

    def _reasons_of_training(
        self, rows: Sequence[int], placements: Collection[Placement]
    ) -> Iterator[tuple[int, Waiting]]:
        """Yield (row, reason) of training jobs: those that are not eligible first."""
        not_eligible = self.builder.not_eligible
        eligible = []
        for row in rows:
            if row in not_eligible:
                yield row, not_eligible[row]
            else:
                eligible.append(row)
        if eligible:
            reasons = Reasons(self.snapshot, self.state, self.builder.options, tuple(placements))
            yield from zip(eligible, reasons.of(eligible), strict=True)

    def _reasons_of_queued(
        self,
        rows: Sequence[int],
        placements: Collection[Placement],
        expected: Mapping[int, Expected],
    ) -> Iterator[tuple[int, Waiting]]:
        """Yield (row, reason) of batch jobs and jobs without GPUs; equal jobs have one reason."""
        holders = Holders(self.snapshot, self.state, tuple(placements))
        reason_by_request: dict[tuple[Request, bool], Waiting] = {}
        for row in rows:
            # 1. Jobs that must wait whatever the capacity.
            if row in self.builder.not_eligible:
                yield row, self.builder.not_eligible[row]
                continue

            # 2. Jobs with a scheduled start wait for those that hold its nodes.
            if row in expected and expected[row].nodes:
                nodes: NodeSet = 0
                for node in expected[row].nodes:
                    nodes |= 1 << self.state.layout.index[node]
                yield row, held_by(holders, WaitCode.NO_CAPACITY, nodes)
                continue

            # 3. The others wait for what they lack now.
            key = self.request(row), self.is_alone(row)
            if key not in reason_by_request:
                reason_by_request[key] = self._reason_of_shortage(row, holders)
            yield row, reason_by_request[key]

    def _reason_of_shortage(self, row: int, holders: Holders) -> Waiting:
        """Return why a job of the queue does not fit now: no node, too little power, or holders."""
        # 1. It would not fit on the empty cluster.
        request = self.request(row)
        empty = self._empty
        if least_shortage(empty, [(request, EVERY)]) == Shortage(ShortageCode.CAPACITY):
            return self._reason_when_impossible(row, request)

        # 2. Devices and resources are free, but no power.
        if self.state.cap_mw < inf:
            nodes = EVERY
            if self.is_alone(row):
                nodes = vacant(self.state) & ~self.nodes_of_others
            shortage = why_not(self.state, request, nodes)
            if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
                return for_power(self.snapshot, shortage)

        # 3. Other jobs hold the nodes that suit it.
        classes, allowed = empty.layout.admitting(request)
        suitable: NodeSet = 0
        for c in classes:
            suitable |= empty.layout.members[c]
        return held_by(holders, WaitCode.NO_CAPACITY, suitable & allowed & empty.open)

    def _reason_when_impossible(self, row: int, request: Request) -> Waiting:
        """Return why a job fits on no open node, or has too many units for all of them."""
        units_that_fit = 0
        for group in self._empty.groups_for(request):
            units_that_fit += group.units * group.nodes.bit_count()
        if not units_that_fit:
            return why_impossible(self.snapshot, self.snapshot.jobs.position[self.columns.ids[row]])
        # All units fit, yet not together: one fewer is said to fit.
        units_available = min(units_that_fit, request.units - 1)
        lack = Lack("units", float(request.units), float(units_available))
        return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))

    def fits_when_empty(self, row: int) -> bool:
        """Return True if a job could start on the cluster without other jobs."""
        if row not in self.queued:
            return bool(self.builder.options.of(row))
        return why_not(self._empty, self.request(row)) is None

    @cached_property
    def _empty(self) -> ClusterState:
        """The cluster without any job and without a power cap."""
        layout = self.state.layout
        if self.view is not self.snapshot or layout.levels:
            layout = Layout(self.snapshot.nodes, layout.resources, shares=False)
        empty = ClusterState(layout)
        for number, node in enumerate(self.snapshot.nodes):
            if not node.takes_training:
                empty.close(number)
        return empty

    def _node_set(self, placements: Iterable[Placement]) -> NodeSet:
        """Return the nodes of these placements."""
        number_of = self.state.layout.index
        nodes: NodeSet = 0
        for placement in placements:
            for seat in placement.ranks:
                if seat.node in number_of:
                    nodes |= 1 << number_of[seat.node]
        return nodes
