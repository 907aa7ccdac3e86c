"""Waiting jobs that a dispatcher considers, by priority, and where each may run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

from policies.batch.plan import BatchPlan
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import EVERY, Request, Span, members

SHORTEST_S = 1.0
LONGEST_S = 1e7
"""Run time (s) of a job for which none is told; longer ones are cut to it."""

Option: TypeAlias = tuple[Request, int, float]
"""(request, nodes, run time in s) of a configuration of a job."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """Waiting job i: rn_i units of `request` on `nodes` (a set).

    `told_s`: its run time, inf if unknown; `waited_s` = t - q_i; `weight` of its slowdown:
    2^priority. `fits_now`: alone, beside what runs. `whole_nodes`: nodes that an exclusive job has
    for itself; 0: it shares nodes.
    """

    row: int
    request: Request
    nodes: int
    told_s: float
    waited_s: float
    weight: float
    fits_now: bool
    whole_nodes: int = 0

    @property
    def run_s(self) -> float:
        """Return d_i in seconds."""
        return limited_s(self.told_s)

    @property
    def slowdown(self) -> float:
        """Slowdown now, (t - q_i + d_i) / d_i: the job's priority."""
        return (self.waited_s + self.run_s) / self.run_s


class Queue:
    """Waiting jobs of a plan that fit on the cluster once all running jobs have ended."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan, self.columns = plan, plan.columns
        self.released = released(plan)

    def considered(self, window: int) -> list[WaitingJob]:
        """Return the jobs of greatest priority, at most `window`, the first first."""
        plan = self.plan
        placed, known = plan.placed, enumerate(self.columns.ids)
        rows = [
            row for row, job in known if job not in placed and row not in plan.plan.not_eligible
        ]
        found: list[WaitingJob] = []
        for row in sorted(rows, key=self._turn):
            if len(found) == window:
                break
            if (job := self._job(row)) is not None:
                found.append(job)
        return found

    def _turn(self, row: int) -> tuple[float, float, float, int]:
        run_s = self._run_s(row)
        slowdown = (self._waited_s(row) + run_s) / run_s
        arrival_s = float(self.columns.numbers["arrival_s"][row])
        return -float(self.columns.counts["priority"][row]), -slowdown, arrival_s, row

    def _run_s(self, row: int) -> float:
        if row in self.plan.queued:
            return limited_s(self.plan.run_s(row))
        return limited_s(next((run_s for _, run_s in self.plan.plan.options.ranked(row)), inf))

    def _waited_s(self, row: int) -> float:
        return max(0.0, self.plan.view.now_s - float(self.columns.numbers["arrival_s"][row]))

    def _job(self, row: int) -> WaitingJob | None:
        """Return the job in the first of its configurations that fits now, else ever."""
        options, beside = self._options(row), self.plan.nodes(row)
        now = next((o for o in options if self._fits(self.plan.state, o, beside)), None)
        option = now or next((o for o in options if self._fits(self.released, o)), None)
        if option is None:
            return None
        request, nodes, run_s = option
        state = self.plan.state if now else self.released
        nodes = self._admitted(request, nodes, state)
        whole = 0
        if self.columns.others["exclusive"][row]:
            if (alone := whole_nodes(self.released, request, nodes)) is None:
                return None
            whole, nodes = alone
        weight = 2.0 ** float(self.columns.counts["priority"][row])
        waited_s = self._waited_s(row)
        fits_now = now is not None
        return WaitingJob(row, request, nodes, run_s, waited_s, weight, fits_now, whole)

    def _options(self, row: int) -> Sequence[Option]:
        """Return (request, nodes, run time) of a job, the preferred first."""
        if row in self.plan.queued:
            return [(self.plan.request(row), EVERY, self.plan.run_s(row))]
        ranked = self.plan.plan.options.ranked(row)
        return [(option.request, option.nodes, run_s) for option, run_s in ranked]

    def _fits(self, state: ClusterState, option: Option, beside: int = EVERY) -> bool:
        return state.find(option[0], option[1] & beside) is not None

    def _admitted(self, request: Request, only: int, state: ClusterState) -> int:
        """Return the nodes that may take units; of one GPU type where a job may not mix them."""
        layout = state.layout
        classes, nodes = layout.admitting(request)
        if request.span is Span.ONE_TYPE and (found := state.find(request, only)) is not None:
            of_type = layout.classes[layout.class_of[found.parts[0].node]].gpu_type
            classes = [c for c in classes if layout.classes[c].gpu_type == of_type]
        return sum(layout.members[c] for c in classes) & nodes & only & self.released.open


def limited_s(run_s: float) -> float:
    """Return the run time within what the models reckon with."""
    return min(max(run_s, SHORTEST_S), LONGEST_S)


def released(plan: BatchPlan) -> ClusterState:
    """Return the state in which all jobs that run now have ended."""
    state = plan.state.copy()
    for stay in plan.plan.pinned:
        state.release(stay.allocation)
    state.open = EVERY
    for n, node in enumerate(plan.view.nodes):
        if not node.takes_training:
            state.close(n)
    return state


def whole_nodes(state: ClusterState, request: Request, nodes: int) -> tuple[int, int] | None:
    """Return (number, suitable nodes) that an exclusive job needs; None if there are too few.

    The number is the least for which enough nodes take equal parts of the units.
    """
    open_nodes = list(members(nodes & state.open & ((1 << len(state.free)) - 1)))
    fit = {n: request.fitting(state.free[n]) for n in open_nodes}
    numbers = [request.nodes] if request.nodes else range(1, request.units + 1)
    for number in numbers:
        each = ceil(request.units / number)
        suitable = [n for n, units in fit.items() if units >= each]
        if len(suitable) >= number:
            return number, sum(1 << n for n in suitable)
    return None
