"""Waiting jobs that a dispatcher considers, by priority, and where each may run."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from policies.batch.plan import BatchPlan, Choice
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Allocation, Request, Span, members

SHORTEST_S = 1.0
LONGEST_S = 1e7
"""Run time (s) of a job for which none is told; longer ones are cut to it."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """Waiting job i: rn_i units of `choice.request` on `nodes` (a set).

    `waited_s` = t - q_i; `weight` of its slowdown: 2^priority. `fits_now`: alone, beside what runs.
    `whole_nodes`: nodes that an exclusive job has for itself; 0: it shares nodes.
    """

    row: int
    choice: Choice
    nodes: int
    waited_s: float
    weight: float
    fits_now: bool
    whole_nodes: int = 0

    @property
    def request(self) -> Request:
        return self.choice.request

    @property
    def run_s(self) -> float:
        """Return d_i in seconds."""
        return limited_s(self.choice.run_s)

    @property
    def slowdown(self) -> float:
        """Slowdown now, (t - q_i + d_i) / d_i: the job's priority."""
        return (self.waited_s + self.run_s) / self.run_s


class Candidates:
    """Waiting jobs that fit on the cluster once all running jobs have ended (`released`)."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan, self.columns = plan, plan.columns
        self.released = plan.state.copy()
        for stay in plan.plan.pinned:
            self.released.release(stay.allocation, stay.row)

    def considered(self, window: int) -> list[WaitingJob]:
        """Return the jobs of greatest priority, at most `window`, the first first."""
        found: list[WaitingJob] = []
        for row in self.plan.sorted_by("slowdown", self.plan.eligible()):
            if len(found) == window:
                break
            if (job := self._job(row)) is not None:
                found.append(job)
        return found

    def _job(self, row: int) -> WaitingJob | None:
        """Return the job in the first of its configurations that fits now, else ever."""
        for state, fits_now in ((self.plan.state, True), (self.released, False)):
            for choice in self.plan.choices(row):
                if (found := self.plan.find(row, choice, state)) is not None:
                    return self._described(row, choice, found, fits_now=fits_now)
        return None

    def _described(
        self, row: int, choice: Choice, found: Allocation, *, fits_now: bool
    ) -> WaitingJob | None:
        nodes, whole = self._admitted(choice, found), 0
        if self.plan.is_alone(row):
            if (alone := whole_nodes(self.released, choice.request, nodes)) is None:
                return None
            whole, nodes = alone
        arrival_s, priority = (
            float(self.columns.numbers["arrival_s"][row]),
            float(self.columns.counts["priority"][row]),
        )
        waited_s = max(0.0, self.plan.view.now_s - arrival_s)
        return WaitingJob(row, choice, nodes, waited_s, 2.0**priority, fits_now, whole)

    def _admitted(self, choice: Choice, found: Allocation) -> int:
        """Return the nodes that may take units; of one GPU type where a job may not mix them."""
        layout = self.released.layout
        classes, nodes = layout.admitting(choice.request)
        if choice.request.span is Span.ONE_TYPE:
            of_type = layout.classes[layout.class_of[found.parts[0].node]].gpu_type
            classes = [c for c in classes if layout.classes[c].gpu_type == of_type]
        allowed = nodes & choice.nodes & self.released.open
        return sum(layout.members[c] for c in classes) & allowed


def limited_s(run_s: float) -> float:
    """Return the run time within what the models reckon with."""
    return min(max(run_s, SHORTEST_S), LONGEST_S)


def whole_nodes(state: ClusterState, request: Request, nodes: int) -> tuple[int, int] | None:
    """Return (number, suitable nodes) that an exclusive job needs; None if there are too few.

    The number is the least for which enough nodes take equal parts of the units.
    """
    fit = {n: request.fitting(state.free[n]) for n in members(nodes)}
    numbers = [request.nodes] if request.nodes else range(1, request.units + 1)
    for number in numbers:
        each = ceil(request.units / number)
        suitable = [n for n, units in fit.items() if units >= each]
        if len(suitable) >= number:
            return number, sum(1 << n for n in suitable)
    return None
