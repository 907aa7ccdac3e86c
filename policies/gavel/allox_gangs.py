"""AlloX's plan in the making, and its gangs: their part of the GPUs, and the reserved node."""

from collections import Counter
from math import inf

from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from policies.gavel.runnable_jobs import RunnableJobs, Seat
from policies.placement.free_capacity import Group
from policies.placement.from_snapshot import remaining_s
from policies.placement.gangs_over_nodes import place_gangs_over_nodes
from policies.placement.layout import DEVICES, Allocation, DeviceSet, NodeSet, Part, members
from policies.placement.plan_builder import PlanBuilder

WHOLE = 1.0
"""Share of a device that a job has alone."""


class Draft:
    """Plan of jobs on one node each; devices are chosen when it is complete.

    So jobs that go on keep their devices. `placed`: by row. `seats`: by row, where jobs run now on
    whole devices. `state`: what the jobs placed so far leave.
    """

    def __init__(self, snapshot: Snapshot, *, never_touch: bool) -> None:
        self.plan = PlanBuilder(snapshot, never_touch=never_touch)
        place_gangs_over_nodes(self.plan)
        self.jobs = RunnableJobs(self.plan)
        self.seats: dict[int, Seat] = {}
        for row, seat in self.jobs.seats.items():
            if self.jobs.runs[row].ranks[0].share == WHOLE:
                self.seats[row] = seat
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

    def place(self, row: int, gpus: int, within: NodeSet) -> bool:
        """Place a job on one of these nodes, in use and as full as can be; return if it fits."""
        request = self.jobs.request(row, gpus)
        nodes = self.jobs.nodes(row, gpus) & within
        allocation = self.state.find(request, nodes, _fullest_first)
        if allocation is None:
            return False
        self.state.take(allocation)
        self.placed[row] = allocation
        return True

    def build(self, policy: str, value: float) -> Plan:
        """Return the plan; its objective is `value`."""
        # 1. Jobs that go on first, while their devices are free.
        going_on: list[int] = []
        others: list[int] = []
        for row, (request, parts) in self.placed.items():
            if self.goes_on(row, request.gpus, parts[0].node):
                going_on.append(row)
            else:
                others.append(row)

        # 2. The devices of each, those first that it has now.
        for row in (*going_on, *others):
            request, parts = self.placed[row]
            node = parts[0].node
            own: DeviceSet = 0
            seat = self.jobs.seats.get(row)
            if seat is not None and seat.node == node:
                own = seat.devices
            devices = self.plan.state.devices(request, node, 1, own)
            allocation = Allocation(request, (Part(node, 1, devices),))
            self.plan.place(row, allocation, self.time_s(row, request.gpus, node))
        return self.plan.build(policy, value)


def _fullest_first(group: Group) -> tuple[float, ...]:
    """Return the sort key of nodes: those in use first, then those with little free capacity."""
    is_empty = group.free == group.of_class.capacity
    return is_empty, *group.free


class Gangs:
    """Gangs of a plan, placed before its other jobs on their part of the GPUs.

    `singles`: rows of jobs that can run on one GPU. `queue`: rows of gangs not yet looked at,
    running ones first. `in_use`: GPUs of placed gangs. `part`: most GPUs for gangs; one gang may
    exceed it.

    By node: `ends_s`: seconds until each of its taken devices comes free (inf: unknown). `ready_s`:
    seconds, rising, until each device is there for the next gang, after those that wait for it.
    `singles_on`: number of jobs of one GPU that run there now.

    `closed`: the node that is reserved for a gang, which starts there in `starts_s` seconds.
    """

    def __init__(self, draft: Draft, *, closes_node: bool) -> None:
        """`closes_node`: no other job starts on the reserved node."""
        self.draft = draft
        self.closes_node = closes_node
        jobs = draft.jobs
        plan = draft.plan
        self.closed: NodeSet = 0
        self.starts_s = inf

        # 1. Jobs of one GPU; gangs by arrival, running ones first.
        self.singles = [row for row, least in jobs.least.items() if least == 1]
        gangs = [row for row, least in jobs.least.items() if least > 1]
        self.queue = sorted(gangs, key=lambda row: (row not in draft.seats, jobs.arrival_s[row]))
        running = [draft.seats[row].node for row in self.singles if row in draft.seats]
        self.singles_on = Counter(running)

        # 2. When devices come free, and the GPUs of jobs that stay.
        free_gpus = [free[DEVICES] for free in draft.state.free]
        self.ends_s: list[list[float]] = [[] for _ in free_gpus]
        gpus_of_staying = []
        for stay in plan.pinned:
            left_s = remaining_s(plan.snapshot, plan.options.speeds, stay)
            gpus = 0
            for node, _, devices in stay.allocation.parts:
                self.ends_s[node] += [left_s] * devices.bit_count()
                gpus += devices.bit_count()
            gpus_of_staying.append(gpus)
        self.ready_s = []
        for gpus, ends_s in zip(free_gpus, self.ends_s, strict=True):
            self.ready_s.append(sorted([0.0] * gpus + ends_s))

        # 3. The part of gangs: all GPUs x GPUs wanted by gangs / GPUs wanted by all, rounded up.
        self.in_use = sum(gpus for gpus in gpus_of_staying if gpus > 1)
        wanted_by_gangs = sum(jobs.least[row] for row in gangs) + self.in_use
        wanted_by_singles = len(self.singles) + gpus_of_staying.count(1)
        all_gpus = sum(draft.state.free_gpus().values()) + sum(gpus_of_staying)
        wanted = max(wanted_by_gangs + wanted_by_singles, 1)
        self.part = (all_gpus * wanted_by_gangs + wanted - 1) // wanted

    def start(self) -> None:
        """Let running gangs go on and start the others by arrival, each where it ends soonest.

        The first that would exceed the gangs' part ends this: overtaken, it might wait for ever.
        """
        while self.queue and not (self.in_use and self._exceeds(self.queue[0])):
            self._place_next()

    def fill(self) -> None:
        """Start gangs on GPUs that are left over, up to the first gang that does not fit."""
        while self.queue and self._place_next():
            pass

    def _exceeds(self, row: int) -> bool:
        """Return True if a gang that does not run yet would exceed the part of gangs."""
        more = self.in_use + self.draft.jobs.least[row]
        return row not in self.draft.seats and more > self.part

    def _place_next(self) -> bool:
        """Place the next gang, where it runs if possible; return if it was placed."""
        row = self.queue.pop(0)
        seat = self.draft.seats.get(row)
        if seat is not None and self._take(row, seat.gpus, seat.node):
            return True
        return self._start_or_wait(row)

    def _start_or_wait(self, row: int) -> bool:
        """Place a gang where it ends soonest, or reserve that node; return True if it starts.

        A node that lacks only power or resources is not reserved: GPUs would idle for it.
        """
        # 1. The node where it ends soonest. Of equals the one where it stops the fewest jobs of one
        #    GPU, then the one with the fewest free GPUs.
        gpus = self.draft.jobs.least[row]
        state = self.draft.state
        request = self.draft.jobs.request(row, gpus)
        candidates: list[tuple[float, int, int, int]] = []
        for node in members(self.draft.jobs.nodes(row, gpus)):
            start_s = self._start_s(node, gpus)
            if start_s <= 0.0 and not state.fits(request, node):
                continue
            end_s = start_s + self._time_s(row, gpus, node)
            free_gpus = state.free[node][DEVICES]
            stopped = max(0, gpus - (free_gpus - self.singles_on[node]))
            if end_s < inf:
                candidates.append((end_s, stopped, free_gpus, node))
        if not candidates:
            return False

        # 2. Start it there, or reserve the node. Only the first reservation closes its node.
        end_s, _, _, node = min(candidates)
        start_s = self._start_s(node, gpus)
        if start_s <= 0.0:
            return self._take(row, gpus, node)
        self._hold_until(end_s, gpus, node)
        if self.starts_s == inf:
            self.starts_s = start_s
            self.closed = 1 << node if self.closes_node else 0
        return False

    def _start_s(self, node: int, gpus: int) -> float:
        """Return the seconds until so many devices of a node are there; inf if never."""
        ready_s = self.ready_s[node]
        return ready_s[gpus - 1] if gpus <= len(ready_s) else inf

    def _hold_until(self, end_s: float, gpus: int, node: int) -> None:
        """Let so many devices of a node, the first to be there, be held until `end_s`."""
        self.ready_s[node] = sorted([*self.ready_s[node][gpus:], *([end_s] * gpus)])

    def _take(self, row: int, gpus: int, node: int) -> bool:
        """Place a gang on a node; return if it fits."""
        if not self.draft.place(row, gpus, 1 << node):
            return False
        self.in_use += gpus
        end_s = self._time_s(row, gpus, node)
        self.ends_s[node] += [end_s] * gpus
        self._hold_until(end_s, gpus, node)
        return True

    def _time_s(self, row: int, gpus: int, node: int) -> float:
        """Return a gang's time on a node: where it runs now, on its GPUs and without a launch."""
        seat = self.draft.seats.get(row)
        if seat is not None and seat.node == node:
            gpus = seat.gpus
        return self.draft.time_s(row, gpus, node)
