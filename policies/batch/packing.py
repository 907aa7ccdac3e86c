"""Choice of the jobs that pass the reserved ones: the greatest sum of weights.

Jobs behind the reserved ones compete for what these leave. The best of several orders is the list;
CP-SAT begins with it. What it finds is placed again, job by job, with the state that all policies
use, and is believed only if it beats the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import NamedTuple

from policies.batch.easy import Head, keeping, passed_by, start_at, start_in_order
from policies.batch.plan import BatchPlan, Choice
from policies.contract.plan import PlanStatus
from policies.contract.policy import SolverFailedError
from policies.placement.layout import Request, Span

ORDERS = ("arrival", "shortest", "smallest_area", "slowdown", "unicef", "age_over_area")
SCALE = 1_000_000
"""Weight of the first job that competes; lesser ones are rounded to integers."""

MOST_COUNTS = 5000
"""Largest number of classes of equal jobs times nodes for which the model is solved."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Plan with its reservations; `lost`: weight of the competing jobs that wait, with its bound.

    Weights are relative to that of the first job that competes.
    """

    plan: BatchPlan
    heads: list[Head]
    status: PlanStatus = PlanStatus.OPTIMAL
    lost: float = 0.0
    bound: float = 0.0


class Bid(NamedTuple):
    """Waiting job that competes: its row, request, weight, and the reservations it passes."""

    row: int
    request: Request
    weight: int
    passed: tuple[int, ...]


class Packing:
    """Waiting jobs, `rows` in order, of which the first have reservations.

    `logs`: logarithms of the weights by row, falling in this order among equal priorities.
    """

    def __init__(
        self, before: BatchPlan, rows: Sequence[int], logs: Mapping[int, float], reservations: int
    ) -> None:
        self.before, self.rows, self.logs = before, rows, logs
        self.reservations = reservations

    def best(self, budget: float) -> Packed:
        """Return the best of the lists and, within a budget of work, of the model."""
        plan, heads = self.listed(self.rows)
        last = max((self.rows.index(head.row) for head in heads), default=0) + 1
        bids = list(self.bids(last)) if heads else []
        if not _lost(bids, plan):
            return Packed(plan, heads)
        lists = [(plan, heads), *map(self.listed, self._orders(last))]
        plan, heads = min(lists, key=lambda of: _lost(bids, of[0]))
        found = Packed(plan, heads, PlanStatus.FEASIBLE, _lost(bids, plan) / SCALE)
        return self._searched(found, bids, last, budget)

    def listed(self, rows: Sequence[int]) -> tuple[BatchPlan, list[Head]]:
        plan = self.before.copy()
        return plan, start_in_order(plan, rows, reservations=self.reservations)

    def _orders(self, last: int) -> Iterator[Sequence[int]]:
        """Yield the rows with those behind the reserved jobs in other orders."""
        for order in ORDERS:
            yield [*self.rows[:last], *self.before.sorted_by(order, self.rows[last:])]

    def bids(self, last: int) -> Iterator[Bid]:
        """Yield the jobs that could start alone behind the reserved ones, of equal priority."""
        base, heads = self.listed(self.rows[:last])
        priority = self.before.columns.listed["priority"]
        misses = set[tuple[Request, int]]()
        first: int | None = None
        for row in self.rows[last:]:
            (choice, *others) = base.choices(row)
            if others or not _is_plain(choice) or base.is_alone(row):
                continue
            passed = passed_by(base, choice, heads)
            key = choice.request, len(passed)
            if key in misses or (first is not None and priority[row] != priority[first]):
                continue
            found = base.find(row, choice)
            if found is None or keeping(base, row, choice, passed, found) is None:
                misses.add(key)
                continue
            first = row if first is None else first
            weight = max(1, round(SCALE * exp(min(0.0, self.logs[row] - self.logs[first]))))
            yield Bid(row, choice.request, weight, tuple(map(heads.index, passed)))

    def _searched(self, found: Packed, bids: Sequence[Bid], last: int, budget: float) -> Packed:
        """Return what the model finds if it beats a list, else the list, with status and bound."""
        classes = {(bid.request, bid.passed) for bid in bids}
        if len(classes) * len(self.before.state.free) > MOST_COUNTS:
            return found
        # the solver's library is large, and lists of policies need none of it
        from policies.batch.packing_model import PackingModel

        base, heads = self.listed(self.rows[:last])
        model = PackingModel(base, heads, bids)
        model.hint(found.plan)
        try:
            packed = model.solved(budget, base.view.seed)
        except SolverFailedError:
            return found
        bound = min(found.lost, packed.bound / SCALE)
        plan, heads = self._placed(base, heads, packed.where)
        lost = _lost(bids, plan) / SCALE
        if lost < found.lost:
            found = replace(found, plan=plan, heads=heads, lost=lost)
        status = PlanStatus.OPTIMAL if found.lost <= bound + 0.5 / SCALE else PlanStatus.FEASIBLE
        return replace(found, status=status, bound=bound)

    def _placed(
        self,
        base: BatchPlan,
        heads: Sequence[Head],
        where: Mapping[int, Sequence[tuple[int, int]]],
    ) -> tuple[BatchPlan, list[Head]]:
        """Start the chosen jobs at their nodes, then the others in order where they fit."""
        for row, nodes in where.items():
            start_at(base, row, heads, nodes)
        rest = [row for row in self.rows if row not in base.rows]
        reserved = {head.row for head in heads}
        rest = [row for row in rest if row not in reserved]
        return base, start_in_order(base, rest, reservations=self.reservations, reserved=heads)


def _lost(bids: Sequence[Bid], plan: BatchPlan) -> int:
    """Return the weight of the bids that wait."""
    return sum(bid.weight for bid in bids if bid.row not in plan.rows)


def _is_plain(choice: Choice) -> bool:
    """Return True if units of a request may lie on any nodes, each by its amounts alone."""
    request = choice.request
    fixed = request.nodes or request.most or any(request.per_node) or request.devices_at
    return not fixed and (request.span is Span.ANY or request.units == 1)
