"""What nearly every plan of a cluster of whole GPUs is, and is quickly seen to be: nothing in which
a rule could be broken.

The judge's rules go through placements, devices and nodes one after the other, and word what they
find. Where nobody uses anything but whole GPUs, one job each, one look at every placement does
instead (of a round of 100 jobs an eighth before, a twentieth since).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from math import isfinite

from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import DeviceView, JobPhase, NodeView, Purpose, RankSeat, Snapshot

TRAINING, PROFILING = Purpose.TRAINING, JobPhase.PROFILING


def breaks_no_rule(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether the plan's placements and waiting jobs are plain and break no rule; False says
    nothing. Its numbers are not judged.

    Plain is a plan of jobs on whole devices of one ready node each, without terms, in a cluster
    without limits of power, for jobs that ask for nothing but GPUs of any type.
    """
    return (
        _is_plain(snapshot)
        and _is_whole(plan, snapshot)
        and _have_devices_alone(plan.placements, snapshot)
    )


def _is_plain(snapshot: Snapshot) -> bool:
    """Whether there are no rules but those of GPUs."""
    columns = snapshot.jobs.columns
    if snapshot.power_cap_w is not None or snapshot.power_caps or not columns.gpus_only:
        return False
    others = columns.others
    return (
        not any(others["labels"])
        and not any(others["allowed_types"])
        and PROFILING not in others["phase"]
    )


def _is_whole(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether every job of the snapshot has a placement or waits, once, and no other has."""
    decided = {p.job for p in plan.placements}
    decided.update([w.job for w in plan.waiting])
    known = snapshot.jobs.position
    return (
        len(decided) == len(plan.placements) + len(plan.waiting) == len(known)
        and decided == known.keys()
    )


def _have_devices_alone(placements: Iterable[Placement], snapshot: Snapshot) -> bool:
    """Whether each has one process on as many devices as its job may have, which are given to
    nobody else, and has no terms.
    """
    jobs, given = snapshot.jobs, _Given(snapshot)
    position, least, most = (
        jobs.position,
        jobs.columns.counts["gpus_min"].tolist(),
        jobs.columns.counts["gpus_max"].tolist(),
    )
    for placed in placements:
        if len(placed.ranks) != 1 or not _is_simple(placed, seat := placed.ranks[0]):
            return False
        if (
            not seat.devices
            or not least[row := position[placed.job]] <= len(seat.devices) <= most[row]
        ):
            return False
        left = given[seat.node]
        for device in seat.devices:
            if device not in left:
                return False
            left.remove(device)
    return True


def _is_simple(placed: Placement, seat: RankSeat) -> bool:
    """Whether its one seat has whole devices, and nothing is said of it but how long it may run."""
    run_s = placed.predicted_run_s
    return (
        seat.share == 1.0
        and placed.purpose is TRAINING
        and seat.cpu_quota
        is placed.until_s
        is placed.steps_quota
        is placed.predicted_energy_cost
        is None
        and (run_s is None or isfinite(run_s))
    )


class _Given(dict[str, set[str]]):
    """By node, found when it is asked for: its healthy devices that nobody holds whom the snapshot
    does not know.

    None where it takes no training. Looked at again only where the node is not as in the round
    before, or a holder is not known any more.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._nodes, self._known = snapshot.node_by_id, snapshot.jobs.position.keys()
        self._kept: dict[str, tuple[NodeView, frozenset[str], frozenset[str]]] = (
            snapshot.standing.setdefault("usable", {})
        )

    def __missing__(self, name: str) -> set[str]:
        node, before = self._nodes.get(name), self._kept.get(name)
        if before is not None and before[0] is node and before[1] <= self._known:
            usable: Iterable[str] = before[2]
        else:
            usable = self._look(node) if node is not None and node.takes_training else ()
        found = self[name] = set(usable)
        return found

    def _look(self, node: NodeView) -> frozenset[str]:
        found = frozenset(_usable(node.devices, self._known))
        holders = frozenset([hold.job for device in node.devices for hold in device.held])
        if holders <= self._known:
            self._kept[node.id] = node, holders, found
        return found


def _usable(devices: tuple[DeviceView, ...], known: Container[str]) -> Iterator[str]:
    for device in devices:
        if device.healthy and device.slots > 0 and all(hold.job in known for hold in device.held):
            yield device.id
