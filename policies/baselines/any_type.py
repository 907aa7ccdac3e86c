"""GPUs for a job in policies to which all GPU types look alike."""

from __future__ import annotations

from typing import NamedTuple

from policies.contract.plan import Running, training_run
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import may_stay
from policies.placement.layout import Allocation, NodeSet, Request, lowest
from policies.placement.plan_builder import PlanBuilder
from policies.placement.priced_options import GroupingKey


class Choice(NamedTuple):
    """Request of a job's least GPUs, and the nodes on which it may be."""

    request: Request
    nodes: NodeSet


class AnyType:
    """Finder of GPUs for jobs of a plan: on one node by best fit, else over nodes of one type.

    Speeds decide nothing, but a job has no GPUs on which its speed is not known. An elastic gang
    has its least number of GPUs.
    """

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan = plan
        self._choices: dict[GroupingKey, list[Choice]] = {}

    def find(self, state: ClusterState, row: int) -> Allocation | None:
        """Return GPUs for a job in this state; None if it has no room."""
        for choice in self._of(row):
            found = state.find(choice.request, choice.nodes)
            if found is not None:
                return found
        return None

    def could_run(self, row: int) -> bool:
        """Return True if open nodes could hold a job, were they empty."""
        return bool(self._of(row))

    def where_it_runs(self, row: int) -> Allocation | None:
        """Return the allocation of a running job that may stay; None if it does not run so."""
        snapshot = self.plan.snapshot
        run = training_run(snapshot.jobs.columns.others["running"][row])
        if run is None or run.copy != 0 or not run.is_whole or not may_stay(snapshot, row, run):
            return None
        if any(not snapshot.node_by_id[seat.node].takes_training for seat in run.ranks):
            return None
        if self._speed(row, run) <= 0.0:
            return None
        return self.plan.options.requests.allocation_of(row, run)

    def place(self, row: int, allocation: Allocation) -> None:
        """Take an allocation for a job that starts or moves there."""
        layout = self.plan.state.layout
        types = {layout.nodes[part.node].gpu_type for part in allocation.parts}
        gpus = sum(part.devices.bit_count() for part in allocation.parts)
        kind = self.plan.snapshot.jobs.columns.kinds[row]
        is_spread = len(allocation.parts) > 1
        speed = self.plan.options.speeds.alone(kind, types, gpus, spread=is_spread)
        steps = float(self.plan.snapshot.jobs.columns.numbers["remaining_steps"][row])
        run_s = steps / speed + self.plan.options.launch_times.of(row)
        self.plan.place(row, allocation, run_s)

    def stay(self, row: int, allocation: Allocation) -> None:
        """Let a running job go on where it is."""
        run = training_run(self.plan.snapshot.jobs.columns.others["running"][row])
        if run is not None:
            self.plan.place(row, allocation, self.plan.run_remaining_s(row, run, allocation))

    def _speed(self, row: int, run: Running) -> float:
        kind = self.plan.snapshot.jobs.columns.kinds[row]
        return self.plan.options.speeds.on_ranks(kind, run.ranks, self.plan.snapshot.node_by_id)

    def _of(self, row: int) -> list[Choice]:
        """Return the requests of a job, on one node first."""
        key = self.plan.options.keys[row]
        if key not in self._choices:
            self._choices[key] = self._make(row)
        return self._choices[key]

    def _make(self, row: int) -> list[Choice]:
        """Return the requests of a job, as `_of`, without looking them up."""
        # 1. One node, of any type on which the speed is known.
        options = self.plan.options
        columns = self.plan.snapshot.jobs.columns
        least = int(columns.counts["gpus_min"][row])
        on_one_node: NodeSet = 0
        choices: list[Choice] = []
        for option in options.within(self.plan.state.cap_mw, row):
            if option.gpus == least:
                on_one_node |= option.nodes
                choices = [Choice(option.request, on_one_node)]
        if least < 2:
            return choices

        # 2. Nodes of one type, or of several for a job that may mix them.
        spread = [option for option in options.spread(row) if option.gpus == least]
        spread.sort(key=lambda option: lowest(option.nodes))
        is_wide = options.requests.is_wide(row)
        for option in spread:
            types = option.request.types
            if is_wide or options.speeds.alone(columns.kinds[row], types, least) > 0.0:
                choices.append(Choice(option.request, option.nodes))
                continue
            # The request could be met by one node, on which the speed is not known.
            for request in options.requests.spread(row, least, types):
                choices.append(Choice(request, option.nodes))
        return choices
