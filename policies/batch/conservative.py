"""Conservative backfilling (Mu'alem and Feitelson 2001): every waiting job has a reservation.

A job starts where it delays no reservation, whoever is first. Reservations are in the plan's
memory; in every round each job, in order, moves to the earliest start beside all others', which is
never later than its own while jobs end by the run times that are told. One that no longer fits
(a job outlived its run time, a node is gone) is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from policies.batch.easy import expected
from policies.batch.plan import BatchPlan, Choice
from policies.contract.plan import Expected
from policies.placement.layout import Request
from policies.placement.timeline import Reservation, Timeline

MEMORY = "reservations"
LEAST_RUN_S = 1.0


class Conservative:
    """Reservations of waiting jobs on a timeline, by row: `reserved`."""

    def __init__(self, plan: BatchPlan, memory: Mapping[str, Any]) -> None:
        self.plan, self.now_s = plan, plan.view.now_s
        self.timeline = Timeline(plan.state, self.now_s)
        self.reserved: dict[int, Reservation] = {}
        self.memory = memory.get(MEMORY, {})
        self.since: dict[tuple[Request, int, bool, float], float] = {}

    def start_in_order(self, rows: Sequence[int]) -> None:
        """Start the jobs whose turn it is, and give all others a reservation."""
        for row in rows:
            self._keep(row)
        for row in rows:
            if row in self.reserved:
                self.timeline.cancel(row, self.reserved[row])
                self._reserve(row, is_new=False)
            elif self.plan.fits_when_empty(row):
                self._reserve(row, is_new=True)
        for row in [row for row, made in self.reserved.items() if made.start_s <= self.now_s]:
            made = self.reserved.pop(row)
            self.plan.take(row, made.allocation, made.run_s)

    def expected(self) -> dict[int, Expected]:
        """Return the expected starts of the waiting jobs."""
        made = self.reserved.items()
        return {row: expected(self.plan, of.start_s, of.run_s, of.allocation) for row, of in made}

    def remembered(self) -> dict[str, Any]:
        """Return the plan's memory: start, choice, and units by node of each reservation."""
        ids, nodes = self.plan.columns.ids, self.plan.state.layout.nodes
        of_jobs = {
            ids[row]: [
                made.start_s,
                [[nodes[part.node].id, part.units] for part in made.allocation.parts],
            ]
            for row, made in self.reserved.items()
        }
        return {MEMORY: of_jobs} if of_jobs else {}

    def _keep(self, row: int) -> None:
        """Take the units of a reservation of the round before, unless they are not free."""
        start_s, seats = self.memory.get(self.plan.columns.ids[row], (inf, ()))
        index, start_s = self.plan.state.layout.index, max(self.now_s, start_s)
        if not seats or any(node not in index for node, _ in seats):
            return
        where = [(index[node], units) for node, units in seats]
        nodes = sum(1 << node for node, _ in where)
        for choice in self.plan.choices(row):
            run_s = max(LEAST_RUN_S, choice.run_s)
            state = self.timeline.during(start_s, run_s)
            is_there = self.plan.find(row, choice, state, only=nodes) is not None
            units = state.place(choice.request, where) if is_there else None
            if units is not None:
                self._take(row, Reservation(start_s, run_s, units, self.plan.is_alone(row)))
                return

    def _reserve(self, row: int, *, is_new: bool) -> None:
        """Give a job the reservation that ends first."""
        found = [made for of in self.plan.choices(row) if (made := self._first(row, of, is_new))]
        if found:
            self._take(row, min(found, key=lambda made: made.end_s))
        else:
            self.reserved.pop(row, None)

    def _first(self, row: int, choice: Choice, is_new: bool) -> Reservation | None:
        """Return the earliest reservation of a choice. Equal new jobs start one after another."""
        alone, run_s = self.plan.is_alone(row), max(LEAST_RUN_S, choice.run_s)
        key = choice.request, choice.nodes, alone, run_s
        since_s = self.since.get(key, -inf) if is_new else -inf
        found = self.timeline.earliest(
            lambda state: self.plan.find(row, choice, state), run_s, since_s
        )
        if is_new:
            self.since[key] = inf if found is None else found[0]
        return None if found is None else Reservation(found[0], run_s, found[1], alone)

    def _take(self, row: int, made: Reservation) -> None:
        self.timeline.reserve(row, made)
        self.reserved[row] = made
