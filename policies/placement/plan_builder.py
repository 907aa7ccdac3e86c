"""Plan in progress: jobs that stay, placed jobs, and reasons of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from policies.contract.plan import (
    HIGHEST_COST,
    LONGEST_RUN_S,
    Expected,
    Placement,
    Plan,
    PlanStatus,
    WaitCode,
    Waiting,
    predicted,
)
from policies.contract.snapshot import JobPhase, RankPlacement, Snapshot, profile_runs
from policies.contract.views import runtime_label, runtime_of
from policies.placement.cluster_state import ClusterState
from policies.placement.finders import Shortage, ShortageCode, why_not
from policies.placement.from_snapshot import (
    CurrentPlacement,
    cluster_of,
    current_placements,
    not_eligible,
    remaining_s,
)
from policies.placement.layout import DEVICES, THOUSANDTHS, Allocation, Request, members
from policies.placement.priced_options import GroupingKey, JobOptions, admits, prices_of

NO_STARTS: Mapping[int, Expected] = {}

MOST_NAMED = 8
"""Most jobs or nodes that a reason names; thousands of jobs would each repeat them."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Job with an allocation on one node, and its run time there, a launch included.

    `ranks`: of a job that goes on, or that shares its device; else None.
    """

    row: int
    allocation: Allocation
    run_s: float
    ranks: tuple[RankPlacement, ...] | None = None


class PlanBuilder:
    """Placements of one plan and the state from which they are taken.

    `pinned`: jobs that stay; `fallback`: by row, jobs on draining nodes that may stay if there is
    no capacity elsewhere; `not_eligible`: by row, jobs that must wait whatever the capacity. With
    `shares` jobs may share devices.
    """

    def __init__(self, snapshot: Snapshot, *, never_touch: bool, shares: bool = False) -> None:
        self.snapshot, self.state = snapshot, cluster_of(snapshot, shares=shares)
        self.not_eligible = not_eligible(snapshot)
        self.pinned, self.fallback = current_placements(
            snapshot, self.not_eligible, never_touch=never_touch, state=self.state
        )
        self.options = JobOptions(snapshot, self.state)
        self.placed: list[Placed] = []
        self.prices = prices_of(snapshot, emissions=False)

    @property
    def decided(self) -> set[int]:
        """Rows of the jobs that stay or must wait."""
        return {stay.row for stay in self.pinned} | self.not_eligible.keys()

    def place(self, row: int, allocation: Allocation, run_s: float) -> None:
        """Take an allocation on one node for a job."""
        self.state.take(allocation)
        self.placed.append(Placed(row, allocation, run_s))

    def copy(self) -> PlanBuilder:
        """Return a copy of the plan with the same placements."""
        new = copy(self)
        new.state, new.placed = self.state.copy(), self.placed.copy()
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

        `expected`: by row, starts of waiting jobs in the policy's own schedule.
        """
        position = self.snapshot.jobs.position
        placements = [(position[p.job], p) for p in named]
        placements += [(p.row, self._placement(p)) for p in self.placed]
        staying = [*self.pinned, *self._fallbacks({row for row, _ in placements})]
        placements += [(stay.row, self._staying(stay)) for stay in staying]
        placements.sort(key=lambda of: of[0])
        found = tuple([placement for _, placement in placements])
        waiting = self._waiting({row for row, _ in placements}, found, expected)
        return Plan(policy, PlanStatus.HEURISTIC, found, waiting, objective=value, message=message)

    def _placement(self, placed: Placed) -> Placement:
        """Return a placement, with its part of its node's bill by GPUs."""
        (node, _, devices), layout = placed.allocation.parts[0], self.state.layout
        view = layout.nodes[node]
        ranks = placed.ranks or (RankPlacement(view.id, layout.ids(node, devices)),)
        gpus = devices.bit_count() * ranks[0].share
        capacity = layout.classes[layout.class_of[node]].capacity[DEVICES]
        used = capacity - self.state.free[node][DEVICES]
        cost = (
            view.draw_w(used) * self.prices.reference * gpus / used * self._priced_s(placed.run_s)
        )
        return Placement(
            self.snapshot.jobs.columns.ids[placed.row],
            ranks,
            predicted_run_s=predicted(placed.run_s, LONGEST_RUN_S),
            predicted_energy_cost=predicted(cost, HIGHEST_COST),
        )

    def _staying(self, stay: CurrentPlacement) -> Placement:
        run_s = remaining_s(self.snapshot, self.options.speeds, stay)
        cost = self._cost_of(stay, run_s) if isfinite(run_s) else inf
        return Placement(
            self.snapshot.jobs.columns.ids[stay.row],
            stay.run.ranks,
            stay.run.copy,
            steps_quota=stay.run.steps_quota,
            until_s=stay.until_s,
            predicted_run_s=predicted(run_s, LONGEST_RUN_S),
            predicted_energy_cost=predicted(cost, HIGHEST_COST),
        )

    def _cost_of(self, stay: CurrentPlacement, run_s: float) -> float:
        """Return a job's part of its nodes' bills by GPUs, each node as it is used now."""
        watts = 0.0
        for seat in stay.run.ranks:
            node = self.snapshot.node_by_id[seat.node]
            used = max(len(seat.devices), sum(bool(d.held) for d in node.devices))
            watts += node.draw_w(used) * len(seat.devices) / used
        return watts * self.prices.reference * self._priced_s(run_s)

    def _priced_s(self, run_s: float) -> float:
        return run_s if self.prices.is_flat else float(self.prices.priced_s(np.array([run_s]))[0])

    def _fallbacks(self, placed: set[int]) -> list[CurrentPlacement]:
        """Return jobs on draining nodes that found no capacity elsewhere, while the power lasts."""
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
        if len(placed) == len(self.snapshot.jobs):
            return ()
        rows = [row for row in range(len(self.snapshot.jobs)) if row not in placed]
        asked = [row for row in rows if row not in self.not_eligible]
        reasons = Reasons(self.snapshot, self.state, self.options, placements)
        found = dict(zip(asked, reasons.of(asked), strict=True))
        reason = {**found, **self.not_eligible}
        return tuple(
            [replace(reason[r], expected=expected[r]) if r in expected else reason[r] for r in rows]
        )


class Holders:
    """Jobs on each node once a plan is carried out, and when the first of them ends."""

    def __init__(
        self, snapshot: Snapshot, state: ClusterState, placements: Sequence[Placement]
    ) -> None:
        self.now_s, self.layout = snapshot.now_s, state.layout
        self.at: dict[int, list[tuple[str, float | None]]] = {}
        for placed in placements:
            self._add(placed.job, [seat.node for seat in placed.ranks], placed.predicted_run_s)
        for job, run in profile_runs(snapshot):
            self._add(job, [seat.node for seat in run.ranks], None)
        self._found: dict[int, tuple[tuple[str, ...], float | None]] = {}

    def on(self, nodes: int) -> tuple[tuple[str, ...], float | None]:
        """Return (jobs on these nodes, the time at which the first of them ends if known)."""
        if nodes not in self._found:
            holders = [h for n in members(nodes) for h in self.at.get(n, ())]
            ends = [run_s for _, run_s in holders if run_s is not None]
            names = tuple(dict.fromkeys(job for job, _ in holders))[:MOST_NAMED]
            self._found[nodes] = names, self.now_s + min(ends) if ends else None
        return self._found[nodes]

    def _add(self, job: str, nodes: list[str], run_s: float | None) -> None:
        for node in nodes:
            if (n := self.layout.index.get(node)) is not None:
                self.at.setdefault(n, []).append((job, run_s))


@dataclass(slots=True)
class Reasons:
    """Reasons by class of jobs, after `placements` were taken from `state`."""

    snapshot: Snapshot
    state: ClusterState
    options: JobOptions
    placements: Sequence[Placement]

    def of(self, rows: Sequence[int]) -> Iterator[Waiting]:
        """Yield one reason for each of these jobs."""
        holders = Holders(self.snapshot, self.state, self.placements)
        columns, known = self.snapshot.jobs.columns, dict[GroupingKey, Waiting]()
        keys, phases = self.options.keys, columns.others["phase"]
        for row in rows:
            key = keys[row]
            if key not in known:
                known[key] = self._reason(row, holders)
            one = known[key]
            code = one.code
            if phases[row] is JobPhase.RUNNING and code is WaitCode.NO_CAPACITY:
                code = WaitCode.POSTPONED
            yield Waiting(columns.ids[row], code, one.nodes, one.jobs, one.watts, one.expected)

    def _reason(self, row: int, holders: Holders) -> Waiting:
        options = self.options.within(inf, row)
        if not options:
            code, nodes = why_impossible(self.snapshot, row)
            return Waiting("", code, nodes)
        alternatives = [(option.request, option.nodes) for option in options]
        shortage = least_shortage(self.state, alternatives)
        if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
            return for_power(self.snapshot, shortage)
        nodes_that_would_do = 0
        for option in options:
            nodes_that_would_do |= option.nodes
        jobs, ends_s = holders.on(nodes_that_would_do)
        code = WaitCode.POSTPONED if shortage is None else WaitCode.NO_CAPACITY
        return Waiting("", code, jobs=jobs, expected=_from(ends_s))


def least_shortage(
    state: ClusterState, alternatives: Sequence[tuple[Request, int]]
) -> Shortage | None:
    """Return the shortage of these alternatives (request, set of nodes); None if one fits.

    Of those that lack power alone, the one that lacks least.
    """
    found = [why_not(state, request, only) for request, only in alternatives]
    if None in found:
        return None
    of_power = [s for s in found if s is not None and s.code is ShortageCode.POWER_CAP]
    return min(of_power, key=lambda s: s.missing_mw, default=Shortage(ShortageCode.CAPACITY))


def for_power(snapshot: Snapshot, shortage: Shortage) -> Waiting:
    """Return the reason of a job that lacks power, and when a cap that ends or rises leaves it."""
    watts = shortage.missing_mw / THOUSANDTHS
    expected = _from(cap_rises_s(snapshot, watts))
    return Waiting("", WaitCode.POWER_CAP, watts=watts, expected=expected)


def _from(start_s: float | None) -> Expected | None:
    """Expected start of which nothing but the time is known."""
    return None if start_s is None else Expected(start_s)


def cap_rises_s(snapshot: Snapshot, missing_w: float) -> float | None:
    """Return when the cluster may use so many watts more than now; None if no cap leaves them."""
    wanted_w = (snapshot.cap_w or 0.0) + missing_w
    changes = {at for s in snapshot.power_caps for at in (s.from_s, s.to_s)}
    caps = ((at, snapshot.cap_at(at)) for at in sorted(changes) if snapshot.now_s < at < inf)
    return next((at for at, cap in caps if cap is None or cap >= wanted_w), None)


def why_impossible(snapshot: Snapshot, row: int) -> tuple[WaitCode, tuple[str, ...]]:
    """Return why a job can run on no node, and suitable nodes that take no training."""
    columns = snapshot.jobs.columns
    others, counts = columns.others, columns.counts
    types = set(others["allowed_types"][row]) or set(snapshot.types)
    gpus = range(int(counts["gpus_min"][row]), int(counts["gpus_max"][row]) + 1)
    kind = snapshot.kinds[snapshot.kind_index[columns.kinds[row]]]
    known = {
        t.gpu_type
        for t in kind.throughputs
        if t.gpus in gpus and t.is_known and t.gpu_type in types
    }
    of_type = [n for n in snapshot.nodes if n.gpu_type in types]
    if not any(n.takes_training for n in snapshot.nodes):
        return WaitCode.NODES_UNAVAILABLE, tuple(n.id for n in of_type)[:MOST_NAMED]
    if of_type and not any(n.takes_training for n in of_type):
        return WaitCode.TYPES_UNAVAILABLE, tuple(n.id for n in of_type)[:MOST_NAMED]
    labels = frozenset(others["labels"][row])
    offering = [n for n in of_type if runtime_label(runtime_of(labels)) in n.labels]
    if of_type and runtime_of(labels) and not any(n.takes_training for n in offering):
        return WaitCode.RUNTIME_UNAVAILABLE, tuple(n.id for n in offering)[:MOST_NAMED]
    large = [
        n
        for n in of_type
        if len(n.devices) >= gpus.start
        and admits((frozenset(types), labels), n.gpu_type, frozenset(n.labels))
    ]
    if not large:
        return WaitCode.NO_NODE_FITS, ()
    if not known & {n.gpu_type for n in large if n.takes_training}:
        return WaitCode.NO_THROUGHPUT, ()
    return WaitCode.NO_NODE_FITS, ()
