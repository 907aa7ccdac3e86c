"""What nearly every plan of a cluster of whole GPUs is, and is quickly seen to be: nothing in which a rule could be broken.

The judge's rules go through placements, devices and nodes one after the other, and word what they find. Where nobody uses anything
but whole GPUs, one job each, one look at every placement does instead (of a round of 100 jobs an eighth before, a twentieth since).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from policies.plan import Placement, Plan
from policies.snapshot import DeviceView, JobPhase, NodeView, Purpose, RankSeat, Snapshot

TRAINING, PROFILING = Purpose.TRAINING, JobPhase.PROFILING


def breaks_no_rule(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether the plan's placements and waiting jobs are plain and break no rule; False says nothing. Its numbers are not judged.

    Plain is a plan of jobs on whole devices of one ready node each, without terms, in a cluster without limits of power, for jobs
    that ask for nothing but GPUs of any type.
    """
    if not _is_plain(snapshot) or not all(map(_is_simple, plan.placements)) or not _is_whole(plan, snapshot):
        return False
    return _are_sized(plan, snapshot) and _have_devices_alone([p.ranks[0] for p in plan.placements], snapshot)


def _is_plain(snapshot: Snapshot) -> bool:
    """Whether there are no rules but those of GPUs."""
    columns = snapshot.jobs.columns
    if snapshot.power_cap_w is not None or snapshot.power_caps or not columns.gpus_only:
        return False
    others = columns.others
    return not any(others["labels"]) and not any(others["allowed_types"]) and PROFILING not in others["phase"]


def _is_simple(placed: Placement) -> bool:
    """Whether it has one process that holds whole devices, and nothing is said of it but how long it may run."""
    ranks, run_s = placed.ranks, placed.predicted_run_s
    return (
        len(ranks) == 1
        and ranks[0].share == 1.0
        and placed.purpose is TRAINING
        and ranks[0].cpu_quota is placed.until_s is placed.steps_quota is placed.predicted_energy_cost is None
        and (run_s is None or isfinite(run_s))
    )


def _is_whole(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether every job of the snapshot has a placement or waits, once, and no other has."""
    decided = {p.job for p in plan.placements}
    decided.update([w.job for w in plan.waiting])
    known = snapshot.jobs.position
    return len(decided) == len(plan.placements) + len(plan.waiting) == len(known) and decided == known.keys()


def _are_sized(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether every job has as many devices as it may have."""
    columns, position = snapshot.jobs.columns, snapshot.jobs.position
    least, most = columns.counts["gpus_min"].tolist(), columns.counts["gpus_max"].tolist()
    sizes = [(position[p.job], len(p.ranks[0].devices)) for p in plan.placements]
    return all(size > 0 and least[row] <= size <= most[row] for row, size in sizes)


def _have_devices_alone(seats: list[RankSeat], snapshot: Snapshot) -> bool:
    """Whether no device is there twice, and each is one that may be given."""
    devices = [(seat.node, device) for seat in seats for device in seat.devices]
    if len(set(devices)) < len(devices):
        return False
    given = {node: _given(node, snapshot) for node in {seat.node for seat in seats}}
    return all(device in given[node] for node, device in devices)


def _given(name: str, snapshot: Snapshot) -> frozenset[str]:
    """Healthy devices of a node that nobody holds whom the snapshot does not know; none where it takes no training.

    Looked at again only where the node is not as in the round before, or a holder is not known any more.
    """
    node, known = snapshot.node_by_id.get(name), snapshot.jobs.position
    kept: dict[str, tuple[NodeView, frozenset[str], frozenset[str]]] = snapshot.standing.setdefault("usable", {})
    before = kept.get(name)
    if before is not None and before[0] is node and before[1] <= known.keys():
        return before[2]
    if node is None or not node.takes_training:
        return frozenset()
    found = frozenset(_usable(node.devices, known))
    holders = frozenset([hold.job for device in node.devices for hold in device.held])
    if holders <= known.keys():
        kept[name] = node, holders, found
    return found


def _usable(devices: tuple[DeviceView, ...], known: Mapping[str, int]) -> Iterator[str]:
    for device in devices:
        if device.healthy and device.slots > 0 and all(hold.job in known for hold in device.held):
            yield device.id
