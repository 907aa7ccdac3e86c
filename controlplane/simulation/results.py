"""From a simulation that has run to its outcome."""

from __future__ import annotations

from itertools import accumulate
from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np

from controlplane.simulation.jobs import Launch, SimulatedJob
from controlplane.simulation.outcome import Outcome, Stays, Utilisation
from controlplane.simulation.switches import Switches
from policies.snapshot import Floats, Ints

if TYPE_CHECKING:
    from controlplane.simulation.run import Simulation


def outcome_of(simulation: Simulation, name: str, workload: str, seed: int, switches: Switches) -> Outcome:
    """Everything the simulation came to, jobs by arrival."""
    jobs = list(simulation.world.jobs.values())
    meter = simulation.world.meter
    arrival, completion = _floats(j.view.arrival_s for j in jobs), _floats(_or_nan(j.completed_s) for j in jobs)
    due, weight = _floats(j.view.due_s for j in jobs), _floats(j.view.tardiness_weight for j in jobs)
    return Outcome(
        policy=name,
        workload=workload,
        seed=seed,
        switches=switches,
        job_ids=tuple(j.view.id for j in jobs),
        nodes=tuple(simulation.world.nodes),
        arrival_s=arrival,
        first_start_s=_floats(j.launches[0].start_s if j.launches else nan for j in jobs),
        completion_s=completion,
        due_s=due,
        tardiness_weight=weight,
        busy_s=_floats(sum(n.end_s - n.start_s for n in j.launches) for j in jobs),
        gpu_s=_floats(sum((n.end_s - n.start_s) * _gpus(n) for n in j.launches) for j in jobs),
        fastest_s=_floats(simulation.world.fastest_s(j) for j in jobs),
        launches=np.array([len(j.launches) for j in jobs], dtype=np.int64),
        preemptions=np.array([j.preemptions for j in jobs], dtype=np.int64),
        migrations=np.array([j.migrations for j in jobs], dtype=np.int64),
        failures=np.zeros(len(jobs), dtype=np.int64),
        energy_kwh=meter.energy_kwh,
        energy_cost=meter.energy_cost,
        tardiness_cost=float(np.nansum(weight * np.maximum(0.0, completion - due))),
        emissions_kg=meter.emissions_g / 1000.0,
        rounds=len(simulation.rounds),
        makespan_s=float(np.nanmax(completion) - arrival.min()) if np.isfinite(completion).any() else 0.0,
        stays=_stays(jobs, tuple(simulation.world.nodes)),
        utilisation=_utilisation(jobs, sum(len(n.devices) for n in simulation.world.nodes.values())),
        decision_s=np.array(simulation.decision_s),
    )


def _floats(values: object) -> Floats:
    return np.fromiter(values, dtype=np.float64)  # type: ignore[call-overload,no-any-return]


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _gpus(launch: Launch) -> int:
    return sum(len(seat.devices) for seat in launch.ranks)


def _stays(jobs: list[SimulatedJob], nodes: tuple[str, ...]) -> Stays:
    at = {node: i for i, node in enumerate(nodes)}
    rows = sorted(
        (n.start_s, i, at[seat.node], seat.devices, n.end_s) for i, j in enumerate(jobs) for n in j.launches for seat in n.ranks
    )
    start_s, job, node, devices, end_s = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Stays(_ints(job), _ints(node), tuple(devices), np.array(start_s, dtype=float), np.array(end_s, dtype=float))


def _ints(values: tuple[int, ...]) -> Ints:
    return np.array(values, dtype=np.int64)


def _utilisation(jobs: list[SimulatedJob], gpus: int) -> Utilisation:
    changes: dict[float, int] = {}
    for job in jobs:
        for launch in job.launches:
            changes[launch.start_s] = changes.get(launch.start_s, 0) + _gpus(launch)
            if isfinite(launch.end_s):
                changes[launch.end_s] = changes.get(launch.end_s, 0) - _gpus(launch)
    times = sorted(changes)
    return Utilisation(np.array(times), np.array(list(accumulate(changes[t] for t in times)), dtype=np.int64), gpus)
