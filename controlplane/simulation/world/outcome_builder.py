"""Outcome of a simulation, from the last state of its world."""

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite

import numpy as np

from controlplane.simulation.cluster.meter import SplitMeter, remaining_work
from controlplane.simulation.world.journal import Journal
from controlplane.simulation.world.outcome import LEFT_WAITING, Outcome, Unplaceable
from controlplane.simulation.world.state import WorldState
from policies.contract.plan import seat_demand
from policies.contract.snapshot import NodeView
from profiling.run_times.errors import RunTimeErrors


def outcome_of(
    state: WorldState,
    policy: str,
    workload: str,
    *,
    rounds: int,
    rounds_skipped: int,
    rounds_changed: int,
    decision_s: Sequence[float],
) -> Outcome:
    """Return the outcome of a simulation, jobs by arrival. Arguments as `Outcome`'s fields."""
    scenario = state.scenario
    table = state.table
    columns = table.columns
    meter = state.meter
    arrival_s = columns.numbers["arrival_s"]
    due_s = columns.numbers["due_s"]
    weight = columns.numbers["tardiness_weight"]

    # 1. Totals over the jobs.
    is_open = np.isnan(table.completed_s)
    late_s = np.where(is_open, 0.0, np.maximum(0.0, table.completed_s - due_s))
    has_run = ~np.isnan(table.ended_s) & ~np.isnan(table.first_start_s)
    makespan_s = 0.0
    if has_run.any():
        makespan_s = float(table.ended_s[has_run].max() - arrival_s[0])

    # 2. Jobs that did not complete.
    not_completed = [
        Unplaceable(row, columns.ids[row], reason)
        for row, reason in sorted(state.end_reasons.items())
    ]
    unplaceable = sorted(state.unplaceable.values(), key=lambda job: job.index)
    unfinished = [Unplaceable(row, columns.ids[row], LEFT_WAITING) for row in state.active]

    # 3. Parts of the energy by job, where it was divided.
    job_kwh = np.zeros(0)
    job_cost = np.zeros(0)
    if isinstance(meter, SplitMeter):
        job_kwh = meter.job_kwh
        job_cost = meter.job_cost

    gpus = sum(len(node.devices) for node in scenario.nodes)
    return Outcome(
        policy=policy,
        workload=workload,
        seed=scenario.seed,
        switches=state.switches,
        job_ids=columns.ids,
        nodes=tuple(state.fleet.nodes),
        arrival_s=np.maximum(arrival_s, state.start_rules.ready_s),
        first_start_s=table.first_start_s,
        completion_s=table.completed_s,
        due_s=due_s,
        tardiness_weight=weight,
        busy_s=table.busy_s,
        gpu_s=table.gpu_s,
        fastest_s=state.fastest_s,
        launches=table.launched,
        preemptions=table.preempted,
        migrations=table.migrated,
        failures=table.failed,
        energy_kwh=meter.energy_kwh,
        energy_cost=meter.energy_cost,
        tardiness_cost=float((weight * late_s).sum()),
        emissions_kg=meter.emissions_g / 1000.0,
        rounds=rounds,
        makespan_s=makespan_s,
        ended_s=table.ended_s,
        state=table.state,
        used=_used(state, makespan_s),
        not_completed=tuple(not_completed),
        stays=state.journal.stays(state.fleet.index),
        utilisation=state.journal.utilisation(gpus, shared=state.fleet.shares),
        unplaceable=tuple(unplaceable),
        unfinished=tuple(unfinished),
        unfinished_cost=_unfinished_cost(state),
        rounds_skipped=rounds_skipped,
        rounds_changed=rounds_changed,
        round_jobs=scenario.round_jobs,
        gather_s=scenario.gather_s,
        decision_s=np.array(decision_s),
        pair_estimates=None if state.pairs is None else state.pairs.estimates(),
        run_time_errors=RunTimeErrors.of(state.predictions.ended),
        job_kwh=job_kwh,
        job_cost=job_cost,
    )


def _unfinished_cost(state: WorldState) -> float:
    """Return the least energy and tardiness that active jobs still cost if each starts alone."""
    scenario = state.scenario
    table = state.table
    rows = state.active
    now_s = state.engine.now_s
    steps = (table.total_steps - table.steps_done)[rows]
    left = remaining_work(
        table.columns, rows, steps, now_s, scenario.nodes, scenario.kinds, scenario.energy
    )
    due_s = table.columns.numbers["due_s"][rows]
    weight = table.columns.numbers["tardiness_weight"][rows]
    late_s = np.maximum(0.0, now_s + left.run_s - due_s)
    lateness_cost = (weight * late_s)[weight > 0.0].sum()
    return float(left.energy_cost.sum() + lateness_cost)


def _used(state: WorldState, makespan_s: float) -> dict[str, float]:
    """Return the mean fraction of each resource but GPUs in use.

    Only of resources of which every node has a limit.
    """
    if makespan_s <= 0.0:
        return {}
    used = _resource_seconds(state)
    fractions = {}
    for name, amount in sorted(_amounts(state.scenario.nodes).items()):
        if amount > 0.0 and isfinite(amount):
            fractions[name] = used[name] / (amount * makespan_s)
    return fractions


def _amounts(nodes: Sequence[NodeView]) -> dict[str, float]:
    """Return what all nodes have of each resource but GPUs."""
    total: dict[str, float] = defaultdict(float)
    for node in nodes:
        total["cores"] += node.cores
        total["memory_gb"] += node.memory_gb
        for name, amount in node.resources:
            total[name] += amount
    return total


def _resource_seconds(state: WorldState) -> dict[str, float]:
    """Return the amount times seconds that launches held of each resource."""
    journal: Journal = state.journal
    used: dict[str, float] = defaultdict(float)
    for number, ranks in enumerate(journal.ranks):
        end_s = min(journal.end_s[number], state.engine.now_s)
        held_s = end_s - journal.start_s[number]
        for seat in ranks:
            demand = seat_demand(state.table.columns, journal.row[number], seat.units)
            for name, amount in demand.items():
                used[name] += amount * held_s
    return used
