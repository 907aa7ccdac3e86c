"""Limits of GPUs by team at a launch: what is being stopped holds its GPUs until it has ended.

A round's snapshot does not show jobs that were cancelled or held and are still stopping.
"""

from collections import Counter

from controlplane.loop.live.live_assignments import LiveAssignments, is_placement
from controlplane.loop.rounds import RejectCode, Rejected
from jobs.models import Job
from policies.contract.plan import Placement
from policies.contract.snapshot import Snapshot


class TeamRooms:
    """Recheck of the limits against all live assignments, and the launches before it."""

    def __init__(self, snapshot: Snapshot, held: LiveAssignments) -> None:
        limits = {t.name: t.max_gpus for t in snapshot.teams if t.max_gpus is not None}
        self._rooms, self._stopping = Counter(limits), set[str]()
        self._teams, self._position = snapshot.jobs.columns.others["team"], snapshot.jobs.position
        if limits:
            self._count(held)

    def _count(self, held: LiveAssignments) -> None:
        jobs = Job.objects.filter(pk__in=list(held.of_job), team__name__in=list(self._rooms))
        for job, team in jobs.values_list("pk", "team__name"):
            for assignment in held.of_job[job]:
                self._rooms[team] -= assignment.gpus
                self._stopping |= set() if is_placement(assignment) else {team}

    def refusal(self, placement: Placement) -> Rejected | None:
        """Refusal if the job's team would use more GPUs than it may."""
        team = self._team(placement)
        if team not in self._rooms or placement.gpus <= max(0, self._rooms[team]):
            return None
        code = RejectCode.DEFERRED if team in self._stopping else RejectCode.STALE
        return Rejected(placement.key, code, f"team {team} has reached its limit of GPUs")

    def take(self, placement: Placement) -> None:
        """Record a launch."""
        if (team := self._team(placement)) in self._rooms:
            self._rooms[team] -= placement.gpus

    def _team(self, placement: Placement) -> str:
        return str(self._teams[self._position[placement.job]])
