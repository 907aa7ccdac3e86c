"""Recheck of the teams' limits of GPUs at a launch.

A job that is being stopped holds its GPUs until it has ended. If it was cancelled or held, the
round's snapshot no longer shows it, so the policy may plan with GPUs that its team still uses.
"""

from collections import Counter

from controlplane.loop.live.live_assignments import LiveAssignments, is_placement
from controlplane.loop.rounds import RejectCode, Rejected
from jobs.models import Job
from policies.contract.plan import Placement
from policies.contract.snapshot import Snapshot


class TeamRooms:
    """GPUs that each team with a limit may still take, by all live assignments."""

    def __init__(self, snapshot: Snapshot, live: LiveAssignments) -> None:
        limits = {team.name: team.max_gpus for team in snapshot.teams if team.max_gpus is not None}
        self._free_gpus = Counter(limits)
        """By team with a limit; negative if the limit was lowered."""
        self._stopping: set[str] = set()
        """Teams of which a job is being stopped."""
        self._snapshot = snapshot
        if limits:
            self._count(live)

    def _count(self, live: LiveAssignments) -> None:
        """Subtract the GPUs of live assignments."""
        teams = list(self._free_gpus)
        jobs = Job.objects.filter(pk__in=list(live.of_job), team__name__in=teams)
        for job, team in jobs.values_list("pk", "team__name"):
            for assignment in live.of_job[job]:
                self._free_gpus[team] -= assignment.gpus
                if not is_placement(assignment):
                    self._stopping.add(team)

    def refusal(self, placement: Placement) -> Rejected | None:
        """Return the refusal if the job's team would use more GPUs than it may."""
        team = self._team(placement)
        if team not in self._free_gpus:
            return None
        # A batch job without GPUs may start even beyond a lowered limit.
        if placement.gpus <= max(0, self._free_gpus[team]):
            return None
        code = RejectCode.DEFERRED if team in self._stopping else RejectCode.STALE
        return Rejected(placement.key, code, f"team {team} has reached its limit of GPUs")

    def take(self, placement: Placement) -> None:
        """Record a launch."""
        team = self._team(placement)
        if team in self._free_gpus:
            self._free_gpus[team] -= placement.gpus

    def _team(self, placement: Placement) -> str:
        """Name of the team of the placement's job."""
        jobs = self._snapshot.jobs
        return str(jobs.columns.others["team"][jobs.position[placement.job]])
