"""Queue of jobs that a policy for training does not see: batch jobs, and those without GPUs.

A started one goes on to its end. Waiting ones start by priority, then arrival, where their units
fit, by best fit; one that does not fit lets the next one try. Each side goes first in turn: those
that are ahead of every waiting job of the policy (greater priority, or equal and earlier) take
what is free before it decides, the others take what it leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isfinite

import numpy as np

from policies.batch.beside import view_of
from policies.contract.plan import (
    HIGHEST_COST,
    LONGEST_RUN_S,
    Lack,
    Placement,
    Plan,
    WaitCode,
    Waiting,
    predicted,
)
from policies.contract.policy import Policy
from policies.contract.snapshot import RankPlacement, Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.finders import Shortage, ShortageCode, why_not
from policies.placement.from_snapshot import not_eligible
from policies.placement.layout import EVERY, Allocation, Layout, Request
from policies.placement.plan_builder import PlanBuilder
from policies.placement.reasons import (
    Holders,
    for_power,
    held_by,
    least_shortage,
    why_impossible,
)


def in_batch_queue(snapshot: Snapshot) -> frozenset[int]:
    """Return the rows of batch jobs and of jobs without GPUs."""
    columns = snapshot.jobs.columns
    is_batch = np.array(columns.others["batch"], dtype=np.bool_)
    return frozenset(np.flatnonzero(is_batch | (columns.counts["gpus_max"] == 0)).tolist())


def with_batch_queue(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the policy's plan for its jobs, with the batch queue's for the others."""
    queued = in_batch_queue(snapshot) if len(snapshot.jobs) else frozenset()
    if not queued:
        return policy(snapshot)
    waits = {row: w for row, w in not_eligible(snapshot).items() if w.code is WaitCode.DEPENDENCY}
    asked = [row for row in range(len(snapshot.jobs)) if row not in queued and row not in waits]
    committed = [p for row in asked for p in _committed(snapshot, row)]
    queue = sorted(queued - waits.keys(), key=lambda row: _turn(snapshot, row))
    first = _BatchPlan(snapshot, queue, committed)
    first.start(_ahead(snapshot, queue, asked))
    plan = policy(view_of(snapshot, asked, first.placements))
    rest = [row for row in queue if snapshot.jobs.columns.ids[row] not in first.placed]
    last = _BatchPlan(snapshot, rest, (*plan.placements, *first.placements))
    last.start(rest)
    placements = (*plan.placements, *first.placements, *last.placements)
    waiting = (*plan.waiting, *last.waiting(placements), *waits.values())
    position = snapshot.jobs.position
    return replace(
        plan,
        placements=tuple(sorted(placements, key=lambda p: position[p.job])),
        waiting=tuple(sorted(waiting, key=lambda w: position[w.job])),
    )


def _turn(snapshot: Snapshot, row: int) -> tuple[int, float, int]:
    columns = snapshot.jobs.columns
    return -int(columns.counts["priority"][row]), float(columns.numbers["arrival_s"][row]), row


def _ahead(snapshot: Snapshot, queue: Sequence[int], asked: Iterable[int]) -> list[int]:
    """Return the jobs of the queue that are ahead of every waiting job of the policy."""
    running = snapshot.jobs.columns.others["running"]
    turns = [_turn(snapshot, row) for row in asked if not running[row]]
    return [row for row in queue if not turns or _turn(snapshot, row) < min(turns)]


def _committed(snapshot: Snapshot, row: int) -> list[Placement]:
    columns = snapshot.jobs.columns
    runs = columns.others["running"][row]
    return [Placement(columns.ids[row], run.ranks, run.copy, run.purpose) for run in runs]


class _BatchPlan:
    """Plan of some jobs of the queue beside the placements of all others."""

    def __init__(
        self, snapshot: Snapshot, rows: Sequence[int], others: Iterable[Placement]
    ) -> None:
        others = tuple(others)
        self.snapshot, self.ids = snapshot, snapshot.jobs.columns.ids
        self.view = view_of(snapshot, rows, others)
        self.plan = PlanBuilder(self.view, never_touch=True)
        self.state, self.columns = self.plan.state, self.view.jobs.columns
        self.busy = {seat.node for placed in others for seat in placed.ranks}
        self.placements = [self.plan.staying(stay) for stay in self.plan.pinned]
        for placed in self.placements:
            self._settle(placed)

    @property
    def placed(self) -> set[str]:
        return {placed.job for placed in self.placements}

    def start(self, rows: Iterable[int]) -> None:
        """Start those of these rows of the snapshot that fit."""
        placed, unplaceable = self.placed, set[tuple[Request, bool]]()
        for job in [self.ids[row] for row in rows if self.ids[row] not in placed]:
            row = self.view.jobs.position[job]
            request = self.plan.options.requests.batch(row)
            key = request, bool(self.columns.others["exclusive"][row])
            if key in unplaceable or row in self.plan.not_eligible:
                continue
            found = self.state.find(request, self._nodes(row))
            if found is None:
                unplaceable.add(key)
                continue
            self.state.take(found)
            self.placements.append(self._placement(row, found))
            self._settle(self.placements[-1])

    def waiting(self, placements: Collection[Placement]) -> list[Waiting]:
        """Return the reasons of the jobs without a placement."""
        holders, placed = Holders(self.snapshot, self.state, tuple(placements)), self.placed
        rows = [row for row, job in enumerate(self.columns.ids) if job not in placed]
        return [replace(self._why(row, holders), job=self.columns.ids[row]) for row in rows]

    def _nodes(self, row: int) -> int:
        """Return the nodes that a job may have: an exclusive one those without other jobs."""
        if not self.columns.others["exclusive"][row]:
            return EVERY
        index = self.state.layout.index
        return ~sum(1 << index[node] for node in self.busy if node in index)

    def _settle(self, placed: Placement) -> None:
        """Note a placed job's nodes, which are closed to others if it is to be alone there."""
        self.busy |= {seat.node for seat in placed.ranks}
        if self.columns.others["exclusive"][self.view.jobs.position[placed.job]]:
            for seat in placed.ranks:
                self.state.close(self.state.layout.index[seat.node])

    def _placement(self, row: int, found: Allocation) -> Placement:
        layout, seats = self.state.layout, list[RankPlacement]()
        for part in found.parts:
            devices = layout.ids(part.node, part.devices)
            seats.append(RankPlacement(layout.nodes[part.node].id, devices, units=part.units))
        numbers = self.columns.numbers
        run_s = float(min(numbers["expected_run_s"][row], numbers["walltime_s"][row]))
        return Placement(
            self.columns.ids[row],
            tuple(seats),
            predicted_run_s=predicted(run_s, LONGEST_RUN_S),
            predicted_energy_cost=predicted(self._cost(row, found, run_s), HIGHEST_COST),
        )

    def _cost(self, row: int, found: Allocation, run_s: float) -> float:
        """Return a job's part of its nodes' bills; inf if the run time is unknown."""
        if not isfinite(run_s):
            return inf
        cores, watts = float(self.columns.numbers["cores"][row]), 0.0
        for part in found.parts:
            node, gpus = self.snapshot.nodes[part.node], part.devices.bit_count()
            watts += node.part_w(gpus, len(node.devices), cores * part.units)
        priced_s = float(self.plan.prices.priced_s(np.array([run_s]))[0])
        return watts * self.plan.prices.reference * priced_s

    def _why(self, row: int, holders: Holders) -> Waiting:
        if row in self.plan.not_eligible:
            return self.plan.not_eligible[row]
        request = self.plan.options.requests.batch(row)
        if least_shortage(self._empty, [(request, EVERY)]) == Shortage(ShortageCode.CAPACITY):
            return self._impossible(row, request)
        shortage = why_not(self.state, request, self._nodes(row))
        if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
            return for_power(self.snapshot, shortage)
        classes, nodes = self._empty.layout.admitting(request)
        suitable = sum(self._empty.layout.members[c] for c in classes) & nodes & self._empty.open
        return held_by(holders, WaitCode.NO_CAPACITY, suitable)

    @cached_property
    def _empty(self) -> ClusterState:
        """Return the state of the cluster without any job and cap."""
        layout = Layout(self.snapshot.nodes, self.state.layout.resources, shares=False)
        empty = ClusterState(layout)
        for n, node in enumerate(self.snapshot.nodes):
            if not node.takes_training:
                empty.close(n)
        return empty

    def _impossible(self, row: int, request: Request) -> Waiting:
        """Return why a job fits on no open node, or has too many units for all of them."""
        fit = sum(g.units * g.nodes.bit_count() for g in self._empty.groups_for(request))
        if not fit:
            return why_impossible(self.snapshot, self.snapshot.jobs.position[self.columns.ids[row]])
        lack = Lack("units", float(request.units), float(min(fit, request.units - 1)))
        return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))
