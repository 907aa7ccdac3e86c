"""Plan in progress: jobs that stay, placed jobs, and reasons of the others.

The one builder of placements, on any number of nodes: of queues, batch jobs, and searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from policies.contract.placement_rules import needs_stop
from policies.contract.plan import (
    HIGHEST_COST,
    LONGEST_RUN_S,
    Expected,
    Placement,
    Plan,
    PlanStatus,
    Waiting,
    predicted,
)
from policies.contract.snapshot import TRAINING, NodeView, RankPlacement, Running, Snapshot
from policies.placement.from_snapshot import (
    CurrentPlacement,
    cluster_of,
    current_placements,
    remaining_s,
)
from policies.placement.layout import DEVICES, Allocation, Layout
from policies.placement.priced_options import JobOptions, prices_of
from policies.placement.waiting.reasons import Reasons, not_eligible

NO_STARTS: Mapping[int, Expected] = {}


@dataclass(frozen=True, slots=True)
class Placed:
    """Job with an allocation, and its run time (s) there, a launch included; inf: unknown.

    `ranks`: seats of a job that goes on, or that shares its device; else None.
    """

    row: int
    allocation: Allocation
    run_s: float
    ranks: tuple[RankPlacement, ...] | None = None


class PlanBuilder:
    """Placements of one plan and the state from which they are taken.

    `pinned`: jobs that stay; `fallback`: by row, jobs on draining nodes that may stay if there is
    no capacity elsewhere; `not_eligible`: by row, jobs that must wait whatever the capacity. With
    `shares` jobs may share devices. `spreads`: gangs that no node can hold are placed over nodes;
    those that run so stay. `wide`: such gangs that had their turn before the policy decides (see
    `gangs_over_nodes`); `expected`: starts of those that wait, by row.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        never_touch: bool,
        shares: bool = False,
        spreads: bool = True,
        keep_wide: bool = True,
        billed_nodes: Sequence[NodeView] | None = None,
    ) -> None:
        """`billed_nodes`: the whole nodes, where the snapshot shows what others leave of them.

        `keep_wide`: gangs that no node can hold stay where they run.
        """
        self.snapshot = snapshot
        self.state = cluster_of(snapshot, shares=shares)
        self.not_eligible = not_eligible(snapshot)
        self.options = JobOptions(snapshot, self.state, spreads=spreads)
        self.pinned, self.fallback = current_placements(
            snapshot,
            self.not_eligible,
            never_touch=never_touch,
            state=self.state,
            requests=self.options.requests,
            keep_wide=keep_wide,
        )
        self.placed: list[Placed] = []
        self.expected: dict[int, Expected] = {}
        self.wide: frozenset[int] = frozenset()
        self.prices = prices_of(snapshot, emissions=False)
        self.billed_nodes = snapshot.nodes if billed_nodes is None else billed_nodes

    @property
    def decided(self) -> set[int]:
        """Rows of jobs that stay or must wait, and of gangs over nodes that had their turn."""
        return {stay.row for stay in self.pinned} | self.not_eligible.keys() | self.wide

    def place(self, row: int, allocation: Allocation, run_s: float) -> None:
        """Take an allocation for a job."""
        self.state.take(allocation)
        self.placed.append(Placed(row, allocation, run_s))

    def copy(self) -> PlanBuilder:
        """Return a copy of the plan with the same placements."""
        new = copy(self)
        new.state = self.state.copy()
        new.placed = self.placed.copy()
        return new

    def build(
        self,
        policy: str,
        value: float | None = None,
        message: str = "",
        named: Iterable[Placement] = (),
        expected: Mapping[int, Expected] = NO_STARTS,
    ) -> Plan:
        """Return the plan, with `named` placements and a reason for each job that has none.

        `value`: the plan's objective. `named`: placements that the policy has made itself.
        `expected`: by row, starts of waiting jobs in the policy's own schedule.
        """
        # 1. Placements by row: the policy's, then those of jobs that stay.
        by_row: list[tuple[int, Placement]] = []
        for placement in named:
            by_row.append((self.snapshot.jobs.position[placement.job], placement))
        for placed in self.placed:
            by_row.append((placed.row, self.placement(placed)))
        fallbacks = self._fallbacks({row for row, _ in by_row})
        for stay in (*self.pinned, *fallbacks):
            by_row.append((stay.row, self.staying(stay)))

        # 2. In the order of the jobs; all others wait.
        by_row.sort(key=lambda row_and_placement: row_and_placement[0])
        placements = tuple([placement for _, placement in by_row])
        starts = {**self.expected, **expected}
        waiting = self._waiting({row for row, _ in by_row}, placements, starts)
        return Plan(
            policy, PlanStatus.HEURISTIC, placements, waiting, objective=value, message=message
        )

    def placement(self, placed: Placed) -> Placement:
        """Return a placement, with its part of its nodes' bills.

        A job that is placed where it runs keeps its cores, units and steps: nothing carries out a
        change of these alone.
        """
        is_batch = self.snapshot.jobs.columns.others["batch"][placed.row]
        ranks = placed.ranks or seats_of(self.state.layout, placed.allocation, is_batch=is_batch)
        steps_quota = None
        for run in self.snapshot.jobs.columns.others["running"][placed.row]:
            if run.purpose is TRAINING and not needs_stop(run.ranks, ranks):
                ranks = run.ranks
                steps_quota = run.steps_quota
        cost = self._cost(placed, ranks[0].share)
        return Placement(
            self.snapshot.jobs.columns.ids[placed.row],
            ranks,
            steps_quota=steps_quota,
            predicted_run_s=predicted(placed.run_s, LONGEST_RUN_S),
            predicted_energy_cost=predicted(cost, HIGHEST_COST),
        )

    def _cost(self, placed: Placed, share: float) -> float:
        """Return a job's part of its nodes' bills; inf if the run time is unknown.

        By its GPUs among those in use on each node; of a batch job among all of them, and of a job
        without GPUs by its cores. `share`: its share of each GPU.
        """
        if not isfinite(placed.run_s):
            return inf
        layout = self.state.layout
        columns = self.snapshot.jobs.columns
        is_batch = columns.others["batch"][placed.row] or not columns.listed["gpus_max"][placed.row]
        watts = 0.0
        for part in placed.allocation.parts:
            node = self.billed_nodes[part.node]
            gpus = part.devices.bit_count()
            if is_batch:
                cores = columns.listed["cores"][placed.row] * part.units
                watts += node.part_w(gpus, len(node.devices), cores)
            else:
                capacity = layout.classes[layout.class_of[part.node]].capacity[DEVICES]
                used = capacity - self.state.free[part.node][DEVICES]
                watts += node.part_w(gpus * share, used, 0.0)
        return watts * self.prices.reference * self._priced_s(placed.run_s)

    def remaining_s(self, stay: CurrentPlacement) -> float:
        """Return the time (s) that a job which stays still needs; inf if unknown."""
        return remaining_s(self.snapshot, self.options.speeds, stay)

    def run_remaining_s(self, row: int, run: Running, allocation: Allocation) -> float:
        """Return the time (s) that a running job still needs where it is; inf if unknown."""
        return self.remaining_s(CurrentPlacement(row, run, allocation))

    def staying(self, stay: CurrentPlacement, run_s: float | None = None) -> Placement:
        """Return the placement of a job that stays; `run_s`: the time (s) that it still needs."""
        if run_s is None:
            run_s = self.remaining_s(stay)
        cost = self._cost_where_it_is(stay, run_s) if isfinite(run_s) else inf
        return staying_placement(self.snapshot, stay, run_s, predicted(cost, HIGHEST_COST))

    def _cost_where_it_is(self, stay: CurrentPlacement, run_s: float) -> float:
        """Return a job's part of its nodes' bills, each node as it is used now."""
        cores = self.snapshot.jobs.columns.listed["cores"][stay.row]
        watts = 0.0
        for seat in stay.run.ranks:
            node = self.snapshot.node_by_id[seat.node]
            gpus = len(seat.devices)
            used = 0
            if gpus:
                used = max(gpus, sum([bool(device.held) for device in node.devices]))
            watts += node.part_w(gpus, used, cores * seat.units)
        return watts * self.prices.reference * self._priced_s(run_s)

    def _priced_s(self, run_s: float) -> float:
        """Return the priced seconds of a run (see `priced_options`)."""
        if self.prices.is_flat:
            return run_s
        return float(self.prices.priced_s(np.array([run_s]))[0])

    def _fallbacks(self, placed: set[int]) -> list[CurrentPlacement]:
        """Return jobs on draining nodes that found no capacity elsewhere, while the power lasts.

        `placed`: rows of the jobs that have a placement. The others are taken from the state.
        """
        kept = []
        for row, stay in self.fallback.items():
            if row not in placed and self.state.has_power_for(stay.allocation):
                self.state.take(stay.allocation)
                kept.append(stay)
        return kept

    def _waiting(
        self,
        placed: set[int],
        placements: tuple[Placement, ...],
        expected: Mapping[int, Expected],
    ) -> tuple[Waiting, ...]:
        """Return the reasons of all jobs but those that are `placed` (rows), by row."""
        if len(placed) == len(self.snapshot.jobs):
            return ()
        rows = [row for row in range(len(self.snapshot.jobs)) if row not in placed]
        eligible = [row for row in rows if row not in self.not_eligible]
        reasons = Reasons(self.snapshot, self.state, self.options, placements)
        reason_of = dict(zip(eligible, reasons.of(eligible), strict=True))
        reason_of.update(self.not_eligible)
        waiting = []
        for row in rows:
            reason = reason_of[row]
            if row in expected:
                reason = replace(reason, expected=expected[row])
            waiting.append(reason)
        return tuple(waiting)


def seats_of(
    layout: Layout, allocation: Allocation, *, share: float = 1.0, is_batch: bool = False
) -> tuple[RankPlacement, ...]:
    """Return the seats of a job, one on each of its nodes, in the order of the allocation."""
    seats = []
    for part in allocation.parts:
        node = layout.nodes[part.node].id
        devices = layout.ids(part.node, part.devices)
        units = part.units if is_batch else 1
        seats.append(RankPlacement(node, devices, share, units=units))
    return tuple(seats)


def staying_placement(
    snapshot: Snapshot, stay: CurrentPlacement, run_s: float, cost: float | None = None
) -> Placement:
    """Return the placement of a job that stays, until its node must be empty.

    `run_s`: the time that it still needs; `cost`: its predicted energy cost.
    """
    run = stay.run
    return Placement(
        snapshot.jobs.columns.ids[stay.row],
        run.ranks,
        run.copy,
        TRAINING,
        run.steps_quota,
        stay.until_s,
        predicted(run_s, LONGEST_RUN_S),
        cost,
    )
