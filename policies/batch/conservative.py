"""Conservative backfilling (Mu'alem and Feitelson 2001): every waiting job has a reservation.

A job starts where it delays no reservation, whatever its place in the queue. Reservations are in
the plan's memory. In every round each job, in order, moves to the earliest start beside the
reservations of all others. That is never later than its start of the round before while jobs end by
their predicted run times. A reservation that no longer fits (a job outlived its run time, a node is
gone) is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from policies.batch.easy import expected
from policies.batch.plan import BatchPlan, Choice
from policies.contract.plan import Expected
from policies.placement.layout import NodeSet, Request
from policies.placement.timeline import Reservation, Timeline

MEMORY = "reservations"
"""Key of the plan's memory."""

LEAST_RUN_S = 1.0
"""Shortest time of a reservation in seconds."""


class Need(NamedTuple):
    """What a job needs: a request on these nodes, alone there or not, for so long.

    Of new jobs with equal needs a later one cannot start before an earlier one.
    """

    request: Request
    nodes: NodeSet
    alone: bool
    run_s: float


class Conservative:
    """Reservations of waiting jobs on a timeline, by row: `reservations`."""

    def __init__(self, plan: BatchPlan, memory: Mapping[str, Any]) -> None:
        """`memory`: that of the plan before."""
        self.plan = plan
        self.now_s = plan.view.now_s
        self.timeline = Timeline(plan.state, self.now_s)
        self.reservations: dict[int, Reservation] = {}
        self.remembered_reservations = memory.get(MEMORY, {})
        self.no_start_before_s: dict[Need, float] = {}
        """Start of the last new job with such a need; inf: there is none at any time."""

    def start_in_order(self, rows: Sequence[int]) -> None:
        """Start the jobs whose turn it is, and give all others a reservation."""
        # 1. Every job has its reservation of the round before, if that is still free.
        for row in rows:
            self._reserve_as_before(row)

        # 2. In order, each moves to its earliest start beside the others.
        for row in rows:
            if row in self.reservations:
                self.timeline.cancel(row, self.reservations[row])
                self._reserve(row, is_new=False)
            elif self.plan.fits_when_empty(row):
                self._reserve(row, is_new=True)

        # 3. Those whose reservation begins now start.
        for row, reservation in list(self.reservations.items()):
            if reservation.start_s <= self.now_s:
                del self.reservations[row]
                self.plan.take(row, reservation.allocation, reservation.run_s)

    def expected_starts(self) -> dict[int, Expected]:
        """Return the expected starts of the waiting jobs, by row."""
        starts = {}
        for row, reservation in self.reservations.items():
            start_s, run_s, allocation, _ = reservation
            starts[row] = expected(self.plan, start_s, run_s, allocation)
        return starts

    def to_memory(self) -> dict[str, Any]:
        """Return the plan's memory: by job, its start and its units by node."""
        ids = self.plan.columns.ids
        nodes = self.plan.state.layout.nodes
        by_job = {}
        for row, reservation in self.reservations.items():
            seats = [[nodes[part.node].id, part.units] for part in reservation.allocation.parts]
            by_job[ids[row]] = [reservation.start_s, seats]
        return {MEMORY: by_job} if by_job else {}

    def _reserve_as_before(self, row: int) -> None:
        """Give a job its reservation of the round before, unless that is not free any more."""
        # 1. Its nodes must still be there.
        before = self.remembered_reservations.get(self.plan.columns.ids[row])
        if before is None:
            return
        start_s, seats = before
        number_of = self.plan.state.layout.index
        if not seats or any(node not in number_of for node, _ in seats):
            return
        nodes: NodeSet = 0
        units_on_nodes = []
        for node, units in seats:
            nodes |= 1 << number_of[node]
            units_on_nodes.append((number_of[node], units))

        # 2. Its first choice that fits on these nodes at that time: `find` asks whether it may be
        #    there at all, `place` gives each node the units that it had.
        start_s = max(self.now_s, start_s)
        for choice in self.plan.choices(row):
            run_s = max(LEAST_RUN_S, choice.run_s)
            state = self.timeline.during(start_s, run_s)
            if self.plan.find(row, choice, state, within=nodes) is None:
                continue
            allocation = state.place(choice.request, units_on_nodes)
            if allocation is not None:
                alone = self.plan.is_alone(row)
                self._add(row, Reservation(start_s, run_s, allocation, alone))
                return

    def _reserve(self, row: int, *, is_new: bool) -> None:
        """Give a job the reservation that ends first; none if it fits at no time."""
        candidates = []
        for choice in self.plan.choices(row):
            reservation = self._earliest(row, choice, is_new=is_new)
            if reservation is not None:
                candidates.append(reservation)
        if candidates:
            self._add(row, min(candidates, key=lambda reservation: reservation.end_s))
        else:
            self.reservations.pop(row, None)

    def _earliest(self, row: int, choice: Choice, *, is_new: bool) -> Reservation | None:
        """Return the earliest reservation of a choice; None if it fits at no time."""
        # 1. The search begins where that of the last new job with an equal need has ended.
        alone = self.plan.is_alone(row)
        run_s = max(LEAST_RUN_S, choice.run_s)
        need = Need(choice.request, choice.nodes, alone, run_s)
        since_s = self.no_start_before_s.get(need, -inf) if is_new else -inf

        # 2. The earliest start at which it fits for all of its run time.
        start = self.timeline.earliest(
            lambda state: self.plan.find(row, choice, state), run_s, since_s
        )
        if is_new:
            self.no_start_before_s[need] = inf if start is None else start[0]
        if start is None:
            return None
        start_s, allocation = start
        return Reservation(start_s, run_s, allocation, alone)

    def _add(self, row: int, reservation: Reservation) -> None:
        """Take a reservation on the timeline, and note it."""
        self.timeline.reserve(row, reservation)
        self.reservations[row] = reservation
