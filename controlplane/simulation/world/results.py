"""From a simulation that has run to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from controlplane.simulation.cluster.meter import SplitMeter
from controlplane.simulation.cluster.remaining import remaining_work
from controlplane.simulation.world.outcome import Outcome, Unplaceable

if TYPE_CHECKING:
    from controlplane.simulation.world.run import Simulation

LEFT_WAITING = "the policy left it waiting although nothing else was left to wait for"


def outcome_of(simulation: Simulation, name: str, workload: str) -> Outcome:
    """Everything the simulation came to, jobs by arrival."""
    world, scenario = simulation.world, simulation.scenario
    table, meter, columns = world.table, world.meter, world.table.columns
    arrival_s, due_s = columns.numbers["arrival_s"], columns.numbers["due_s"]
    weight, completion_s = columns.numbers["tardiness_weight"], table.completed_s
    late = np.where(np.isnan(completion_s), 0.0, np.maximum(0.0, completion_s - due_s))
    ended = completion_s[~np.isnan(completion_s)]
    split = meter if isinstance(meter, SplitMeter) else None
    gpus = sum(len(node.devices) for node in scenario.nodes)
    return Outcome(
        policy=name, workload=workload, seed=scenario.seed, switches=simulation.switches,
        job_ids=columns.ids, nodes=tuple(world.fleet.nodes), arrival_s=arrival_s,
        first_start_s=table.first_start_s, completion_s=completion_s, due_s=due_s,
        tardiness_weight=weight, busy_s=table.busy_s, gpu_s=table.gpu_s,
        fastest_s=world.fastest_s, launches=table.launched, preemptions=table.preempted,
        migrations=table.migrated, failures=table.failed, energy_kwh=meter.energy_kwh,
        energy_cost=meter.energy_cost, tardiness_cost=float((weight * late).sum()),
        emissions_kg=meter.emissions_g / 1000.0, rounds=simulation.round_count,
        makespan_s=float(ended.max() - arrival_s[0]) if len(ended) else 0.0,
        stays=world.journal.stays(world.fleet.index),
        utilisation=world.journal.utilisation(gpus, shared=world.fleet.shares),
        unplaceable=tuple(sorted(world.unplaceable.values(), key=lambda u: u.index)),
        unfinished=tuple(Unplaceable(row, columns.ids[row], LEFT_WAITING) for row in world.active),
        unfinished_cost=_unfinished_cost(simulation), rounds_skipped=simulation.rounds_skipped,
        round_jobs=scenario.round_jobs, gather_s=scenario.gather_s,
        decision_s=np.array(simulation.decision_s),
        pair_estimates=None if world.pairs is None else world.pairs.estimates(),
        job_kwh=np.zeros(0) if split is None else split.job_kwh,
        job_cost=np.zeros(0) if split is None else split.job_cost,
    )  # fmt: skip


def _unfinished_cost(simulation: Simulation) -> float:
    """The least energy and tardiness that unfinished jobs still cost if each starts alone now."""
    world, scenario, now_s = simulation.world, simulation.scenario, simulation.engine.now_s
    table, numbers, rows = world.table, world.table.columns.numbers, world.active
    steps = (table.total_steps - table.steps_done)[rows]
    left = remaining_work(
        table.columns, rows, steps, now_s, scenario.nodes, scenario.kinds, scenario.energy
    )
    due_s, weight = numbers["due_s"][rows], numbers["tardiness_weight"][rows]
    late_s = np.maximum(0.0, now_s + left.run_s - due_s)
    return float(left.energy_cost.sum() + (weight * late_s)[weight > 0.0].sum())
