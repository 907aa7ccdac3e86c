"""A policy for tests, as a third party would bring it: a job of several GPUs is a gang of one rank
a node, for a term at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class OneRankANode:
    """Spread each job over as many nodes as it wants GPUs; what runs stays, its term prolonged, as
    long as its nodes take work.
    """

    term_s: float = parameter(
        30.0, meaning="how long a placement lasts unless it is prolonged, in seconds", minimum=1.0
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Jobs in their order; a node's GPU is used once."""
        used: set[tuple[str, str]] = set()
        placements: list[Placement] = []
        waiting: list[Waiting] = []
        for job in snapshot.jobs:
            seats = None if job.phase is JobPhase.PROFILING else self._seats(snapshot, job, used)
            if seats is None:
                code = (
                    WaitCode.AWAITING_PROFILE
                    if job.phase is JobPhase.PROFILING
                    else WaitCode.NO_CAPACITY
                )
                waiting.append(Waiting(job.id, code))
            else:
                used |= {(seat.node, device) for seat in seats for device in seat.devices}
                placements.append(Placement(job.id, seats, until_s=snapshot.now_s + self.term_s))
        return Plan(NAME, PlanStatus.HEURISTIC, tuple(placements), tuple(waiting))

    def _seats(
        self, snapshot: Snapshot, job: JobView, used: set[tuple[str, str]]
    ) -> tuple[RankPlacement, ...] | None:
        for run in job.running:
            if run.purpose is Purpose.TRAINING and _may_stay(snapshot, run):
                return run.ranks
        free = [
            RankPlacement(node.id, (device.id,))
            for node in snapshot.nodes
            for device in _one_free(node, job, used)
        ]
        return tuple(free[: job.gpus_min]) if len(free) >= job.gpus_min else None


def _may_stay(snapshot: Snapshot, run: Running) -> bool:
    return all(snapshot.node_by_id[seat.node].takes_training for seat in run.ranks)


def _one_free(node: NodeView, job: JobView, used: set[tuple[str, str]]) -> Iterator[DeviceView]:
    """The node's first GPU that nobody else has, if it takes work."""
    for device in node.devices if node.takes_training else ():
        if (
            device.healthy
            and (node.id, device.id) not in used
            and all(hold.job == job.id for hold in device.held)
        ):
            yield device
            return


def installed(folder: Path) -> Path:
    """A folder that, on the path for modules, makes the policy known as an installed package's
    entry point would.
    """
    info = folder / "one_rank_a_node-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-rank-a-node\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[loadmaster.policies]\n{NAME} = tests.gang_policy:OneRankANode\n"
    )
    return folder
