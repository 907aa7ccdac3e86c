"""Decision of a dispatcher by constraint programming: consider, solve, replay, dispatch.

Only jobs whose start is t are dispatched. Each is placed on its nodes again, job by job by
priority, with the state of the cluster that all policies use: real capacities, devices and the
power cap. One that does not fit there is not dispatched, and counted. A decision without an answer
within its budget keeps what runs, and is counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from policies.batch.backfilling import built
from policies.batch.cp.instance import Instance, Job, instance_of
from policies.batch.cp.waiting import Candidates, WaitingJob
from policies.batch.fit import NODE_ORDERS, with_node_order
from policies.batch.plan import BatchPlan
from policies.contract.plan import LAST_S, Expected, Plan, PlanStatus
from policies.contract.policy import SolverFailedError, parameter
from policies.contract.snapshot import Snapshot
from policies.placement.layout import Allocation
from policies.placement.plan_builder import NO_STARTS
from policies.placement.timeline import vacant

KEPT, REFUSED = "decisions_without_answer", "refused_at_the_nodes"
"""Counts in a plan's memory."""


def budget(default: float) -> Any:
    """Parameter of a budget of work."""
    meaning = "CP-SAT's deterministic time for a decision, about seconds on a fast core"
    return parameter(default, meaning, minimum=0.001, maximum=3600.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """Starts in grid units from now, by job of the instance, and units by node where allocated."""

    starts: tuple[int, ...]
    nodes: tuple[Mapping[int, int] | None, ...]
    status: PlanStatus
    objective: float
    bound: float
    work: float
    """Deterministic time used."""

    @property
    def message(self) -> str:
        """Message of the plan."""
        return f"{len(self.starts)} jobs considered, deterministic time {self.work:.2g}"


@dataclass(frozen=True, slots=True)
class Dispatcher(ABC):
    """Dispatcher by constraint programming; started jobs are never touched."""

    places_batch: ClassVar[bool] = True
    name: ClassVar[str]

    window: int = parameter(
        100,
        "most waiting jobs considered: those with the greatest slowdown now",
        minimum=1,
        maximum=10_000,
    )
    budget: float = budget(0.3)
    grid_s: float = parameter(
        10.0,
        "unit of time of the model in seconds; run times are rounded up to it",
        minimum=0.1,
        maximum=3600.0,
    )
    hint: bool = parameter(
        True,
        "begin with a list schedule: the job of greatest slowdown first, at its earliest start",
    )
    node_order: str = parameter(
        "given",
        "order of the cluster's nodes: of equally good positions the last one is taken",
        choices=NODE_ORDERS,
    )

    @abstractmethod
    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        """Return starts and nodes. Raises SolverFailedError without an answer in the budget."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Dispatch the jobs that start now in the best schedule found within the budget."""
        # 1. Consider the jobs of greatest slowdown.
        ordered = with_node_order(snapshot, self.node_order)
        plan = BatchPlan(ordered, range(len(snapshot.jobs)), ())
        candidates = Candidates(plan)
        jobs = candidates.considered(self.window)
        counts = Counts.of(snapshot)

        # 2. Two cases that need no solver.
        if not any(job.fits_now for job in jobs):
            return self._built(plan, PlanStatus.OPTIMAL, counts, "no waiting job fits now")
        if _all_start(plan, jobs):
            return self._built(plan, PlanStatus.OPTIMAL, counts, "all jobs considered start")

        # 3. Solve; without an answer nothing starts.
        instance = instance_of(candidates, jobs, self.grid_s)
        try:
            decision = self.decide(instance, plan)
        except SolverFailedError as error:
            counts = replace(counts, without_answer=counts.without_answer + 1)
            return self._built(plan, PlanStatus.KEPT, counts, f"kept running jobs only: {error}")

        # 4. Replay and dispatch. Without the refused jobs the schedule is optimal no more.
        refused = dispatch(plan, instance, decision)
        counts = replace(counts, refused=counts.refused + len(refused))
        status = decision.status
        if refused and status is PlanStatus.OPTIMAL:
            status = PlanStatus.FEASIBLE
        starts = dict(expected_starts(plan, instance, decision))
        finished = self._built(plan, status, counts, decision.message, starts)
        return replace(finished, objective=decision.objective, bound=decision.bound)

    def _built(
        self,
        plan: BatchPlan,
        status: PlanStatus,
        counts: Counts,
        message: str,
        expected: Mapping[int, Expected] = NO_STARTS,
    ) -> Plan:
        """Return the finished plan, with the counts in its message and memory."""
        finished = built(self.name, plan, expected, counts.memory)
        return replace(finished, status=status, message=f"{message}; {counts.words}")


@dataclass(frozen=True, slots=True)
class Counts:
    """Decisions without an answer, and jobs refused at the nodes, since the policy began."""

    without_answer: int = 0
    refused: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot) -> Counts:
        """Return the counts in the previous plan's memory; 0 where there are none."""
        return cls(_count(snapshot.memory.get(KEPT)), _count(snapshot.memory.get(REFUSED)))

    @property
    def memory(self) -> dict[str, int]:
        """Memory of the plan."""
        return {KEPT: self.without_answer, REFUSED: self.refused}

    @property
    def words(self) -> str:
        """Counts in words."""
        return f"{self.without_answer} decisions without answer, {self.refused} jobs refused so far"


def _count(value: object) -> int:
    """Return a value of a plan's memory if it is a count, else 0."""
    return value if type(value) is int and value >= 0 else 0


def dispatch(plan: BatchPlan, instance: Instance, decision: Decision) -> list[int]:
    """Place the jobs that start now on their nodes; return those that do not fit there.

    A job that asks for nothing may have no nodes: it takes what the others leave.
    """
    refused = []
    starting = [i for i, start in enumerate(decision.starts) if start <= 0]
    starting.sort(key=lambda i: decision.nodes[i] is None)
    for i in starting:
        job = instance.jobs[i]
        allocation = allocation_at(plan, job, decision.nodes[i])
        if allocation is None:
            refused.append(i)
        else:
            plan.take(job.source.row, allocation, job.source.choice.run_s)
    return refused


def allocation_at(plan: BatchPlan, job: Job, units: Mapping[int, int] | None) -> Allocation | None:
    """Return a job's units on these nodes, on any if None; None if they do not fit there now.

    `units`: number of units by node.
    """
    source = job.source
    state = plan.state
    if units is None:
        return plan.find(source.row, source.choice, within=source.nodes)
    allowed = source.nodes & state.open
    if job.is_exclusive:
        # In the model a unit of such a job is a whole node.
        units = _in_equal_parts(source.request.units, list(units))
        allowed &= vacant(state)
    if any(not allowed >> n & 1 for n in units):
        return None
    return state.place(source.request, units.items())


def _in_equal_parts(units: int, nodes: Sequence[int]) -> Mapping[int, int]:
    """Return units by node, as equal as can be: the first nodes have one more."""
    each, rest = divmod(units, len(nodes))
    units_on = dict.fromkeys(nodes, each)
    for n in nodes[:rest]:
        units_on[n] += 1
    return units_on


def expected_starts(
    plan: BatchPlan, instance: Instance, decision: Decision
) -> Iterator[tuple[int, Expected]]:
    """Yield the planned starts of the jobs that start later, by row of the plan."""
    nodes = plan.state.layout.nodes
    for job, start, units in zip(instance.jobs, decision.starts, decision.nodes, strict=True):
        start_s = plan.view.now_s + start * instance.grid_s
        if start <= 0 or start_s > LAST_S:
            continue
        end_s: float | None = start_s + job.source.choice.run_s
        if end_s is not None and end_s > LAST_S:
            end_s = None
        names = tuple([nodes[n].id for n in sorted(units or ())])
        gpus = job.source.request.gpus * job.source.request.units
        yield job.source.row, Expected(start_s, end_s, names, gpus)


def _all_start(plan: BatchPlan, jobs: Sequence[WaitingJob]) -> bool:
    """Start all of these jobs if they fit beside each other; return if so.

    No schedule is better then.
    """
    if not all(job.fits_now for job in jobs):
        return False
    trial = plan.copy()
    for job in jobs:
        allocation = trial.find(job.row, job.choice, within=job.nodes)
        if allocation is None:
            return False
        trial.take(job.row, allocation, job.choice.run_s)
    for started in trial.started:
        plan.take(*started)
    return True
