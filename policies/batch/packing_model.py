"""Model of `policies.batch.packing`: units of competing jobs by node, as integers.

Jobs with equal requests that pass the same reservations are one class: the first of them start, and
their units are counted together. Minimise the weight of those that wait, such that on each node the
units of all classes fit into what is free now, and those of the classes that pass a reservation
into what is free beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from ortools.sat.python import cp_model

from policies.batch.easy import Head
from policies.batch.plan import BatchPlan
from policies.cp_sat import run_solver
from policies.placement.layout import Request, members

if TYPE_CHECKING:
    from policies.batch.packing import Bid

Class = tuple[Request, tuple[int, ...]]
"""Request, and the numbers of the reservations that are passed."""


class Solved(NamedTuple):
    """Nodes and units by row of the jobs that start, and the least weight that waits."""

    where: Mapping[int, Sequence[tuple[int, int]]]
    bound: float


class PackingModel:
    """`x[i]`: bid i starts; `y[class][node]`: units of a class on a node."""

    def __init__(self, plan: BatchPlan, heads: Sequence[Head], bids: Sequence[Bid]) -> None:
        self.cp, self.plan, self.bids = cp_model.CpModel(), plan, bids
        self.states = [plan.state, *[head.later for head in heads]]
        self.classes: dict[Class, list[int]] = defaultdict(list)
        for i, bid in enumerate(bids):
            self.classes[bid.request, bid.passed].append(i)
        self.x = [self.cp.new_bool_var("") for _ in bids]
        self.y = {of: self._counts(of) for of in self.classes}
        self.units()
        for number in range(len(self.states)):
            self.capacity(number)
        waits = [bid.weight * (1 - x) for bid, x in zip(bids, self.x, strict=True)]
        self.cp.minimize(sum(waits))

    def units(self) -> None:
        """Each class has the units of its jobs that start, the greatest weights first."""
        for (request, _), of in self.classes.items():
            counts = self.y[request, _].values()
            self.cp.add(sum(counts) == request.units * sum(self.x[i] for i in of))
            for one, other in pairwise(of):
                self.cp.add_implication(self.x[other], self.x[one])

    def capacity(self, number: int) -> None:
        """Units fit into what is free now (0), or beside reservation `number` - 1."""
        used: dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]] = defaultdict(list)
        for (request, passed), counts in self.y.items():
            if number == 0 or number - 1 in passed:
                for n, count in counts.items():
                    for at, _, each in request.needs:
                        if each:
                            used[n, at].append((each, count))
        for (n, at), amounts in used.items():
            unit = gcd(*[each for each, _ in amounts])
            free = self.states[number].free[n][at] // unit
            self.cp.add(sum(each // unit * count for each, count in amounts) <= free)

    def hint(self, listed: BatchPlan) -> None:
        """Begin with the jobs and nodes of a plan."""
        for bid, x in zip(self.bids, self.x, strict=True):
            self.cp.add_hint(x, bid.row in listed.rows)
        units: dict[tuple[Class, int], int] = defaultdict(int)
        row_of = {bid.row: (bid.request, bid.passed) for bid in self.bids}
        for started in listed.started:
            for part in started.allocation.parts if started.row in row_of else ():
                units[row_of[started.row], part.node] += part.units
        for of, counts in self.y.items():
            for n, count in counts.items():
                self.cp.add_hint(count, units[of, n])

    def solved(self, budget: float, seed: int) -> Solved:
        """Return the best choice found. Raises SolverFailedError without any."""
        solver, _ = run_solver(self.cp, budget, seed, linearization_level=1)
        where = {}
        for of, bids in self.classes.items():
            left = [[n, solver.value(count)] for n, count in self.y[of].items()]
            for i in bids:
                if solver.boolean_value(self.x[i]):
                    where[self.bids[i].row] = _taken(left, of[0].units)
        return Solved(where, solver.best_objective_bound)

    def _counts(self, of: Class) -> dict[int, cp_model.IntVar]:
        request, (_, passed) = of[0], of
        states = [self.states[0], *[self.states[1 + h] for h in passed]]
        classes, nodes = self.plan.state.layout.admitting(request)
        nodes &= sum(self.plan.state.layout.members[c] for c in classes) & self.plan.state.open
        most, found = request.units * len(self.classes[of]), {}
        for n in members(nodes):
            units = min(_fitting(request, state.free[n], most) for state in states)
            if units > 0:
                found[n] = self.cp.new_int_var(0, units, "")
        return found


def _fitting(request: Request, free: Sequence[int], most: int) -> int:
    return min([most, *[free[at] // each for at, _, each in request.needs if each]])


def _taken(left: list[list[int]], units: int) -> list[tuple[int, int]]:
    """Take so many units of what is left on nodes."""
    where = []
    for entry in left:
        if (taken := min(units, entry[1])) > 0:
            where.append((entry[0], taken))
            entry[1] -= taken
            units -= taken
    return where
