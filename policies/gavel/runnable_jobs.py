"""Jobs that a plan decides about: the nodes on which each can run, and where it runs now."""

from typing import NamedTuple

from policies.contract.plan import training_run
from policies.contract.snapshot import Running
from policies.placement.layout import DeviceSet, NodeSet, Request
from policies.placement.plan_builder import PlanBuilder


class Seat(NamedTuple):
    """Devices of a node on which a job runs now and may go on."""

    node: int
    devices: DeviceSet

    @property
    def gpus(self) -> int:
        """Return the number of devices."""
        return self.devices.bit_count()


class RunnableJobs:
    """Jobs of a plan that can run on one node, by row of the snapshot.

    `least`: fewest GPUs on which each can run; `steps`: left to it. Of running jobs that may go on
    where they are: `runs`, and `seats`.
    """

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan = plan
        self.layout = plan.state.layout
        self.columns = plan.snapshot.jobs.columns
        decided = plan.decided
        self.least: dict[int, int] = {}
        for row in range(len(self.columns.ids)):
            if row in decided:
                continue
            options = plan.options.of(row)
            if options:
                self.least[row] = min(option.gpus for option in options)
        self.steps: list[float] = self.columns.numbers["remaining_steps"].tolist()
        self.arrival_s: list[float] = self.columns.numbers["arrival_s"].tolist()
        self.runs: dict[int, Running] = {}
        self.seats: dict[int, Seat] = {}
        for row in self.least:
            self._find_seat(row)

    def nodes(self, row: int, gpus: int) -> NodeSet:
        """Return the open nodes on which a job could have `gpus` GPUs if empty."""
        # Options of equal GPUs have no node in common: the sum of their sets is the union.
        options = self.plan.options.of(row)
        return sum(option.nodes for option in options if option.gpus == gpus)

    def request(self, row: int, gpus: int) -> Request:
        """Return the request of so many GPUs of one node. Raises StopIteration if it has none."""
        options = self.plan.options.of(row)
        return next(option.request for option in options if option.gpus == gpus)

    def rate(self, row: int, gpus: int, node: int) -> float:
        """Return a job's steps/s alone on so many GPUs of a node; 0 if it cannot run there."""
        for option in self.plan.options.of(row):
            if option.gpus == gpus and option.nodes >> node & 1:
                return option.steps_per_s
        return 0.0

    def launch_s(self, row: int) -> float:
        """Return the seconds from a job's launch to its first step."""
        return self.plan.options.launch_times.of(row)

    def gpu_type(self, node: int) -> str:
        """Return the GPU type of a node."""
        return self.layout.classes[self.layout.class_of[node]].gpu_type

    def _find_seat(self, row: int) -> None:
        """Note a job's run and seat if it runs on one node and may go on there."""
        run = training_run(self.columns.others["running"][row])
        if run is None or run.copy != 0 or len(run.ranks) != 1:
            return
        rank = run.ranks[0]
        node = self.layout.index.get(rank.node, -1)
        if node < 0 or not self.nodes(row, len(rank.devices)) >> node & 1:
            return
        seat = Seat(node, self.layout.bits(node, rank.devices))
        if seat.gpus == len(rank.devices) and not seat.devices & ~self.plan.state.idle[node]:
            self.runs[row] = run
            self.seats[row] = seat
