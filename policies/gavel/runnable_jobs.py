"""Jobs that a plan decides about: the GPUs of one node on which each can run, and its own."""

from typing import NamedTuple

from policies.contract.plan import training_run
from policies.contract.snapshot import Running
from policies.placement.layout import Request
from policies.placement.plan_builder import PlanBuilder


class Seat(NamedTuple):
    """Devices (a set) of a node on which a job runs now and may go on."""

    node: int
    devices: int

    @property
    def gpus(self) -> int:
        """Return the number of devices."""
        return self.devices.bit_count()


class RunnableJobs:
    """Jobs of a plan that can run on some node, by row.

    `least`: fewest GPUs on which a job can run; `runs`, `seats`: of running jobs.
    """

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan, self.layout = plan, plan.state.layout
        self.columns = plan.snapshot.jobs.columns
        decided, options = plan.decided, plan.options
        rows = [row for row in range(len(self.columns.ids)) if row not in decided]
        self.least = {row: min(o.gpus for o in options.of(row)) for row in rows if options.of(row)}
        self.steps: list[float] = self.columns.numbers["remaining_steps"].tolist()
        self.arrival_s: list[float] = self.columns.numbers["arrival_s"].tolist()
        self.runs: dict[int, Running] = {}
        self.seats: dict[int, Seat] = {}
        for row in self.least:
            self._find_seat(row)

    def nodes(self, row: int, gpus: int) -> int:
        """Return the open nodes on which a job could have `gpus` GPUs if empty."""
        return sum(o.nodes for o in self.plan.options.of(row) if o.gpus == gpus)

    def request(self, row: int, gpus: int) -> Request:
        """Return the request of so many GPUs of one node."""
        return next(o.request for o in self.plan.options.of(row) if o.gpus == gpus)

    def rate(self, row: int, gpus: int, node: int) -> float:
        """Return a job's steps/s alone on so many GPUs of a node; 0 if it cannot run there."""
        options = self.plan.options.of(row)
        found = (o.steps_per_s for o in options if o.gpus == gpus and o.nodes >> node & 1)
        return next(found, 0.0)

    def launch_s(self, row: int) -> float:
        """Return the seconds from a job's launch to its first step."""
        return self.plan.options.launch_times.of(row)

    def gpu_type(self, node: int) -> str:
        """Return the GPU type of a node."""
        return self.layout.classes[self.layout.class_of[node]].gpu_type

    def _find_seat(self, row: int) -> None:
        run = training_run(self.columns.others["running"][row])
        if run is None or run.copy != 0 or len(run.ranks) != 1:
            return
        rank = run.ranks[0]
        node = self.layout.index.get(rank.node, -1)
        if node < 0 or not self.nodes(row, len(rank.devices)) >> node & 1:
            return
        seat = Seat(node, self.layout.bits(node, rank.devices))
        if seat.gpus == len(rank.devices) and not seat.devices & ~self.plan.state.idle[node]:
            self.runs[row], self.seats[row] = run, seat
