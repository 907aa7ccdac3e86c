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
from controlplane.loop.changes import Start, Stop, changes, current_of, key_of
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
    result = []
    for placement in plan.placements:
        # 1. The end is unknown if the speed is assumed, or the job makes no steps there.
        job = jobs.get(placement.job)
        speed = speeds.of(placement)
        if job is None or speed <= 0 or speeds.is_assumed(job.kind):
            result.append(Stretch(placement, None))
            continue

        # 2. A job that has begun and moves loses time by its restart.
        before = running.get(placement.key)
        moves = before is None or needs_stop(before.ranks, placement.ranks)
        has_begun = job.remaining_steps < job.total_steps
        restart_s = job.restart_cost_s if moves and has_begun else 0.0
        run_s = job.remaining_steps / speed + restart_s
        result.append(Stretch(placement, snapshot.now_s + run_s))
    return tuple(result)


def figures(plan: Plan, snapshot: Snapshot) -> Figures:
    """Figures of a plan, with its placements."""
    # 1. The expected end of each placement, and of each job that has one.
    ends = stretches(plan, snapshot)
    training = {}
    for stretch in ends:
        if stretch.placement.purpose is Purpose.TRAINING:
            training[stretch.placement.job] = stretch.to_s

    # 2. Devices in use on each node, and their power at the present price.
    used_devices: set[tuple[str, str]] = set()
    for placement in plan.placements:
        used_devices.update(devices_of(placement.ranks))
    used = Counter(node for node, _ in used_devices)
    watts = power_w(snapshot.node_by_id, used)
    price = snapshot.energy_at(snapshot.now_s)

    # 3. Least time and energy of each job's remaining work, for those that wait.
    columns = snapshot.jobs.columns
    left = remaining_work(
        columns,
        range(len(snapshot.jobs)),
        columns.numbers["remaining_steps"],
        snapshot.now_s,
        snapshot.nodes,
        snapshot.kinds,
        snapshot.energy,
    )
    waits = np.array([job not in training for job in columns.ids], dtype=bool)

    # 4. Costs of the jobs with GPUs, and of those that wait.
    placed_tardiness, waiting_tardiness = _tardiness_costs(snapshot, training, left.run_s.tolist())
    return Figures(
        plan.policy,
        plan.status.value,
        running=len(training),
        waiting=len(snapshot.jobs) - len(training),
        gpus=sum(used.values()),
        power_w=watts,
        cost_per_h=None if price is None else cost_per_hour(watts, price),
        energy_cost=_energy_cost(snapshot, ends),
        energy_cost_waiting=float(left.energy_cost[waits].sum()),
        tardiness_cost=placed_tardiness,
        tardiness_cost_waiting=waiting_tardiness,
        stretches=ends,
    )


def differences(plan: Plan, snapshot: Snapshot) -> tuple[Start | Stop, ...]:
    """Starts and stops of training work that the plan would make, starts last."""
    return tuple(
        change
        for change in changes(current_of(snapshot), plan)
        if isinstance(change, Start | Stop) and key_of(change)[1] is Purpose.TRAINING
    )


def _tardiness_costs(
    snapshot: Snapshot, ends: dict[str, float | None], least_run_s: list[float]
) -> tuple[float, float]:
    """(of the jobs that have GPUs, at least of the others): sum_j w_j max(0, end_j - due_j).

    `ends`: of the jobs that have GPUs. `least_run_s`: of every job in the snapshot's order.
    """
    placed = 0.0
    waiting = 0.0
    for job, run_s in zip(snapshot.jobs, least_run_s, strict=True):
        if not job.tardiness_weight or not isfinite(job.due_s):
            continue
        is_placed = job.id in ends
        end_s = ends[job.id] if is_placed else snapshot.now_s + run_s
        if end_s is None or not isfinite(end_s):
            continue
        cost = job.tardiness_weight * max(0.0, end_s - job.due_s)
        if is_placed:
            placed += cost
        else:
            waiting += cost
    return placed, waiting


def _energy_cost(snapshot: Snapshot, ends: tuple[Stretch, ...]) -> float:
    """Cost of the nodes' power until their last jobs end, at the prices of each time."""
    # 1. The last known end on each device, then on each node, the earliest first.
    until_s: dict[tuple[str, str], float] = {}
    for stretch in ends:
        if stretch.to_s is None:
            continue
        for device in devices_of(stretch.placement.ranks):
            until_s[device] = max(until_s.get(device, -inf), stretch.to_s)
    ends_by_node: dict[str, list[float]] = defaultdict(list)
    for (node, _), to_s in sorted(until_s.items(), key=itemgetter(1)):
        ends_by_node[node].append(to_s)

    # 2. With each end one device less is in use.
    cost = 0.0
    for node, ends_s in ends_by_node.items():
        devices = len(ends_s)
        for from_s, to_s in pairwise([snapshot.now_s, *ends_s]):
            watts = power_w(snapshot.node_by_id, {node: devices})
            cost += energy_cost(watts, from_s, to_s, snapshot.energy)
            devices -= 1
    return cost
