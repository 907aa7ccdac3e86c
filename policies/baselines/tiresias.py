"""Tiresias (Gu et al., NSDI 2019): two queues by the GPU time that jobs have received."""

from __future__ import annotations

from dataclasses import dataclass

from policies.baselines.any_type import AnyType
from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Allocation, node_set
from policies.placement.plan_builder import PlanBuilder


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Jobs that have received little GPU time first, by arrival; others make way (Tiresias).

    Discretised two-dimensional least attained service: a job whose GPUs times seconds exceed the
    threshold falls to the second queue and stays there. GPU types look alike.
    """

    threshold_s: float = parameter(
        3600.0,
        meaning="GPU seconds after which a job falls to the second queue",
        minimum=0.0,
        maximum=1e9,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Place all jobs anew in the order of the queues; who runs stays where it can."""
        plan = PlanBuilder(snapshot, never_touch=False, keep_wide=False)
        finder = AnyType(plan)
        columns = snapshot.jobs.columns
        decided = plan.decided
        rows = [row for row in range(len(columns.ids)) if row not in decided]
        arrival_s = columns.listed["arrival_s"]
        rows.sort(key=lambda row: (self._is_in_second(snapshot, row), arrival_s[row], row))

        # 1. Running jobs hold their GPUs on trial, until a job of an earlier place needs them.
        trial = plan.state.copy()
        holds: dict[int, Allocation] = {}
        for row in rows:
            allocation = finder.where_it_runs(row)
            if allocation is not None and trial.try_take(allocation):
                holds[row] = allocation

        # 2. In the order of the queues: stay, else free GPUs, else those of jobs behind.
        for row in rows:
            held = holds.pop(row, None)
            if held is not None:
                finder.stay(row, held)
                continue
            found = finder.find(trial, row)
            if found is None:
                found = _make_way(plan, trial, holds, finder, row)
            if found is not None:
                trial.take(found)
                finder.place(row, found)
        return plan.build("tiresias")

    def _is_in_second(self, snapshot: Snapshot, row: int) -> bool:
        """Return True if a job has received more GPU time than the threshold."""
        received = snapshot.jobs.columns.others["received_s"][row]
        received_s: float = sum(seconds for _, seconds in received)
        return received_s > self.threshold_s


def _make_way(
    plan: PlanBuilder,
    trial: ClusterState,
    holds: dict[int, Allocation],
    finder: AnyType,
    row: int,
) -> Allocation | None:
    """Return GPUs for a job that jobs behind it hold, the last ones first; None if that is no use.

    `holds`: by row in the order of the queues; those that make way are taken out of it.
    """
    wanted = finder.find(plan.state, row)
    if wanted is None:
        return None
    nodes = node_set(wanted)
    before = dict(holds)
    released: list[Allocation] = []
    for other in reversed(list(holds)):
        if not node_set(holds[other]) & nodes:
            continue
        released.append(holds.pop(other))
        trial.release(released[-1])
        found = finder.find(trial, row)
        if found is not None:
            return found
    for allocation in released:
        trial.take(allocation)
    holds.clear()
    holds.update(before)
    return None
