"""Costs of a plan if it were made now, and its differences from the present. Pure.

Both plans are measured with one yardstick, the snapshot's throughputs, whatever their policies
predicted.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from operator import itemgetter

import numpy as np

from clusters.energy import cost_per_hour, energy_cost
from controlplane.loop.changes import Keep, Start, Stop, changes, current_of, key_of
from controlplane.simulation.cluster.meter import remaining_work
from policies.contract.placement_rules import needs_stop
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import Purpose, Snapshot
from policies.contract.validation import power_w
from policies.placement.speed import PlanSpeeds, devices_of


@dataclass(frozen=True, slots=True)
class Stretch:
    """A placement from now to its expected end (epoch seconds); None if unknown."""

    placement: Placement
    to_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Costs of a plan in the cluster's currency, until the end of every job.

    `energy_cost_waiting`, `tardiness_cost_waiting`: of jobs without GPUs, the least they can be:
    as if each started alone now where its energy is cheapest, and where it is fastest.
    """

    policy: str
    status: str
    running: int
    waiting: int
    gpus: int
    power_w: float
    cost_per_h: float | None
    energy_cost: float
    energy_cost_waiting: float
    tardiness_cost: float
    tardiness_cost_waiting: float
    stretches: tuple[Stretch, ...]

    @property
    def cost(self) -> float:
        """Energy and lateness of all jobs."""
        energy_cost = self.energy_cost + self.energy_cost_waiting
        return energy_cost + self.tardiness_cost + self.tardiness_cost_waiting


def stretches(plan: Plan, snapshot: Snapshot) -> tuple[Stretch, ...]:
    """Every placement of the plan with its expected end."""
    jobs = {job.id: job for job in snapshot.jobs}
    speeds = PlanSpeeds(snapshot, plan.placements)
    running = current_of(snapshot)
    found = []
    for placement in plan.placements:
        job = jobs.get(placement.job)
        speed = speeds.of(placement)
        before = running.get(placement.key)
        moves = before is None or needs_stop(before.ranks, placement.ranks)
        began = job is not None and job.remaining_steps < job.total_steps
        restart_s = job.restart_cost_s if job and moves and began else 0.0
        known = job is not None and speed > 0 and not speeds.is_assumed(job.kind)
        run_s = job.remaining_steps / speed + restart_s if job and known else None
        found.append(Stretch(placement, None if run_s is None else snapshot.now_s + run_s))
    return tuple(found)


def figures(plan: Plan, snapshot: Snapshot) -> Figures:
    """Figures of a plan, with its placements."""
    ends = stretches(plan, snapshot)
    used = Counter(
        node for node, _ in {key for p in plan.placements for key in devices_of(p.ranks)}
    )
    training = {s.placement.job: s.to_s for s in ends if s.placement.purpose is Purpose.TRAINING}
    watts, step = power_w(snapshot.node_by_id, used), snapshot.energy_at(snapshot.now_s)
    columns, rows = snapshot.jobs.columns, range(len(snapshot.jobs))
    steps, cluster = columns.numbers["remaining_steps"], (snapshot.nodes, snapshot.kinds)
    left = remaining_work(columns, rows, steps, snapshot.now_s, *cluster, snapshot.energy)
    waits = np.array([job not in training for job in columns.ids], dtype=bool)
    placed, waiting = _lateness(snapshot, training, left.run_s.tolist())
    return Figures(
        plan.policy,
        plan.status.value,
        running=len(training),
        waiting=len(snapshot.jobs) - len(training),
        gpus=sum(used.values()),
        power_w=watts,
        cost_per_h=None if step is None else cost_per_hour(watts, step),
        energy_cost=_energy_cost(snapshot, ends),
        energy_cost_waiting=float(left.energy_cost[waits].sum()),
        tardiness_cost=placed,
        tardiness_cost_waiting=waiting,
        stretches=ends,
    )


def differences(plan: Plan, snapshot: Snapshot) -> tuple[Start | Stop, ...]:
    """Changes of training work that the plan would make, starts last."""
    return tuple(
        change
        for change in changes(current_of(snapshot), plan)
        if not isinstance(change, Keep) and key_of(change)[1] is Purpose.TRAINING
    )


def _lateness(
    snapshot: Snapshot, ends: dict[str, float | None], fastest: list[float]
) -> tuple[float, float]:
    """(of the jobs that have GPUs, at least of the others): sum_j w_j max(0, end_j - due_j)."""
    placed = waiting = 0.0
    for row, job in enumerate(snapshot.jobs):
        if not job.tardiness_weight or not isfinite(job.due_s):
            continue
        given = ends.get(job.id) if job.id in ends else snapshot.now_s + fastest[row]
        if given is None or not isfinite(given):
            continue
        late = job.tardiness_weight * max(0.0, given - job.due_s)
        placed, waiting = (placed + late, waiting) if job.id in ends else (placed, waiting + late)
    return placed, waiting


def _energy_cost(snapshot: Snapshot, ends: tuple[Stretch, ...]) -> float:
    """Cost of the nodes' power until their last jobs end, at the prices of each time."""
    until_s: dict[tuple[str, str], float] = {}
    for stretch in ends:
        for key in devices_of(stretch.placement.ranks) if stretch.to_s is not None else ():
            until_s[key] = max(until_s.get(key, -inf), stretch.to_s or -inf)
    of_node: dict[str, list[float]] = defaultdict(list)
    for (node, _), to_s in sorted(until_s.items(), key=itemgetter(1)):
        of_node[node].append(to_s)
    cost = 0.0
    for node, ends_s in of_node.items():
        for i, (from_s, to_s) in enumerate(pairwise([snapshot.now_s, *ends_s])):
            watts = power_w(snapshot.node_by_id, {node: len(ends_s) - i})
            cost += energy_cost(watts, from_s, to_s, snapshot.energy)
    return cost
