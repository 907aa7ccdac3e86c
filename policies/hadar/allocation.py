"""FIND_ALLOC: GPUs of named nodes for the selected jobs, then for those that were left out.

A selection knows how many GPUs of each type a job takes. Here they get nodes: who stays keeps its
own, the largest gangs come next, on one node or over nodes, whichever has the greater payoff at the
prices of these nodes. What finds no nodes is tried again with all its places, after the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from policies.hadar.offers import Offers, Place
from policies.hadar.prices import PriceRange
from policies.placement.layout import DEVICES, Allocation
from policies.placement.plan_builder import Placed, PlanBuilder
from policies.placement.priced_options import GroupingKey


class Found(NamedTuple):
    """Allocation of a place (its number), and its payoff at the prices of its nodes."""

    payoff: float
    place: int
    allocation: Allocation


class Allocator:
    """Allocations of one round, taken from the plan's state.

    `fills`: idle GPUs go to jobs whose worth is below the price, too. `placed`: numbers of jobs.
    """

    def __init__(self, plan: PlanBuilder, offers: Offers, *, fills: bool) -> None:
        self.plan = plan
        self.offers = offers
        self.fills = fills
        self.placed: set[int] = set()

    def place_selected(self, selected: Sequence[tuple[int, int]]) -> None:
        """Place these jobs, (number, number of its place)."""
        places = self.offers.places
        moving: list[tuple[int, int]] = []
        for job, place in selected:
            if not self._stays(job, place):
                moving.append((job, place))
        moving.sort(key=lambda of: (-places[of[1]].gpus, -self.offers.density(of[1])))
        for job, place in moving:
            types = places[place].types
            gpus = places[place].gpus
            alike = [p for p in self.offers.of(job) if self._is_alike(places[p], types, gpus)]
            found = self.find(job, alike)
            if found is not None:
                self._take(job, found)

    def place_others(self) -> None:
        """Place jobs that have nothing, by worth per GPU, where that pays; with `fills` anywhere.

        Jobs that fit in the same places as one without room are passed over.
        """
        waiting: list[tuple[float, int]] = []
        for job in range(len(self.offers.rows)):
            if job not in self.placed:
                density = max(self.offers.density(place) for place in self.offers.of(job))
                waiting.append((-density, job))
        without_room: set[GroupingKey] = set()
        for _, job in sorted(waiting):
            if not any(self.plan.state.free_gpus().values()):
                return
            key = self.plan.options.keys[self.offers.rows[job]]
            stays = [p for p in self.offers.of(job) if self.offers.places[p].stays is not None]
            if any(self._stays(job, place) for place in stays) or key in without_room:
                continue
            found = self.find(job, self.offers.of(job))
            if found is None:
                without_room.add(key)
            elif found.payoff > 0.0 or self.fills:
                self._take(job, found)

    def find(self, job: int, places: Iterable[int]) -> Found | None:
        """Return the allocation of greatest payoff at these places of a job; None without room.

        With `fills` GPUs that are left cost nothing.
        """
        best: Found | None = None
        for number in places:
            place = self.offers.places[number]
            if place.request is None:
                continue
            allocation = self.plan.state.find(place.request, place.nodes)
            if allocation is None or not self._is_at(allocation, place):
                continue
            payoff = float(self.offers.worth[number])
            if not self.fills:
                payoff -= self.cost(allocation)
            if best is None or payoff > best.payoff:
                best = Found(payoff, number, allocation)
        return best

    def cost(self, allocation: Allocation) -> float:
        """Return the price of an allocation now: on each node it rises GPU by GPU."""
        state = self.plan.state
        total = 0.0
        for part in allocation.parts:
            of_class = state.layout.classes[state.layout.class_of[part.node]]
            price: PriceRange = self.offers.ranges[of_class.gpu_type]
            size = of_class.capacity[DEVICES]
            given = size - state.free[part.node][DEVICES]
            total += sum(price.seats(given, size)[: part.devices.bit_count()])
        return total

    def _is_at(self, allocation: Allocation, place: Place) -> bool:
        """Return True if an allocation is as spread, and as mixed, as its place says."""
        layout = self.plan.state.layout
        types = {layout.classes[layout.class_of[part.node]].gpu_type for part in allocation.parts}
        is_spread = len(allocation.parts) > 1
        return is_spread == place.is_spread and place.types[-1] in types

    def _is_alike(self, place: Place, types: Sequence[str], gpus: int) -> bool:
        """Return True for a place of as many GPUs of the same types."""
        return place.gpus == gpus and set(place.types) == set(types)

    def _stays(self, job: int, place: int) -> bool:
        """Let a running job stay; False if the place is another one, or lacks power now."""
        stays = self.offers.places[place].stays
        if stays is None or not self.plan.state.try_take(stays):
            return False
        self._note(job, place, stays)
        return True

    def _take(self, job: int, found: Found) -> None:
        self.plan.state.take(found.allocation)
        self._note(job, found.place, found.allocation)

    def _note(self, job: int, place: int, allocation: Allocation) -> None:
        run_s = float(self.offers.run_s[place])
        self.plan.placed.append(Placed(self.offers.rows[job], allocation, run_s))
        self.placed.add(job)
