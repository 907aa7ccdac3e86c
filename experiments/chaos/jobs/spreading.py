"""A policy of a third party that makes what others seldom do: each GPU of a job is a rank on a node
of its own, and jobs that may share a GPU do so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loadmaster.policy_api import (
    DeviceView,
    JobPhase,
    JobView,
    NodeView,
    Placement,
    Plan,
    PlanStatus,
    Purpose,
    RankPlacement,
    Running,
    Snapshot,
    WaitCode,
    Waiting,
    parameter,
)

NAME = "one_rank_a_node"
HALF = 0.5
"""Share of a job that may share its GPU."""


@dataclass(frozen=True, slots=True)
class OneRankANode:
    """Spread each job over as many nodes as it wants GPUs, two that may on one GPU; what runs
    stays, its term prolonged, as long as its nodes take work.
    """

    term_s: float = parameter(
        30.0, meaning="how long a placement lasts unless it is prolonged, in seconds", minimum=1.0
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Jobs in their order."""
        given = _Given()
        placements: list[Placement] = []
        waiting: list[Waiting] = []
        for job in snapshot.jobs:
            seats = None if job.phase is JobPhase.PROFILING else _seats(snapshot, job, given)
            if seats is None:
                code = (
                    WaitCode.AWAITING_PROFILE
                    if job.phase is JobPhase.PROFILING
                    else WaitCode.NO_CAPACITY
                )
                waiting.append(Waiting(job.id, code))
            else:
                placements.append(Placement(job.id, seats, until_s=snapshot.now_s + self.term_s))
        return Plan(NAME, PlanStatus.HEURISTIC, tuple(placements), tuple(waiting))


@dataclass(slots=True)
class _Given:
    """Shares of devices that this plan has newly given, by (node, device)."""

    shares: dict[tuple[str, str], float] = field(default_factory=dict)

    def held(self, node: NodeView, device: DeviceView, job: JobView) -> float:
        """Share of the device that others have, or are about to have."""
        others = sum(hold.share for hold in device.held if hold.job != job.id)
        return others + self.shares.get((node.id, device.id), 0.0)

    def take(self, seats: tuple[RankPlacement, ...]) -> None:
        for seat in seats:
            for device in seat.devices:
                key = seat.node, device
                self.shares[key] = self.shares.get(key, 0.0) + seat.share


def _seats(snapshot: Snapshot, job: JobView, given: _Given) -> tuple[RankPlacement, ...] | None:
    for run in job.running:
        if run.purpose is Purpose.TRAINING and _may_stay(snapshot, run):
            return run.ranks
    share = HALF if job.may_share else 1.0
    fitting = [
        RankPlacement(node.id, (device.id,), share)
        for node in snapshot.nodes
        for device in _fullest(node, job, share, given)
    ]
    if len(fitting) < job.gpus_min:
        return None
    seats = tuple(fitting[: job.gpus_min])
    given.take(seats)
    return seats


def _may_stay(snapshot: Snapshot, run: Running) -> bool:
    return all(snapshot.node_by_id[seat.node].takes_training for seat in run.ranks)


def _fullest(node: NodeView, job: JobView, share: float, given: _Given) -> Iterator[DeviceView]:
    """The node's fullest GPU that has room for the share, if it takes work."""
    devices = node.devices if node.takes_training else ()
    fitting = [
        device
        for device in devices
        if device.healthy
        and share * device.slots >= 1.0
        and given.held(node, device, job) + share <= 1.0
    ]
    yield from sorted(fitting, key=lambda device: -given.held(node, device, job))[:1]


def installed(folder: Path) -> Path:
    """A folder that, on the path for modules, makes the policy known as an installed package's
    entry point would.
    """
    info = folder / "one_rank_a_node-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-rank-a-node\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[loadmaster.policies]\n{NAME} = {__name__}:OneRankANode\n"
    )
    return folder
