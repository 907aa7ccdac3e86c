"""Which running jobs stay where they are without being decided about.

A job on a node that takes nothing new (cordoned, or turned to profiling) stays; on a draining node
it stays if it ends in time, and else only where there is no room elsewhere. A job launched at this
very moment stays: where stops take no time, every stop asks for another round of the same moment,
and rounds that undid each other's launches would never come to an end. The baselines never touch a
started job that can stay at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from policies.contract.plan import Waiting
from policies.contract.snapshot import NodeState, Purpose, Running, Snapshot
from policies.contract.validation import TOLERANCE, power_w, rank_demand
from policies.placement.eligibility import (
    admits,
    busy_devices,
    capacities,
    free_devices,
    wants_resources,
)
from policies.placement.speed import Speeds

TRAINING = Purpose.TRAINING
"""See `policies.contract.validation.PROFILING`."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A running job that stays: its row, its placement now, and when it must leave (a drain)."""

    row: int
    run: Running
    until_s: float | None = None


def stays(
    snapshot: Snapshot, waiting: Mapping[int, Waiting], *, never_touch: bool
) -> tuple[tuple[Stay, ...], dict[int, Stay]]:
    """(jobs that stay, by row jobs that may stay if there is no room elsewhere); by arrival as far
    as watts and resources go.
    """
    pinned: list[Stay] = []
    later: list[Stay] = []
    arrival = snapshot.jobs.columns.numbers["arrival_s"]
    running = snapshot.jobs.columns.others["running"]
    runs = [
        (row, run)
        for row, of in enumerate(running)
        if of and (run := training_run(of)) is not None and row not in waiting
    ]
    if not never_touch:
        runs = [(row, run) for row, run in runs if not _is_open(snapshot, run)]
    if not runs:
        return (), {}
    room, speeds = _Room(snapshot), Speeds(snapshot.kinds)
    for row, run in sorted(runs, key=lambda r: (arrival[r[0]], r[0])):
        if not _may_stay(snapshot, row, run):
            continue
        stay = Stay(row, run, _leaves_s(snapshot, run))
        if never_touch or _is_pinned(snapshot, speeds, stay):
            if room.take(stay):
                pinned.append(stay)
        elif _is_outside(snapshot, run):
            later.append(stay)
    return tuple(pinned), {s.row: s for s in later if room.take(s, watts=False)}


def training_run(runs: tuple[Running, ...]) -> Running | None:
    """The one placement a job trains on; None if there is none, or several copies."""
    if len(runs) == 1:
        return runs[0] if runs[0].purpose is TRAINING else None
    training = [r for r in runs if r.purpose is TRAINING]
    return training[0] if len(training) == 1 else None


class _Room:
    """What is left of devices, resources and watts while stays are collected."""

    def __init__(self, snapshot: Snapshot) -> None:
        known = snapshot.jobs.position
        self.snapshot = snapshot
        self.devices = {(n.id, d) for n in snapshot.nodes for d in free_devices(n, known)}
        self.used: Counter[str] = Counter()
        if snapshot.cap_w is not None:
            self.used.update({n.id: busy_devices(n, known) for n in snapshot.nodes})
        self.gpus_only = not wants_resources(snapshot)
        if not self.gpus_only:
            names = sorted(
                {name for of in snapshot.jobs.columns.others["resources"] for name, _ in of}
            )
            self.names = ("cores", "memory_gb", *names)
            self.left = dict(
                zip(
                    (n.id for n in snapshot.nodes),
                    capacities(snapshot, snapshot.nodes, self.names),
                    strict=True,
                )
            )

    def take(self, stay: Stay, *, watts: bool = True) -> bool:
        """Take what the job uses, all or nothing."""
        wanted = {(s.node, d) for s in stay.run.ranks for d in s.devices}
        if (
            not wanted <= self.devices
            or not self._has_resources(stay)
            or not self._take_watts(wanted, watts=watts)
        ):
            return False
        self.devices -= wanted
        for seat in stay.run.ranks if not self.gpus_only else ():
            self.left[seat.node] -= self._demand(stay)
        return True

    def _take_watts(self, wanted: set[tuple[str, str]], *, watts: bool) -> bool:
        if self.snapshot.cap_w is None:
            return True
        used = self.used + Counter(node for node, _ in wanted)
        if watts and not self._has_watts(used):
            return False
        self.used = used
        return True

    def _demand(self, stay: Stay) -> list[float]:
        demand = rank_demand(self.snapshot.jobs.columns, stay.row, len(stay.run.ranks))
        return [demand.get(name, 0.0) for name in self.names]

    def _has_resources(self, stay: Stay) -> bool:
        if self.gpus_only:
            return True
        seats = Counter(s.node for s in stay.run.ranks)
        demand = self._demand(stay)
        return all(
            d * times <= left + TOLERANCE
            for n, times in seats.items()
            for d, left in zip(demand, self.left[n], strict=True)
        )

    def _has_watts(self, used: Counter[str]) -> bool:
        cap = self.snapshot.cap_w
        return cap is None or power_w(self.snapshot.node_by_id, used) <= cap + TOLERANCE


def _may_stay(snapshot: Snapshot, row: int, run: Running) -> bool:
    """Whether its nodes and devices still suit the job."""
    columns, nodes = snapshot.jobs.columns, [snapshot.node_by_id.get(s.node) for s in run.ranks]
    signature = (
        frozenset(columns.others["allowed_types"][row]),
        frozenset(columns.others["labels"][row]),
    )
    gpus = sum(len(s.devices) for s in run.ranks)
    if not columns.counts["gpus_min"][row] <= gpus <= columns.counts["gpus_max"][row] or any(
        s.share != 1.0 for s in run.ranks
    ):
        return False
    for node in nodes:
        if (
            node is None
            or node.state is NodeState.LOST
            or not admits(signature, node.gpu_type, frozenset(node.labels))
        ):
            return False
        if (
            node.state is NodeState.DRAINING
            and node.drain_until_s is not None
            and node.drain_until_s <= snapshot.now_s
        ):
            return False
    return len({n.gpu_type for n in nodes if n is not None}) == 1 or bool(
        columns.others["may_mix"][row]
    )


def _leaves_s(snapshot: Snapshot, run: Running) -> float | None:
    ends = [_drain_s(snapshot, s.node) for s in run.ranks]
    return min((e for e in ends if e is not None), default=None)


def _drain_s(snapshot: Snapshot, node: str) -> float | None:
    view = snapshot.node_by_id[node]
    return view.drain_until_s if view.state is NodeState.DRAINING else None


def _is_open(snapshot: Snapshot, run: Running) -> bool:
    """Whether the policy decides freely about a job: most running jobs, seen before anything that
    takes time.
    """
    return run.since_s < snapshot.now_s and all(
        (node := snapshot.node_by_id.get(s.node)) is not None and node.takes_training
        for s in run.ranks
    )


def _is_outside(snapshot: Snapshot, run: Running) -> bool:
    return all(not snapshot.node_by_id[s.node].takes_training for s in run.ranks)


def _is_pinned(snapshot: Snapshot, speeds: Speeds, stay: Stay) -> bool:
    """Whether the job stays by itself: it was launched only now, or nothing new may come there and
    it need not leave before it ends.
    """
    if stay.run.since_s >= snapshot.now_s:
        return True
    nodes = [snapshot.node_by_id[s.node] for s in stay.run.ranks]
    if all(n.takes_training for n in nodes):
        return False
    if all(n.state is not NodeState.DRAINING for n in nodes):
        return True
    end_s = snapshot.now_s + remaining_s(snapshot, speeds, stay)
    return stay.until_s is not None and end_s <= stay.until_s


def remaining_s(snapshot: Snapshot, speeds: Speeds, stay: Stay) -> float:
    """Return the time that the rest of a job takes where it runs now; inf if unknown."""
    columns = snapshot.jobs.columns
    rate = speeds.on_ranks(columns.kinds[stay.row], stay.run.ranks, snapshot.node_by_id)
    steps = columns.numbers["remaining_steps"][stay.row]
    return float(steps / rate) if rate > 0.0 else float("inf")
