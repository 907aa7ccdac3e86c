"""Plan of batch jobs and of jobs without GPUs, in progress: units on nodes, and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf, isfinite

import numpy as np

from policies.batch.beside import view_of
from policies.contract.plan import (
    HIGHEST_COST,
    LONGEST_RUN_S,
    Expected,
    Lack,
    Placement,
    WaitCode,
    Waiting,
    predicted,
)
from policies.contract.snapshot import RankPlacement, Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.finders import Shortage, ShortageCode, why_not
from policies.placement.layout import EVERY, Allocation, Layout, Request
from policies.placement.plan_builder import NO_STARTS, Placed, PlanBuilder
from policies.placement.reasons import (
    Holders,
    Reasons,
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


class BatchPlan:
    """Plan of some jobs, by rows of its `view`, beside the placements of all others.

    Running jobs of it stay. `placements`: these and the jobs that were placed.
    """

    def __init__(
        self, snapshot: Snapshot, rows: Sequence[int], others: Iterable[Placement]
    ) -> None:
        others = tuple(others)
        self.snapshot, self.ids = snapshot, snapshot.jobs.columns.ids
        whole = not others and len(rows) == len(snapshot.jobs)
        self.view = snapshot if whole else view_of(snapshot, rows, others)
        self.plan = PlanBuilder(self.view, never_touch=True)
        self.state, self.columns = self.plan.state, self.view.jobs.columns
        self.busy = {seat.node for placed in others for seat in placed.ranks}
        self.left_s = {stay.row: self.plan.remaining_s(stay) for stay in self.plan.pinned}
        self.placements = [self.plan.staying(of, self.left_s[of.row]) for of in self.plan.pinned]
        self.rows = set(self.left_s)
        for stay in self.plan.pinned:
            self._settle(stay.row, stay.run.ranks)

    @property
    def placed(self) -> set[str]:
        """Ids of the jobs that stay and of those that were placed."""
        return {self.columns.ids[row] for row in self.rows}

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

    def take(self, row: int, found: Allocation, run_s: float, now_s: float) -> None:
        """Place a job on these units; it holds them for `run_s`, a launch included."""
        self.state.take(found, row, now_s + run_s)
        if row in self.queued:
            placed = self._placement(row, found, run_s)
        else:
            placed = self.plan.placement(Placed(row, found, run_s))
        self.placements.append(placed)
        self.rows.add(row)
        self._settle(row, placed.ranks)

    def nodes(self, row: int) -> int:
        """Return the nodes that a job may have: an exclusive one those without other jobs."""
        if not self.columns.others["exclusive"][row]:
            return EVERY
        index = self.state.layout.index
        return ~sum(1 << index[node] for node in self.busy if node in index)

    def waiting(
        self, placements: Collection[Placement], expected: Mapping[int, Expected] = NO_STARTS
    ) -> Iterator[Waiting]:
        """Yield the reasons of the jobs without a placement; `placements`: of all jobs."""
        ids = self.columns.ids
        rows = [row for row in range(len(ids)) if row not in self.rows]
        for row, why in [*self._of_training(rows, placements), *self._of_batch(rows, placements)]:
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
        self, rows: Sequence[int], placements: Collection[Placement]
    ) -> Iterable[tuple[int, Waiting]]:
        holders = Holders(self.snapshot, self.state, tuple(placements))
        known = dict[tuple[Request, int], Waiting]()
        for row in [row for row in rows if row in self.queued]:
            if row in self.plan.not_eligible:
                yield row, self.plan.not_eligible[row]
                continue
            key = self.request(row), self.nodes(row)
            if key not in known:
                known[key] = self._why(row, holders)
            yield row, known[key]

    def _settle(self, row: int, ranks: Iterable[RankPlacement]) -> None:
        """Note a placed job's nodes, which are closed to others if it is to be alone there."""
        self.busy.update([seat.node for seat in ranks])
        if self.columns.others["exclusive"][row]:
            for seat in ranks:
                self.state.close(self.state.layout.index[seat.node])

    def _placement(self, row: int, found: Allocation, run_s: float) -> Placement:
        layout, seats = self.state.layout, list[RankPlacement]()
        for part in found.parts:
            devices = layout.ids(part.node, part.devices)
            seats.append(RankPlacement(layout.nodes[part.node].id, devices, units=part.units))
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
        cores, watts = self.columns.listed["cores"][row], 0.0
        for part in found.parts:
            node, gpus = self.snapshot.nodes[part.node], part.devices.bit_count()
            watts += node.part_w(gpus, len(node.devices), cores * part.units)
        priced_s = float(self.plan.prices.priced_s(np.array([run_s]))[0])
        return watts * self.plan.prices.reference * priced_s

    def _why(self, row: int, holders: Holders) -> Waiting:
        request = self.request(row)
        if least_shortage(self._empty, [(request, EVERY)]) == Shortage(ShortageCode.CAPACITY):
            return self._impossible(row, request)
        shortage = why_not(self.state, request, self.nodes(row))
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
        """Return True if a job's units fit at once on the cluster without other jobs."""
        return why_not(self._empty, self.request(row)) is None

    def _impossible(self, row: int, request: Request) -> Waiting:
        """Return why a job fits on no open node, or has too many units for all of them."""
        fit = sum(g.units * g.nodes.bit_count() for g in self._empty.groups_for(request))
        if not fit:
            return why_impossible(self.snapshot, self.snapshot.jobs.position[self.columns.ids[row]])
        lack = Lack("units", float(request.units), float(min(fit, request.units - 1)))
        return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))
