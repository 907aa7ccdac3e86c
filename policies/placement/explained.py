"""Reasons that take the whole plan to see: prices, reservations, pre-emptions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from policies.contract.plan import Expected, Plan, WaitCode, Waiting
from policies.contract.snapshot import PROFILING, JobPhase, Snapshot
from policies.placement.leftover import Leftover
from policies.placement.priced_options import per_watt_second
from policies.placement.reasons import MOST_NAMED

UNDECIDED = (WaitCode.NO_CAPACITY, WaitCode.POSTPONED)


def explained(plan: Plan, snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Return the plan's waiting jobs, their reasons as exact as its schedule allows."""
    facts = PlanFacts(plan, snapshot)
    return tuple([facts.reason(entry) for entry in plan.waiting])


class PlanFacts:
    """Holders of nodes, what is free, and the waiting job that is expected first on each."""

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self.plan, self.snapshot = plan, snapshot

    @cached_property
    def leftover(self) -> Leftover:
        return Leftover.of(self.snapshot, self.plan.placements)

    @cached_property
    def holders(self) -> Mapping[str, Mapping[str, None]]:
        """Jobs placed on each node, in order."""
        found: dict[str, dict[str, None]] = {}
        for placed in self.plan.placements:
            for seat in placed.ranks:
                found.setdefault(seat.node, {})[placed.job] = None
        return found

    @cached_property
    def owners(self) -> Mapping[tuple[str, str], str]:
        """Job placed on each (node, device)."""
        return {
            (seat.node, device): placed.job
            for placed in self.plan.placements
            for seat in placed.ranks
            for device in seat.devices
        }

    @cached_property
    def reservations(self) -> Mapping[str, list[tuple[str, Expected]]]:
        """Waiting jobs expected on each node, the first first."""
        found: dict[str, list[tuple[str, Expected]]] = {}
        for entry in self.plan.waiting:
            if entry.expected is not None:
                for node in entry.expected.nodes:
                    found.setdefault(node, []).append((entry.job, entry.expected))
        for of_node in found.values():
            of_node.sort(key=lambda of: (of[1].start_s, of[0]))
        return found

    @cached_property
    def measured(self) -> Mapping[str, Mapping[str, None]]:
        """Nodes on which each kind is measured, in order."""
        columns, position = self.snapshot.jobs.columns, self.snapshot.jobs.position
        found: dict[str, dict[str, None]] = {}
        for placed in self.plan.placements:
            if placed.purpose is PROFILING and placed.job in position:
                of_kind = found.setdefault(columns.kinds[position[placed.job]], {})
                of_kind.update(dict.fromkeys(seat.node for seat in placed.ranks))
        return found

    def reason(self, entry: Waiting) -> Waiting:
        """Return the reason of a waiting job."""
        if entry.code is WaitCode.AWAITING_PROFILE:
            return replace(entry, nodes=tuple(self._measured_on(entry.job))[:MOST_NAMED])
        if entry.code not in UNDECIDED:
            return entry
        if (preempted := self._preempted(entry)) is not None:
            return preempted
        expected = entry.expected
        if expected is None or not expected.nodes or expected.start_s <= self.snapshot.now_s:
            return entry
        return self._scheduled(entry, expected)

    def _scheduled(self, entry: Waiting, expected: Expected) -> Waiting:
        """Return the reason of a job that is expected on known nodes later."""
        free = sum(self.leftover.gpus.get(node, 0) for node in expected.nodes)
        if free < expected.gpus:
            holders = dict.fromkeys(j for n in expected.nodes for j in self.holders.get(n, ()))
            code = WaitCode.BETTER_NODE if entry.code is WaitCode.POSTPONED else entry.code
            named = expected.nodes[:MOST_NAMED]
            return replace(entry, code=code, nodes=named, jobs=tuple(holders)[:MOST_NAMED])
        if (first := self._reserved_before(expected)) is not None:
            node, job, reservation = first
            found = replace(entry, code=WaitCode.RESERVED, nodes=(node,), jobs=(job,))
            return replace(found, from_s=reservation.start_s, gpus=reservation.gpus)
        if (from_s := self._cheaper_from_s(expected.start_s)) is not None:
            named = expected.nodes[:MOST_NAMED]
            return replace(entry, code=WaitCode.CHEAPER_LATER, nodes=named, jobs=(), from_s=from_s)
        return entry

    def _reserved_before(self, expected: Expected) -> tuple[str, str, Expected] | None:
        """Return (node, job, its start) of the first job expected there before."""
        for node in expected.nodes:
            job, first = self.reservations[node][0]
            if first.start_s < expected.start_s:
                return node, job, first
        return None

    def _cheaper_from_s(self, until_s: float) -> float | None:
        """Return when a price below the present one begins, no later than `until_s`."""
        snapshot, kg = self.snapshot, self.snapshot.emissions_cost_per_kg
        if (now := snapshot.energy_at(snapshot.now_s)) is None:
            return None
        ahead = (s for s in snapshot.energy if snapshot.now_s < s.from_s <= until_s)
        price = per_watt_second(now, kg)
        return next((s.from_s for s in ahead if per_watt_second(s, kg) < price), None)

    def _preempted(self, entry: Waiting) -> Waiting | None:
        """Return the reason of a running job whose GPUs go to others; None for another job."""
        row = self.snapshot.jobs.position.get(entry.job)
        others = self.snapshot.jobs.columns.others
        if row is None or others["phase"][row] is not JobPhase.RUNNING:
            return None
        seats = [seat for run in others["running"][row] for seat in run.ranks]
        held = [(seat.node, device) for seat in seats for device in seat.devices]
        winners = dict.fromkeys(self.owners[key] for key in held if key in self.owners)
        if not winners:
            return None
        nodes = tuple(dict.fromkeys(seat.node for seat in seats))[:MOST_NAMED]
        jobs = tuple(winners)[:MOST_NAMED]
        return replace(entry, code=WaitCode.PREEMPTED, nodes=nodes, jobs=jobs)

    def _measured_on(self, job: str) -> Iterable[str]:
        """Return the nodes on which the job's kind is measured."""
        columns, row = self.snapshot.jobs.columns, self.snapshot.jobs.position.get(job)
        return self.measured.get("" if row is None else columns.kinds[row], ())
