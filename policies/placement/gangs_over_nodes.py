"""Gangs that no node can hold, in policies that place jobs on one node each.

They are placed before the policy decides about the other jobs, beside all that runs, and are not
moved or stopped for others.
"""

from __future__ import annotations

import numpy as np

from policies.contract.plan import LAST_S, Expected, training_run
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Allocation
from policies.placement.plan_builder import PlanBuilder
from policies.placement.timeline import earliest


def place_gangs_over_nodes(plan: PlanBuilder) -> None:
    """Place waiting gangs that no node can hold, and keep GPUs for the first without room.

    They stop nobody, and take turns by priority, then arrival. `plan.wide` are all of them from
    then on, `plan.expected` has the start of the one for which GPUs are kept.
    """
    # 1. Most clusters have none: no job needs more GPUs than the smallest node with GPUs has.
    wide = _wide_rows(plan)
    plan.wide = frozenset(wide)
    if not wide:
        return

    # 2. Running jobs hold what they have, whatever the policy does with them later.
    trial = plan.state.copy()
    _hold_running(plan, trial)

    # 3. Jobs take turns by priority, then arrival. Those of one node that are ahead of a gang get
    #    what they need on trial only: the policy decides about them.
    columns = plan.snapshot.jobs.columns
    priority = columns.listed["priority"]
    arrival_s = columns.listed["arrival_s"]
    running = columns.others["running"]
    decided = plan.decided - plan.wide
    waiting = []
    for row in range(len(columns.ids)):
        if row not in decided and not training_run(running[row]):
            waiting.append(row)
    waiting.sort(key=lambda row: (-priority[row], arrival_s[row], row))
    without_room: set[object] = set()
    left = len(wide)
    for row in waiting:
        if not left:
            break
        is_wide = row in plan.wide
        left -= is_wide
        if plan.options.keys[row] in without_room:
            continue
        fitting = _first_that_fits(plan, trial, row)
        if fitting is None:
            # 4. The first gang without room keeps GPUs for its start.
            without_room.add(plan.options.keys[row])
            if is_wide and not plan.expected:
                _reserve(plan, trial, row)
            continue
        allocation, run_s = fitting
        trial.take(allocation, row, plan.snapshot.now_s + run_s)
        if is_wide:
            plan.place(row, allocation, run_s)


def _wide_rows(plan: PlanBuilder) -> list[int]:
    """Return the rows of jobs that no node can hold, without those that stay or must wait."""
    sizes = [of_class.size for of_class in plan.state.layout.classes if of_class.size]
    least = plan.snapshot.jobs.columns.counts["gpus_min"]
    candidates = np.flatnonzero(least > min(sizes, default=0)).tolist()
    decided = plan.decided
    is_wide: dict[object, bool] = {}
    rows = []
    for row in candidates:
        if row in decided:
            continue
        key = plan.options.keys[row]
        if key not in is_wide:
            is_wide[key] = plan.options.requests.is_wide(row)
        if is_wide[key]:
            rows.append(row)
    return rows


def _hold_running(plan: PlanBuilder, trial: ClusterState) -> None:
    """Let running jobs about which nothing is decided hold what they have, until they end."""
    decided = plan.decided
    now_s = plan.snapshot.now_s
    for stay in plan.pinned:
        trial.hold(stay.row, stay.allocation, now_s + plan.remaining_s(stay), alone=False)
    for row, runs in enumerate(plan.snapshot.jobs.columns.others["running"]):
        run = training_run(runs)
        if run is None or row in decided:
            continue
        allocation = plan.options.requests.allocation_of(row, run)
        if allocation is not None and trial.is_free(allocation):
            end_s = now_s + plan.run_remaining_s(row, run, allocation)
            trial.take(allocation, row, end_s)


def _first_that_fits(
    plan: PlanBuilder, state: ClusterState, row: int
) -> tuple[Allocation, float] | None:
    """Return what the first option of a job that fits would take, and its run time there."""
    for option, run_s in plan.options.ranked(row):
        allocation = state.find(option.request, option.nodes)
        if allocation is not None:
            return allocation, run_s
    return None


def _reserve(plan: PlanBuilder, trial: ClusterState, row: int) -> None:
    """Note a gang's earliest expected start, and keep the GPUs for it that are free already.

    They idle until then. So none are kept if the gang would start later than after its own run
    time, and than after the time that it has waited.
    """
    # 1. Its earliest start, and what it will have then.
    now_s = plan.snapshot.now_s

    def search(state: ClusterState) -> Allocation | None:
        fitting = _first_that_fits(plan, state, row)
        return None if fitting is None else fitting[0]

    start = earliest(trial, search, now_s)
    if start is None:
        return
    start_s, state = start
    fitting = _first_that_fits(plan, state, row)
    if fitting is None or start_s > LAST_S:
        return
    allocation, run_s = fitting

    # 2. People are shown the expected start.
    layout = plan.state.layout
    end_s = start_s + run_s if start_s + run_s <= LAST_S else None
    nodes = tuple(layout.nodes[part.node].id for part in allocation.parts)
    plan.expected[row] = Expected(start_s, end_s, nodes, allocation.request.units)

    # 3. The GPUs are kept both in the plan and on trial.
    waited_s = now_s - plan.snapshot.jobs.columns.listed["arrival_s"][row]
    if start_s - now_s > max(run_s, waited_s):
        return
    for part in allocation.parts:
        kept = part.devices & trial.idle[part.node]
        plan.state.keep_idle(part.node, kept)
        trial.keep_idle(part.node, kept)
