"""Waiting jobs that a dispatcher considers, by priority, and where each may run."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from policies.batch.plan import BatchPlan, Choice
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Allocation, NodeSet, Request, Span, members

SHORTEST_S = 1.0
"""Least run time in a model, in seconds."""

LONGEST_S = 1e7
"""Longest run time in a model, in seconds, and that of a job without a prediction."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """Waiting job i: rn_i units of `choice.request`; `nodes` may take them.

    `waited_s` = t - q_i; `weight` of its slowdown: 2^priority. `fits_now`: alone, beside what runs.
    `whole_nodes`: number of nodes that an exclusive job has to itself; 0: it shares nodes.
    """

    row: int
    choice: Choice
    nodes: NodeSet
    waited_s: float
    weight: float
    fits_now: bool
    whole_nodes: int = 0

    @property
    def request(self) -> Request:
        """Request of its units."""
        return self.choice.request

    @property
    def run_s(self) -> float:
        """Run time d_i in seconds."""
        return limited_s(self.choice.run_s)

    @property
    def slowdown(self) -> float:
        """Slowdown now, (t - q_i + d_i) / d_i: the job's priority."""
        return (self.waited_s + self.run_s) / self.run_s


class Candidates:
    """Waiting jobs that fit on the cluster once all running jobs have ended (`released`)."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.columns = plan.columns
        self.released = plan.state.copy()
        for stay in plan.builder.pinned:
            self.released.release(stay.allocation, stay.row)

    def considered(self, window: int) -> list[WaitingJob]:
        """Return the jobs of greatest priority, at most `window`, the first first."""
        jobs: list[WaitingJob] = []
        for row in self.plan.sorted_by("slowdown", self.plan.eligible()):
            if len(jobs) == window:
                break
            job = self._job(row)
            if job is not None:
                jobs.append(job)
        return jobs

    def _job(self, row: int) -> WaitingJob | None:
        """Return the job with the first of its choices that fits now, else with one that ever does.

        None if it never fits.
        """
        for state, fits_now in ((self.plan.state, True), (self.released, False)):
            for choice in self.plan.choices(row):
                allocation = self.plan.find(row, choice, state)
                if allocation is not None:
                    return self._with_choice(row, choice, allocation, fits_now=fits_now)
        return None

    def _with_choice(
        self, row: int, choice: Choice, allocation: Allocation, *, fits_now: bool
    ) -> WaitingJob | None:
        """Return the job with a choice; None if there are too few nodes for an exclusive one."""
        # 1. Its nodes.
        nodes = self._admitted(choice, allocation)
        number_of_whole_nodes = 0
        if self.plan.is_alone(row):
            whole = whole_nodes(self.released, choice.request, nodes)
            if whole is None:
                return None
            number_of_whole_nodes, nodes = whole

        # 2. Its wait and weight.
        arrival_s = float(self.columns.numbers["arrival_s"][row])
        waited_s = max(0.0, self.plan.view.now_s - arrival_s)
        weight = 2.0 ** float(self.columns.counts["priority"][row])
        return WaitingJob(row, choice, nodes, waited_s, weight, fits_now, number_of_whole_nodes)

    def _admitted(self, choice: Choice, allocation: Allocation) -> NodeSet:
        """Return the nodes that may take units.

        Where a job may not mix GPU types, those of the type of its allocation.
        """
        layout = self.released.layout
        classes, allowed = layout.admitting(choice.request)
        first_node = allocation.parts[0].node
        only_type = layout.classes[layout.class_of[first_node]].gpu_type
        admitted: NodeSet = 0
        for c in classes:
            if choice.request.span is Span.ONE_TYPE and layout.classes[c].gpu_type != only_type:
                continue
            admitted |= layout.members[c]
        return admitted & allowed & choice.nodes & self.released.open


def limited_s(run_s: float) -> float:
    """Return a run time (s) within the limits of the models."""
    return min(max(run_s, SHORTEST_S), LONGEST_S)


def whole_nodes(
    state: ClusterState, request: Request, nodes: NodeSet
) -> tuple[int, NodeSet] | None:
    """Return (number, suitable nodes) that an exclusive job needs; None if there are too few.

    The number is the least for which enough nodes take equal parts of the units.
    """
    fitting = {n: request.fitting(state.free[n]) for n in members(nodes)}
    numbers = [request.nodes] if request.nodes else range(1, request.units + 1)
    for number in numbers:
        each = ceil(request.units / number)
        suitable = [n for n, units in fitting.items() if units >= each]
        if len(suitable) >= number:
            return number, sum(1 << n for n in suitable)
    return None
