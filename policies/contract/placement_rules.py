"""Rules of placements: each by itself, and all on their devices and nodes.

A seat uses the job's cores, memory and resources times its units; `cpu_quota` replaces the cores.
Amounts are compared as integers (`plan.demanded`, `plan.available`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeAlias

from policies.contract.labels import is_wish, worded
from policies.contract.plan import BILLIONTHS, Placement, Plan, all_demanded, available
from policies.contract.snapshot import (
    PROFILING,
    TRAINING,
    DeviceView,
    JobPhase,
    NodeRole,
    NodeState,
    NodeView,
    RankPlacement,
    Running,
    Snapshot,
)

TOLERANCE = 1e-9
"""Error of floating point in a sum of shares."""

Amounts: TypeAlias = tuple[float, float, tuple[tuple[str, float], ...]]
"""Cores, memory_gb and named resources of one unit."""

RESOURCE_CODES = {"cores": "node_cores", "memory_gb": "node_memory"}


@dataclass(frozen=True, slots=True)
class Violation:
    """Breach of a rule: its code, its subject, and a sentence with the values."""

    code: str
    detail: str
    job: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class PlacementRules:
    """Rules of a plan's placements: of each by itself, on devices, on nodes, and alone on nodes.

    Call `violations` first: it counts what `on_devices` and `on_nodes` judge. `holders`: (job,
    share) by node and device. `seated`: number of units on each node by their amounts. `least` and
    `most`: GPUs of each job.
    """

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self.plan = plan
        self.snapshot = snapshot
        self.columns = snapshot.jobs.columns
        self.position = snapshot.jobs.position
        self.nodes = snapshot.node_by_id
        self.others = self.columns.others
        self.listed = self.columns.listed
        self.least = self.listed["gpus_min"]
        self.most = self.listed["gpus_max"]
        self.open = {node.id for node in snapshot.nodes if node.takes_training}
        self.holders: dict[str, dict[str, list[tuple[str, float]]]]
        self.holders = defaultdict(lambda: defaultdict(list))
        self.seated: dict[Amounts, Counter[str]] = defaultdict(Counter)
        self._breaches: list[Violation] = []

    def violations(self) -> list[Violation]:
        """Return the breaches of each placement by itself."""
        phases = self.others["phase"]
        labels = self.others["labels"]
        types = self.others["allowed_types"]
        batch = self.others["batch"]
        running = self.others["running"]
        for placed in self.plan.placements:
            # 1. Every placement counts on its nodes; the rules below are about a job's own fields.
            row = self.position.get(placed.job)
            self._count(placed, row)
            if row is None:
                detail = f"job {placed.job} is not in the snapshot: place only its jobs"
                self._breach("unknown_job", detail, placed.job)
                continue
            if running[row]:
                self._check_unchanged(placed, row, running[row])

            # 2. Its nodes. Most ranks can break no rule: those with whole devices of an open node,
            #    of a job that takes every node.
            is_choosy = labels[row] or types[row] or placed.purpose is not TRAINING
            for rank in placed.ranks:
                is_whole = rank.share == 1.0 and rank.cpu_quota is None
                if is_choosy or not is_whole or rank.node not in self.open:
                    self._check_rank(placed, row, rank, labels[row], types[row])

            # 3. Its size: of a profile run, of a gang, of a batch job.
            if placed.purpose is PROFILING:
                self._check_profile_run(placed)
                continue
            gpus = placed.gpus
            if not self.least[row] <= gpus <= self.most[row]:
                needs = f"job {placed.job} needs {self.least[row]} to {self.most[row]} GPUs"
                detail = f"{needs} over all its ranks, not {gpus}"
                self._breach("gang_size", detail, placed.job)
            if batch[row]:
                self._check_units(placed, row)
            if gpus > 1 and len(placed.ranks) > 1 and not self.others["may_mix"][row]:
                self._check_types(placed)
            if phases[row] is JobPhase.PROFILING:
                detail = f"job {placed.job} is still being profiled: let it wait with"
                self._breach("awaiting_profile", f"{detail} awaiting_profile", placed.job)
        return self._breaches

    def _breach(self, code: str, detail: str, job: str, node: str | None = None) -> None:
        self._breaches.append(Violation(code, detail, job, node))

    def _count(self, placed: Placement, row: int | None) -> None:
        """Count a placement on its devices and nodes; refuse it if a rank has no device."""
        needs_gpus = row is None or self.most[row] > 0
        is_empty = not placed.ranks
        for rank in placed.ranks:
            for device in rank.devices:
                self.holders[rank.node][device].append((placed.job, rank.share))
            if needs_gpus and not rank.devices:
                is_empty = True
            if row is None:
                continue
            if rank.cpu_quota is None:
                self.seated[self.demands[row]][rank.node] += rank.units
            else:
                # The quota is of the whole seat, memory and resources are of each unit.
                self.seated[rank.cpu_quota, 0.0, ()][rank.node] += 1
                self.seated[0.0, *self.demands[row][1:]][rank.node] += rank.units
        if is_empty:
            detail = f"a rank of job {placed.job} has no device: give each rank at least one"
            self._breach("empty_placement", detail, placed.job)

    @cached_property
    def demands(self) -> Sequence[Amounts]:
        """Amounts of a unit of each job, by row."""
        cores = self.listed["cores"]
        memory_gb = self.listed["memory_gb"]
        return list(zip(cores, memory_gb, self.others["resources"], strict=True))

    def _check_rank(
        self,
        placed: Placement,
        row: int,
        rank: RankPlacement,
        labels: tuple[str, ...],
        allowed: tuple[str, ...],
    ) -> None:
        """Check a rank's share and quota, and whether its node takes the job."""
        job = placed.job
        node = self.nodes.get(rank.node)
        if not 0.0 < rank.share <= 1.0:
            detail = f"share of job {job} is {rank.share}: must be above 0 and at most 1"
            self._breach("out_of_range", detail, job, rank.node)
        if rank.cpu_quota is not None and not 0.0 < rank.cpu_quota < inf:
            detail = f"cpu_quota of job {job} is {rank.cpu_quota}: must be above 0"
            self._breach("out_of_range", detail, job, rank.node)
        if node is None:
            detail = f"node {rank.node} of job {job} is not in the snapshot"
            self._breach("unknown_node", detail, job, rank.node)
            return
        is_open = node.takes_training if placed.purpose is TRAINING else node.takes_profiling
        if not is_open:
            self._check_may_keep(placed, row, node)
        missing = {label for label in labels if label not in node.labels and not is_wish(label)}
        if missing:
            lacks = ", ".join(map(worded, sorted(missing)))
            detail = f"node {node.name} lacks {lacks}, which job {job} needs"
            self._breach("labels_missing", detail, job, node.id)
        if allowed and placed.purpose is TRAINING and node.gpu_type not in allowed:
            may = f"job {job} may run on {', '.join(allowed)}"
            detail = f"{may}, but node {node.name} has {node.gpu_type}"
            self._breach("type_not_allowed", detail, job, node.id)

    def _check_unchanged(self, placed: Placement, row: int, running: tuple[Running, ...]) -> None:
        """Refuse changes of a running placement that nothing carries out while it stays."""
        for run in running:
            if (run.purpose, run.copy) != (placed.purpose, placed.copy):
                continue
            if needs_stop(run.ranks, placed.ranks):
                continue
            if placed.steps_quota != run.steps_quota:
                was = f"steps_quota {run.steps_quota} of running job {placed.job}"
                detail = f"{was} cannot become {placed.steps_quota}: keep it, or move the job"
                self._breach("not_carried_out", detail, placed.job)
            if placed.ranks == run.ranks:
                continue
            if _units_of(placed.ranks) != _units_of(run.ranks):
                detail = f"units of running job {placed.job} cannot change while it stays"
                self._breach("not_carried_out", f"{detail}: keep them", placed.job)
            for seat in seats_with_new_quota(run.ranks, placed.ranks):
                node = self.nodes.get(seat.node)
                if not self.listed["cores"][row]:
                    detail = f"job {placed.job} asks for no cores, so it gets no quota of them"
                    self._breach("not_carried_out", f"{detail} while it runs", placed.job)
                elif node is not None and not node.changes_quotas:
                    detail = f"node {node.name} cannot change the cores of running job {placed.job}"
                    self._breach("not_carried_out", f"{detail}: keep its cpu_quota", placed.job)

    def _check_may_keep(self, placed: Placement, row: int, node: NodeView) -> None:
        """Check whether a node that takes no new placements of this purpose may keep this one."""
        job = placed.job
        state = node.state
        until_s = placed.until_s
        may_stay = stays(placed, self.others["running"][row])
        if state is NodeState.LOST or (state is not NodeState.READY and not may_stay):
            detail = f"node {node.name} is {state.value}: job {job} cannot be placed there"
            self._breach("node_state", detail, job, node.id)
        elif state is NodeState.DRAINING and node.drain_until_s is not None:
            ends_late = until_s is not None and until_s > node.drain_until_s
            if self.snapshot.now_s >= node.drain_until_s or ends_late:
                emptied = f"node {node.name} must be empty by {node.drain_until_s:g}"
                detail = f"{emptied}: end or move job {job} by then"
                self._breach("node_state", detail, job, node.id)
        foreign = NodeRole.PROFILING if placed.purpose is TRAINING else NodeRole.PRODUCTION
        if node.role is foreign and not may_stay:
            role = f"node {node.name} has the role {node.role.value}"
            detail = f"{role}: no {placed.purpose.value} of job {job} may start there"
            self._breach("node_role", detail, job, node.id)

    def _check_profile_run(self, placed: Placement) -> None:
        """Check that a profile run has as many GPUs as its request says."""
        for request in self.snapshot.profiling:
            if (request.job, request.copy) != (placed.job, placed.copy):
                continue
            if request.gpus != placed.gpus:
                run = f"profile run {placed.copy} of job {placed.job}"
                detail = f"{run} was asked for {request.gpus} GPUs, not {placed.gpus}"
                self._breach("profile_mismatch", detail, placed.job)

    def _check_units(self, placed: Placement, row: int) -> None:
        """Check the units of a batch job: their devices, their number, and their nodes."""
        job = placed.job
        seats = placed.ranks
        units, most, node_count = self.unit_limits[row]
        gpus_per_unit = self.least[row] // units
        nodes: set[str] = set()
        seated = 0
        for seat in seats:
            nodes.add(seat.node)
            seated += seat.units
            if len(seat.devices) != gpus_per_unit * seat.units:
                wants = f"{seat.units} units of job {job} have {gpus_per_unit} GPUs each"
                detail = f"{wants}, not {len(seat.devices)} together"
                self._breach("units", detail, job, seat.node)
            if most and seat.units > most:
                detail = f"job {job} has at most {most} units on a node"
                self._breach("units", detail, job, seat.node)
        if seated != units or len(nodes) < len(seats):
            detail = f"job {job} has {units} units, one seat on each node, not {seated} on"
            self._breach("units", f"{detail} {len(seats)} seats of {len(nodes)} nodes", job)
        if node_count and len(nodes) != node_count:
            self._breach("units", f"job {job} is on {node_count} nodes, not {len(nodes)}", job)

    @cached_property
    def unit_limits(self) -> Sequence[tuple[int, int, int]]:
        """(units, most on a node, number of nodes) of each job by row; 0: any number."""
        units = self.listed["units"]
        return list(zip(units, self.listed["units_per_node"], self.listed["nodes"], strict=True))

    def _check_types(self, placed: Placement) -> None:
        """Check that a gang which may not mix GPU types has GPUs of one type."""
        nodes = {rank.node for rank in placed.ranks if rank.devices}
        types = sorted({self.nodes[node].gpu_type for node in nodes if node in self.nodes})
        if len(types) > 1:
            detail = f"job {placed.job} may not mix GPU types, but sits on {', '.join(types)}"
            self._breach("may_not_mix", detail, placed.job)

    def on_devices(self) -> Iterator[Violation]:
        """Yield the breaches of placements that share devices."""
        # 1. Jobs that hold a device of these nodes, and that the snapshot does not list.
        used_nodes = [self.nodes[node] for node in self.holders if node in self.nodes]
        unlisted: set[str] = set()
        for view in used_nodes:
            for device in view.devices:
                if device.held:
                    unlisted.update([hold.job for hold in device.held])
        unlisted -= self.position.keys()

        # 2. Each device with the jobs that are placed on it.
        for view in used_nodes:
            node = view.id
            devices = {device.id: device for device in view.devices}
            for name, holders in self.holders[node].items():
                if name not in devices:
                    for job, _ in holders:
                        detail = f"node {node} has no device {name}, on which job {job} is placed"
                        yield Violation("unknown_device", detail, job, node)
                    continue
                device = devices[name]
                if not device.healthy:
                    for job, _ in holders:
                        detail = f"device {name} of node {node} is unhealthy: move job {job}"
                        yield Violation("device_unhealthy", detail, job, node)
                # A single holder of at most a whole device breaks no rule of sharing.
                if len(holders) > 1 or device.slots < 1 or holders[0][1] > 1.0:
                    yield from self._on_shared_device(node, device, holders)
                if not unlisted:
                    continue
                strangers = [hold.job for hold in device.held if hold.job in unlisted]
                if strangers and len(holders) + len(strangers) > device.slots:
                    held = f"device {name} of node {node} is still held by {strangers[0]}"
                    detail = f"{held}, which the snapshot does not know"
                    yield Violation("device_taken", detail, holders[0][0], node)

    def _on_shared_device(
        self, node: str, device: DeviceView, holders: Sequence[tuple[str, float]]
    ) -> Iterator[Violation]:
        """Yield the breaches on one device; `holders`: (job, share)."""
        jobs = [job for job, _ in holders]
        where = f"device {device.id} of node {node}"
        if len(jobs) > device.slots:
            detail = f"{where} has {device.slots} slots, but {', '.join(jobs)} are placed on it"
            yield Violation("device_slots", detail, jobs[-1], node)
        total = sum(share for _, share in holders)
        if total > 1.0 + TOLERANCE:
            detail = f"shares of {', '.join(jobs)} on {where} add up to {total:g}, more than 1"
            yield Violation("device_share", detail, jobs[-1], node)
        if len(jobs) == 1:
            return
        for job in jobs:
            if job in self.position and not self.others["may_share"][self.position[job]]:
                yield Violation("may_not_share", f"job {job} may not share {where}", job, node)

    def on_nodes(self) -> Iterator[Violation]:
        """Yield the resources of which the placements use more than a node has."""
        # 1. Sum up what the units on each node use, in billionths.
        used: dict[str, Counter[str]] = defaultdict(Counter)
        for amounts, units_on in self.seated.items():
            for name, amount in all_demanded(_by_name(*amounts)).items():
                for node, units in units_on.items():
                    used[node][name] += units * amount

        # 2. Compare it with what the node has; unknown nodes have their own violation.
        for node, used_amounts in used.items():
            if node not in self.nodes:
                continue
            view = self.nodes[node]
            limits = _by_name(view.cores, view.memory_gb, view.resources)
            for name, amount in used_amounts.items():
                limit = limits.get(name, 0.0)
                if amount > available(limit):
                    needs = f"its jobs need {amount / BILLIONTHS:g}"
                    detail = f"node {view.name} has {limit:g} {name}, but {needs}"
                    code = RESOURCE_CODES.get(name, "node_resource")
                    yield Violation(code, detail, node=view.id)

    def alone(self) -> Iterator[Violation]:
        """Yield the exclusive jobs that are not alone on their nodes."""
        exclusive = self.others["exclusive"]
        if not any(exclusive):
            return
        jobs_on: dict[str, list[str]] = defaultdict(list)
        for placed in self.plan.placements:
            for seat in placed.ranks:
                jobs_on[seat.node].append(placed.job)
        for node, jobs in jobs_on.items():
            if len(jobs) == 1:
                continue
            for job in jobs:
                row = self.position.get(job)
                if row is not None and exclusive[row]:
                    others = ", ".join(other for other in jobs if other != job)
                    detail = f"job {job} is to be alone on node {node}, not with {others}"
                    yield Violation("exclusive", detail, job, node)


def _by_name(
    cores: float, memory_gb: float, resources: tuple[tuple[str, float], ...]
) -> dict[str, float]:
    """Return these amounts by name."""
    return {**dict(resources), "cores": cores, "memory_gb": memory_gb}


def stays(placed: Placement, running: tuple[Running, ...]) -> bool:
    """Return True if a placement keeps the devices that the job has for this purpose."""
    for run in running:
        if run.copy != placed.copy or run.purpose is not placed.purpose:
            continue
        # Nearly always the ranks are equal: only otherwise their order must not matter.
        if run.ranks == placed.ranks or _devices(run.ranks) == _devices(placed.ranks):
            return True
    return False


def _devices(ranks: Sequence[RankPlacement]) -> set[tuple[str, frozenset[str]]]:
    """Return (node, its devices) of each rank."""
    return {(rank.node, frozenset(rank.devices)) for rank in ranks}


def needs_stop(before: Sequence[RankPlacement], after: Sequence[RankPlacement]) -> bool:
    """Return True if nodes, devices or shares differ, whatever the order of ranks."""
    if before == after:  # nearly always
        return False
    return _seats(before) != _seats(after)


def _seats(ranks: Sequence[RankPlacement]) -> list[tuple[str, tuple[str, ...], float]]:
    """Return node, devices and share of each rank, sorted."""
    return sorted((rank.node, tuple(sorted(rank.devices)), rank.share) for rank in ranks)


def seats_with_new_quota(
    before: Sequence[RankPlacement], after: Sequence[RankPlacement]
) -> list[RankPlacement]:
    """Return the seats of `after` whose cpu_quota differs; both are on the same devices."""
    if before == after:  # nearly always
        return []
    quotas = Counter((seat.node, frozenset(seat.devices), seat.cpu_quota) for seat in before)
    changed = []
    for seat in after:
        key = seat.node, frozenset(seat.devices), seat.cpu_quota
        if quotas[key]:
            quotas[key] -= 1
        else:
            changed.append(seat)
    return changed


def _units_of(ranks: Sequence[RankPlacement]) -> Counter[tuple[str, frozenset[str], int]]:
    """Count the seats of a gang by node and devices, with their units."""
    return Counter((seat.node, frozenset(seat.devices), seat.units) for seat in ranks)
