"""Gangs among jobs of one GPU: their part of the GPUs, and the reserved node."""

from collections import Counter
from math import inf

from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from policies.gavel.runnable_jobs import RunnableJobs
from policies.placement.free_capacity import Group
from policies.placement.from_snapshot import remaining_s
from policies.placement.gangs_over_nodes import place_gangs_over_nodes
from policies.placement.layout import DEVICES, Allocation, Part, members
from policies.placement.plan_builder import PlanBuilder

WHOLE = 1.0


class Draft:
    """Plan of jobs on one node each; devices are chosen when it is complete.

    So jobs that go on keep their devices. `placed`: by row; `seats`: of jobs on whole devices.
    """

    def __init__(self, snapshot: Snapshot, *, never_touch: bool) -> None:
        self.plan = PlanBuilder(snapshot, never_touch=never_touch)
        place_gangs_over_nodes(self.plan)
        self.jobs = RunnableJobs(self.plan)
        runs = self.jobs.runs
        self.seats = {
            row: seat for row, seat in self.jobs.seats.items() if runs[row].ranks[0].share == WHOLE
        }
        self.state = self.plan.state.copy()
        self.placed: dict[int, Allocation] = {}

    def time_s(self, row: int, gpus: int, node: int) -> float:
        """Return a job's time on GPUs of a node, with a launch unless it goes on; inf if never."""
        rate = self.jobs.rate(row, gpus, node)
        if rate <= 0.0:
            return inf
        launch_s = 0.0 if self.goes_on(row, gpus, node) else self.jobs.launch_s(row)
        return self.jobs.steps[row] / rate + launch_s

    def goes_on(self, row: int, gpus: int, node: int) -> bool:
        """Return True if a job has so many GPUs of this node now."""
        seat = self.seats.get(row)
        return seat is not None and (seat.node, seat.gpus) == (node, gpus)

    def place(self, row: int, gpus: int, only: int) -> bool:
        """Place a job on one of these nodes, in use and as full as can be; return if it fits."""
        request = self.jobs.request(row, gpus)
        found = self.state.find(request, self.jobs.nodes(row, gpus) & only, _fullest_first)
        if found is not None:
            self.state.take(found)
            self.placed[row] = found
        return found is not None

    def build(self, policy: str, value: float) -> Plan:
        """Return the plan, with devices for all: first for those that go on."""
        found = [(row, of.request, of.parts[0].node) for row, of in self.placed.items()]
        found.sort(key=lambda of: not self.goes_on(of[0], of[1].gpus, of[2]))
        for row, request, node in found:
            seat = self.jobs.seats.get(row)
            wanted = seat.devices if seat is not None and seat.node == node else 0
            devices = self.plan.state.devices(request, node, 1, wanted)
            allocation = Allocation(request, (Part(node, 1, devices),))
            self.plan.place(row, allocation, self.time_s(row, request.gpus, node))
        return self.plan.build(policy, value)


def _fullest_first(group: Group) -> tuple[float, ...]:
    return group.free == group.of_class.capacity, *group.free


class Gangs:
    """Gangs of a plan, placed before its other jobs on their part of the GPUs.

    `singles`: jobs that run on one GPU; `ends_s[n]`: seconds until taken devices of node n come
    free (inf: unknown). `closed`: the node (a set) reserved for a gang that starts there in
    `starts_s`.
    """

    def __init__(self, draft: Draft, *, closes_node: bool) -> None:
        self.draft, self.closes_node, jobs = draft, closes_node, draft.jobs
        self.singles = [row for row, least in jobs.least.items() if least == 1]
        gangs = [row for row, least in jobs.least.items() if least > 1]
        self.order = sorted(gangs, key=lambda row: (row not in draft.seats, jobs.arrival_s[row]))
        self.closed, self.starts_s = 0, inf
        plan, state = draft.plan, draft.state
        self.ends_s: list[list[float]] = [[] for _ in state.free]
        for stay in plan.pinned:
            left_s = remaining_s(plan.snapshot, plan.options.speeds, stay)
            for node, _, devices in stay.allocation.parts:
                self.ends_s[node] += [left_s] * devices.bit_count()
        self.ready_s = [
            sorted([0.0] * free[DEVICES] + ends)
            for free, ends in zip(state.free, self.ends_s, strict=True)
        ]
        """By node, when each device is there for the next gang, after those that wait for it."""
        running = [draft.seats[row].node for row in self.singles if row in draft.seats]
        self.singles_on = Counter(running)
        held = [sum(p.devices.bit_count() for p in of.allocation.parts) for of in plan.pinned]
        self.in_use = sum(gpus for gpus in held if gpus > 1)
        wanted = sum(jobs.least[row] for row in gangs) + self.in_use
        all_wanted = wanted + len(self.singles) + held.count(1)
        there = sum(state.free_gpus().values()) + sum(held)
        self.part = -(-there * wanted // max(all_wanted, 1))
        """GPUs that gangs have together at most, unless none has any."""

    def place(self) -> None:
        """Place running ones, then the others by arrival, each where it ends soonest.

        The first that would exceed their part ends this: overtaken, it might wait for ever.
        """
        while self.order and not (self.in_use and self._exceeds(self.order[0])):
            self._next()

    def fill(self) -> None:
        """Let gangs have leftover GPUs, up to the first that does not fit."""
        while self.order and self._next():
            pass

    def _exceeds(self, row: int) -> bool:
        more = self.in_use + self.draft.jobs.least[row]
        return row not in self.draft.seats and more > self.part

    def _next(self) -> bool:
        row = self.order.pop(0)
        seat = self.draft.seats.get(row)
        if seat is not None and self._take(row, seat.gpus, seat.node):
            return True
        return self._start_or_wait(row)

    def _start_or_wait(self, row: int) -> bool:
        """Place a gang where it ends soonest, or reserve that node; return True if it starts.

        A node that lacks only power or resources is not reserved: GPUs would idle for it.
        """
        gpus, state = self.draft.jobs.least[row], self.draft.state
        nodes = self.draft.jobs.nodes(row, gpus)
        fits = {n for n in members(nodes) if state.fits(self.draft.jobs.request(row, gpus), n)}
        best: tuple[float, int, int, int] | None = None
        for node in members(nodes):
            ready = self.ready_s[node]
            start_s = ready[gpus - 1] if gpus <= len(ready) else inf
            if start_s > 0.0 or node in fits:
                free = state.free[node][DEVICES]
                stopped = max(0, gpus - (free - self.singles_on[node]))
                end_s = start_s + self._time_s(row, gpus, node)
                best = min(best or (inf, 0, 0, 0), (end_s, stopped, free, node))
        if best is None or best[0] == inf:
            return False
        end_s, _, _, node = best
        start_s = self.ready_s[node][gpus - 1]
        if start_s <= 0.0:
            return self._take(row, gpus, node)
        self.ready_s[node] = sorted([*self.ready_s[node][gpus:], *([end_s] * gpus)])
        if self.starts_s == inf:
            self.starts_s = start_s
            self.closed = 1 << node if self.closes_node else 0
        return False

    def _take(self, row: int, gpus: int, node: int) -> bool:
        if not self.draft.place(row, gpus, 1 << node):
            return False
        self.in_use += gpus
        ends_s = [self._time_s(row, gpus, node)] * gpus
        self.ends_s[node] += ends_s
        self.ready_s[node] = sorted([*self.ready_s[node][gpus:], *ends_s])
        return True

    def _time_s(self, row: int, gpus: int, node: int) -> float:
        """Return a gang's time on a node: where it runs now, on its GPUs and without a launch."""
        seat = self.draft.seats.get(row)
        on_seat = seat is not None and seat.node == node
        return self.draft.time_s(row, seat.gpus if seat and on_seat else gpus, node)
