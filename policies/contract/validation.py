"""The one check of a plan, in both worlds and in every test: `validate_plan(plan, snapshot)`.

A plan is the whole decision: profile runs that it does not mention end, so judge a policy's plan
with the profile placements merged in.

What it holds a plan to, by code:

- identity: `unknown_job`, `unknown_node`, `unknown_device`, `empty_placement`,
  `duplicate_placement` (one per job, purpose and copy);
- devices: `device_slots`, `device_share`, `device_unhealthy`, `may_not_share`, `device_taken` (by a
  job outside the snapshot);
- gangs: `gang_size` (devices over all ranks within gpus_min..gpus_max), `type_not_allowed`,
  `may_not_mix`, `labels_missing`, `profile_mismatch`;
- nodes: `node_state`, `node_role`, `node_cores`, `node_memory`, `node_resource`; a job may stay, on
  the same devices, on a node that is cordoned, changes to profiling, or drains later;
- the cluster: `power_cap` (of now, and of every moment up to the next periodic round at which the
  cap changes);
- completeness: `job_missing`, `waiting_twice`, `placed_and_waiting`, `awaiting_profile`;
- numbers: `not_finite`, `out_of_range`.

A rank uses the job's cores, memory and resources times its part of the units, max(1, ceil(units /
ranks)); `cpu_quota` replaces the cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf, isfinite

from policies.contract.plan import HIGHEST_COST, LAST_S, LONGEST_RUN_S, Placement, Plan, WaitCode
from policies.contract.snapshot import (
    DeviceView,
    JobPhase,
    NodeRole,
    NodeState,
    NodeView,
    Purpose,
    RankPlacement,
    Running,
    Snapshot,
    rank_demand,
)
from policies.contract.views import worded

TOLERANCE = 1e-9

RANGES = {
    "until_s": (-inf, LAST_S),
    "predicted_run_s": (0.0, LONGEST_RUN_S),
    "predicted_energy_cost": (-HIGHEST_COST, HIGHEST_COST),
}
"""The least and the greatest figures that the JSON form of a placement takes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something a plan must not do: its code, whom it concerns, and a sentence with the values and
    what would be right.
    """

    code: str
    detail: str
    job: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def validate_plan(plan: Plan, snapshot: Snapshot) -> tuple[Violation, ...]:
    """Return every breach of the rules of the snapshot's cluster; empty if it may be applied."""
    found = list(_placement_violations(plan, snapshot))
    found += _identity(plan)
    found += _completeness(plan, snapshot)
    found += _plan_numbers(plan)
    load = _Load(snapshot, plan)
    found += _devices(load)
    found += _nodes(load)
    found += _power(plan, snapshot)
    return tuple(found)


class _Load:
    """What the plan puts on every device and node."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.gpus_only = snapshot.jobs.columns.gpus_only
        self.devices: dict[tuple[str, str], list[tuple[str, Purpose, float]]] = defaultdict(list)
        self.nodes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for placed in plan.placements:
            self._add(placed.job, placed.purpose, placed.ranks)

    def _add(self, job: str, purpose: Purpose, ranks: tuple[RankPlacement, ...]) -> None:
        if self.gpus_only and len(ranks) == 1 and ranks[0].cpu_quota is None:
            for device in ranks[0].devices:
                self.devices[ranks[0].node, device].append((job, purpose, ranks[0].share))
            return
        row = self.snapshot.jobs.position.get(job)
        nothing = (
            row is None
            or not ranks
            or (self.gpus_only and all(seat.cpu_quota is None for seat in ranks))
        )
        demand = (
            {}
            if row is None or nothing
            else rank_demand(self.snapshot.jobs.columns, row, len(ranks))
        )
        for seat in ranks:
            for device in seat.devices:
                self.devices[seat.node, device].append((job, purpose, seat.share))
            if not demand:
                continue
            of_node = self.nodes[seat.node]
            for name, amount in demand.items():
                of_node[name] += (
                    seat.cpu_quota if name == "cores" and seat.cpu_quota is not None else amount
                )


def _placement_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    wanted = {(r.job, r.copy): r for r in snapshot.profiling}
    goes_on = _GoesOn(snapshot)
    for placed in plan.placements:
        row = snapshot.jobs.position.get(placed.job)
        if row is not None and goes_on.plainly(placed, row):
            continue
        if row is None:
            yield Violation(
                "unknown_job",
                f"job {placed.job} is not in the snapshot: place only its jobs",
                placed.job,
            )
            continue
        yield from _numbers(placed, snapshot.now_s)
        yield from _seats(placed, row, snapshot)
        if placed.purpose is Purpose.TRAINING:
            yield from _gang(placed, row, snapshot)
        elif (
            request := wanted.get((placed.job, placed.copy))
        ) is not None and request.gpus != placed.gpus:
            detail = (
                f"profile run {placed.copy} of job {placed.job} was asked for {request.gpus} GPUs,"
                f" not {placed.gpus}"
            )
            yield Violation("profile_mismatch", detail, placed.job)


class _GoesOn:
    """What most placements of most plans are: a job that goes on, just so, on one whole device or
    more of one ready node.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        columns = snapshot.jobs.columns
        self.nodes, self.running, self.phase = (
            snapshot.node_by_id,
            columns.others["running"],
            columns.others["phase"],
        )
        counts = columns.counts
        self.least, self.most = counts["gpus_min"].tolist(), counts["gpus_max"].tolist()
        self.labels, self.types = columns.others["labels"], columns.others["allowed_types"]

    def plainly(self, placed: Placement, row: int) -> bool:
        """Whether the placement is such, without anything that the rules below could find fault
        with.
        """
        ranks, running = placed.ranks, self.running[row]
        if (
            len(ranks) != 1
            or len(running) != 1
            or running[0].ranks is not ranks
            or self.labels[row]
            or self.types[row]
        ):
            return False
        seat, run_s = ranks[0], placed.predicted_run_s
        node, gpus = self.nodes.get(seat.node), len(seat.devices)
        return (
            node is not None
            and node.state is NodeState.READY
            and node.role is not NodeRole.PROFILING
            and placed.purpose is Purpose.TRAINING
            and self.phase[row] is not JobPhase.PROFILING
            and gpus > 0
            and self.least[row] <= gpus <= self.most[row]
            and seat.share == 1.0
            and seat.cpu_quota
            is placed.until_s
            is placed.steps_quota
            is placed.predicted_energy_cost
            is None
            and (run_s is None or 0.0 <= run_s <= LONGEST_RUN_S)
        )


def _seats(placed: Placement, row: int, snapshot: Snapshot) -> Iterator[Violation]:
    job, columns = placed.job, snapshot.jobs.columns
    stays = _stays(placed, columns.others["running"][row])
    for seat in placed.ranks:
        node = snapshot.node_by_id.get(seat.node)
        if node is None:
            yield Violation(
                "unknown_node",
                f"node {seat.node} of job {job} is not in the snapshot",
                job,
                seat.node,
            )
            continue
        yield from _state(placed, node, stays, snapshot.now_s)
        labels = columns.others["labels"][row]
        if labels and (missing := set(labels) - set(node.labels)):
            detail = (
                f"node {node.name} lacks {', '.join(map(worded, sorted(missing)))}, which job {job}"
                " needs"
            )
            yield Violation("labels_missing", detail, job, node.id)
        allowed = columns.others["allowed_types"][row]
        if placed.purpose is Purpose.TRAINING and allowed and node.gpu_type not in allowed:
            detail = (
                f"job {job} may run on {', '.join(allowed)}, but node {node.name} has"
                f" {node.gpu_type}"
            )
            yield Violation("type_not_allowed", detail, job, node.id)


def _stays(placed: Placement, running: tuple[Running, ...]) -> bool:
    if not running:
        return False
    same = [r for r in running if r.purpose is placed.purpose and r.copy == placed.copy]
    if any(r.ranks is placed.ranks for r in same):
        return True
    seats = {(s.node, frozenset(s.devices)) for s in placed.ranks}
    return any({(s.node, frozenset(s.devices)) for s in r.ranks} == seats for r in same)


def _state(placed: Placement, node: NodeView, stays: bool, now_s: float) -> Iterator[Violation]:
    job = placed.job
    if node.state is NodeState.LOST or (node.state is not NodeState.READY and not stays):
        detail = f"node {node.name} is {node.state.value}: job {job} cannot be placed there"
        yield Violation("node_state", detail, job, node.id)
    elif node.state is NodeState.DRAINING and node.drain_until_s is not None:
        ends_late = placed.until_s is not None and placed.until_s > node.drain_until_s
        if now_s >= node.drain_until_s or ends_late:
            detail = (
                f"node {node.name} must be empty by {node.drain_until_s:g}: end or move job {job}"
                " by then"
            )
            yield Violation("node_state", detail, job, node.id)
    foreign = NodeRole.PROFILING if placed.purpose is Purpose.TRAINING else NodeRole.PRODUCTION
    if node.role is foreign and not stays:
        detail = (
            f"node {node.name} has the role {node.role.value}: no {placed.purpose.value} of job"
            f" {job} may start there"
        )
        yield Violation("node_role", detail, job, node.id)


def _gang(placed: Placement, row: int, snapshot: Snapshot) -> Iterator[Violation]:
    job, columns = placed.job, snapshot.jobs.columns
    least, most = int(columns.counts["gpus_min"][row]), int(columns.counts["gpus_max"][row])
    if not least <= placed.gpus <= most:
        yield Violation(
            "gang_size",
            f"job {job} needs {least} to {most} GPUs over all its ranks, not {placed.gpus}",
            job,
        )
    of_ranks = placed.ranks if len(placed.ranks) > 1 else ()
    types = {n.gpu_type for s in of_ranks if (n := snapshot.node_by_id.get(s.node)) is not None}
    if len(types) > 1 and not columns.others["may_mix"][row]:
        yield Violation(
            "may_not_mix",
            f"job {job} may not mix GPU types, but sits on {', '.join(sorted(types))}",
            job,
        )
    if columns.others["phase"][row] is JobPhase.PROFILING:
        yield Violation(
            "awaiting_profile",
            f"job {job} is still being profiled: let it wait with awaiting_profile",
            job,
        )


def _numbers(placed: Placement, now_s: float) -> Iterator[Violation]:
    job = placed.job
    if not placed.ranks or any(not s.devices for s in placed.ranks):
        yield Violation(
            "empty_placement",
            f"a rank of job {job} has no device: give each rank at least one",
            job,
        )
    for name, (least, most) in RANGES.items():
        value: float | None = getattr(placed, name)
        if value is not None and not isfinite(value):
            yield Violation(
                "not_finite", f"{name} of job {job} is {value}: give a finite number or none", job
            )
        elif value is not None and not least <= value <= most:
            detail = f"{name} of job {job} is {value}: must be {least:g} to {most:g} or none"
            yield Violation("out_of_range", detail, job)
    if placed.steps_quota is not None and placed.steps_quota < 1:
        yield Violation(
            "out_of_range",
            f"steps_quota of job {job} is {placed.steps_quota}: must be >= 1 or none",
            job,
        )
    if placed.until_s is not None and placed.until_s <= now_s:
        yield Violation(
            "out_of_range",
            f"until_s of job {job} is {placed.until_s}, but it is {now_s} already",
            job,
        )
    for seat in placed.ranks:
        if not 0.0 < seat.share <= 1.0:
            yield Violation(
                "out_of_range",
                f"share of job {job} is {seat.share}: must be above 0 and at most 1",
                job,
                seat.node,
            )
        if seat.cpu_quota is not None and not 0.0 < seat.cpu_quota < float("inf"):
            yield Violation(
                "out_of_range",
                f"cpu_quota of job {job} is {seat.cpu_quota}: must be above 0",
                job,
                seat.node,
            )


def _identity(plan: Plan) -> Iterator[Violation]:
    keys = [p.key for p in plan.placements]
    if len(set(keys)) == len(keys):
        return
    for (job, purpose, copy), times in Counter(keys).items():
        if times > 1:
            yield Violation(
                "duplicate_placement",
                f"copy {copy} of job {job} ({purpose.value}) is placed {times} times",
                job,
            )


def _completeness(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    phases = snapshot.jobs.columns.others["phase"]
    training = {p.job for p in plan.placements if p.purpose is Purpose.TRAINING}
    profiled = {p.job for p in plan.placements if p.purpose is Purpose.PROFILING}
    waiting = {w.job for w in plan.waiting}
    for job, phase in zip(snapshot.jobs.columns.ids, phases, strict=True):
        if (
            job not in training
            and job not in waiting
            and not (phase is JobPhase.PROFILING and job in profiled)
        ):
            yield Violation(
                "job_missing", f"job {job} is neither placed nor waiting: say which", job
            )
    for entry in plan.waiting:
        yield from _waiting_entry(entry.job, entry.code, training, snapshot)
    if len(waiting) < len(plan.waiting):
        for job, times in Counter(w.job for w in plan.waiting).items():
            if times > 1:
                yield Violation(
                    "waiting_twice", f"job {job} waits {times} times: give one reason", job
                )


def _waiting_entry(
    job: str, code: WaitCode, training: set[str], snapshot: Snapshot
) -> Iterator[Violation]:
    row = snapshot.jobs.position.get(job)
    if row is None:
        yield Violation("unknown_job", f"waiting job {job} is not in the snapshot", job)
        return
    if job in training:
        yield Violation(
            "placed_and_waiting", f"job {job} is both placed and waiting: say which", job
        )
    if (
        snapshot.jobs.columns.others["phase"][row] is JobPhase.PROFILING
        and code is not WaitCode.AWAITING_PROFILE
    ):
        yield Violation(
            "awaiting_profile",
            f"job {job} is still being profiled: it waits with awaiting_profile, not {code}",
            job,
        )


def _plan_numbers(plan: Plan) -> Iterator[Violation]:
    numbers: list[tuple[str, float | None]] = [("objective", plan.objective), ("bound", plan.bound)]
    for entry in plan.waiting:
        if _is_no_figure(entry.watts) or _is_no_figure(entry.earliest_s):
            numbers += [
                (f"watts of {entry.job}", entry.watts),
                (f"earliest_s of {entry.job}", entry.earliest_s),
            ]
    classes = {
        id(by_type): by_type for by_type in plan.shares.values()
    }.values()  # jobs of one class have one and the same mapping
    if not all(
        map(isfinite, filter(None, chain.from_iterable([by_type.values() for by_type in classes])))
    ):
        numbers += _shares(plan)
    for name, value in numbers:
        if _is_no_figure(value):
            yield Violation("not_finite", f"{name} is {value}: give a finite number or none")


def _shares(plan: Plan) -> Iterator[tuple[str, float]]:
    """Every share once, named after the first job of its class."""
    named: set[int] = set()
    for job, by_type in plan.shares.items():
        if id(by_type) not in named:
            named.add(id(by_type))
            yield from ((f"shares of {job} on {t}", share) for t, share in by_type.items())


def _is_no_figure(value: float | None) -> bool:
    return value is not None and not isfinite(value)


def _devices(load: _Load) -> Iterator[Violation]:
    position, others = load.snapshot.jobs.position, load.snapshot.jobs.columns.others
    used = (load.snapshot.node_by_id.get(node) for node in {node for node, _ in load.devices})
    known = {(n.id, d.id): d for n in used if n is not None for d in n.devices}
    for (node, name), holders in load.devices.items():
        device = known.get((node, name))
        if device is not None and _has_it_alone(device, holders, position):
            continue
        jobs = [job for job, _, _ in holders]
        if device is None:
            if node in load.snapshot.node_by_id:
                yield Violation(
                    "unknown_device", f"node {node} has no device {name}", jobs[0], node
                )
            continue
        if not device.healthy:
            yield Violation(
                "device_unhealthy",
                f"device {name} of node {node} is unhealthy: move job {jobs[0]}",
                jobs[0],
                node,
            )
        if len(holders) > device.slots:
            detail = (
                f"device {name} of node {node} has {device.slots} slots, but {', '.join(jobs)} are"
                " placed on it"
            )
            yield Violation("device_slots", detail, jobs[-1], node)
        if (total := sum(share for _, _, share in holders)) > 1.0 + TOLERANCE:
            detail = (
                f"shares of {', '.join(jobs)} on device {name} of node {node} add up to {total:g},"
                " more than 1"
            )
            yield Violation("device_share", detail, jobs[-1], node)
        for job in jobs if len(holders) > 1 else ():
            if job in position and not others["may_share"][position[job]]:
                yield Violation(
                    "may_not_share",
                    f"job {job} may not share device {name} of node {node}",
                    job,
                    node,
                )
        if device.held:
            yield from _taken(load, node, device, holders)


def _has_it_alone(
    device: DeviceView, holders: list[tuple[str, Purpose, float]], known: Mapping[str, int]
) -> bool:
    """Whether one job has a healthy device, which nobody holds whom the snapshot does not know: as
    with most of them.
    """
    if len(holders) != 1 or holders[0][2] > 1.0 or not device.healthy or not device.slots:
        return False
    for hold in device.held:  # noqa: SIM110  # any() costs twice as much
        if hold.job not in known:
            return False
    return True


def _taken(
    load: _Load, node: str, device: DeviceView, holders: list[tuple[str, Purpose, float]]
) -> Iterator[Violation]:
    held = [h for h in device.held if h.job not in load.snapshot.jobs.position]
    if held and len(holders) + len(held) > device.slots:
        detail = (
            f"device {device.id} of node {node} is still held by {held[0].job}, which the snapshot"
            " does not know"
        )
        yield Violation("device_taken", detail, holders[0][0], node)


def _nodes(load: _Load) -> Iterator[Violation]:
    for node_id, used in load.nodes.items():
        node = load.snapshot.node_by_id.get(node_id)
        if node is None:
            continue
        limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
        for name, amount in used.items():
            limit = limits.get(name, 0.0)
            if amount > limit + TOLERANCE * max(1.0, abs(amount)):
                code = {"cores": "node_cores", "memory_gb": "node_memory"}.get(
                    name, "node_resource"
                )
                yield Violation(
                    code,
                    f"node {node.name} has {limit:g} {name}, but its jobs need {amount:g}",
                    node=node_id,
                )


def _power(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    if snapshot.power_cap_w is None and not snapshot.power_caps:
        return
    for since_s, cap in snapshot.caps_ahead:
        needed = power_w(
            snapshot.node_by_id, Counter(node for node, _ in _devices_in_use(plan, since_s))
        )
        if needed > cap + TOLERANCE * max(1.0, cap):
            later = (
                f" from {since_s:g} on, before the next round" if since_s > snapshot.now_s else ""
            )
            yield Violation(
                "power_cap",
                f"the placements need {needed:g} W, the cluster may use {cap:g} W{later}: leave"
                " some waiting",
            )


def _devices_in_use(plan: Plan, at_s: float) -> set[tuple[str, str]]:
    """Devices of the placements that do not end by `at_s`."""
    going_on = (p for p in plan.placements if p.until_s is None or p.until_s > at_s)
    return {(seat.node, device) for p in going_on for seat in p.ranks for device in seat.devices}


def power_w(nodes: Mapping[str, NodeView], used: Mapping[str, int]) -> float:
    """IT power of nodes with so many devices in use; a node without work is closed and uses
    nothing.
    """
    curves = ((nodes[n].power_w, g) for n, g in used.items() if n in nodes and g)
    return float(sum(curve[min(g, len(curve) - 1)] for curve, g in curves if curve))
