"""Limits of GPUs by team: what a round shows to its policy, so that no plan can exceed them.

Of a team with a limit (`TeamView.max_gpus`), a policy sees all jobs that hold GPUs, and as many
waiting jobs as fit beside them: first those that could start now, then the others, each by
priority, then arrival. A job for which there is no room holds back those behind it, so that small
jobs cannot starve it. A GPU that jobs share counts for each of them. A team that uses more than its
limit keeps what it has.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.baselines.priority import Priority
from policies.batch.queue import with_batch_queue
from policies.contract.plan import WaitCode, Waiting
from policies.contract.snapshot import (
    TRAINING,
    JobPhase,
    Jobs,
    ProfileRequest,
    Snapshot,
    frozen,
)

MAY_COME = (WaitCode.NO_CAPACITY, WaitCode.POSTPONED, WaitCode.POWER_CAP)
"""Reasons of jobs that a policy may place though no GPUs are free for them now."""


@dataclass(slots=True)
class _Team:
    """Team with a limit, and the room that is left of it, in GPUs.

    By row: `running`: GPUs of a job that runs, or that it needs at least; `holding`: GPUs that a
    waiting job holds while it is stopped or measured. The `waiting` rows are divided into `shown`
    and `hidden`.
    """

    name: str
    limit: int
    room: int
    running: dict[int, int] = field(default_factory=dict)
    holding: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)

    def divide(self, rows: Iterable[int], gpus_min: Sequence[int]) -> None:
        """Show the first of these rows as far as there is room, and hide the others.

        A job that is larger than the limit is hidden, and holds nobody back.
        """
        is_full = False
        for row in rows:
            if gpus_min[row] > self.limit:
                self.hidden.append(row)
                continue
            more = max(0, gpus_min[row] - self.holding[row])
            is_full = is_full or self.room < more
            if is_full:
                self.hidden.append(row)
            else:
                self.shown.append(row)
                self.room -= more


def within_team_limits(snapshot: Snapshot) -> tuple[Snapshot, tuple[Waiting, ...]]:
    """Return the snapshot as its policy may see it, and the reasons of the jobs left out.

    The most GPUs (`gpus_max`) of the shown jobs of a team add up to its limit at most, or to what
    it holds if that is more.
    """
    teams: dict[str, _Team] = {}
    for team in snapshot.teams:
        if team.max_gpus is not None:
            teams[team.name] = _Team(team.name, team.max_gpus, room=team.max_gpus)
    if not teams:
        return snapshot, ()

    # 1. The room of each team is taken by what runs, then by measurements, then by waiting jobs.
    _count_jobs(snapshot, teams)
    requests = _profiling_within_limits(snapshot, teams)
    _divide_waiting(snapshot, teams)

    # 2. Hidden jobs are left out. One that is being measured stays, as one to be measured first.
    columns = snapshot.jobs.columns
    team_of_hidden = {row: team for team in teams.values() for row in team.hidden}
    measured = {row for row in team_of_hidden if columns.others["running"][row]}
    left_out = team_of_hidden.keys() - measured
    visible = replace(snapshot, profiling=requests, jobs=_limited(snapshot, teams, measured))
    if left_out:
        visible = visible.without(left_out)

    # 3. Their reason.
    reasons = []
    for row in sorted(left_out):
        limited_by = team_of_hidden[row]
        reasons.append(
            Waiting(
                columns.ids[row],
                WaitCode.TEAM_LIMIT,
                gpus=limited_by.limit,
                team=limited_by.name,
            )
        )
    return visible, tuple(reasons)


def _count_jobs(snapshot: Snapshot, teams: Mapping[str, _Team]) -> None:
    """Note what each team holds, also by jobs that are being stopped, and what waits for GPUs."""
    columns = snapshot.jobs.columns
    held_gpus = _held_gpus(snapshot)
    gpus_min = columns.counts["gpus_min"].tolist()
    gpus_max = columns.counts["gpus_max"].tolist()
    for row, name in enumerate(columns.others["team"]):
        team = teams.get(name)
        if team is None or not gpus_max[row]:
            continue
        runs = columns.others["running"][row]
        gpus = sum(run.gpus for run in runs) or held_gpus.get(columns.ids[row], 0)
        if any(run.purpose is TRAINING for run in runs):
            gpus = max(gpus, gpus_min[row])
            team.running[row] = gpus
        else:
            team.holding[row] = gpus
            team.waiting.append(row)
        team.room -= gpus


def _held_gpus(snapshot: Snapshot) -> Mapping[str, int]:
    """Return the number of devices that each job holds, by its id."""
    gpus: dict[str, int] = defaultdict(int)
    for node in snapshot.nodes:
        for device in node.devices:
            for hold in device.held:
                gpus[hold.job] += 1
    return gpus


def _profiling_within_limits(
    snapshot: Snapshot, teams: Mapping[str, _Team]
) -> tuple[ProfileRequest, ...]:
    """Return the profile requests for which there is room, taken in order of age."""
    columns = snapshot.jobs.columns
    position = snapshot.jobs.position
    allowed = []
    for request in sorted(snapshot.profiling, key=lambda r: (r.since_s, r.job, r.copy)):
        row = position.get(request.job)
        team = None if row is None else teams.get(columns.others["team"][row])
        if team is not None and row is not None and not columns.others["running"][row]:
            if request.gpus > team.room:
                continue
            team.room -= request.gpus
        allowed.append(request)
    return tuple([request for request in snapshot.profiling if request in allowed])


def _divide_waiting(snapshot: Snapshot, teams: Mapping[str, _Team]) -> None:
    """Divide the waiting jobs of each team into shown and hidden ones."""
    columns = snapshot.jobs.columns
    gpus_min = columns.counts["gpus_min"].tolist()
    priority = columns.counts["priority"].tolist()
    arrival_s = columns.numbers["arrival_s"]

    # 1. Teams that have room for all of their waiting jobs.
    full = []
    for team in teams.values():
        if sum(gpus_min[row] for row in team.waiting) > max(0, team.room):
            full.append(team)
        else:
            team.divide(team.waiting, gpus_min)
    if not full:
        return

    # 2. Of the others, first the jobs that could start now, then those that GPUs will do for. The
    #    policy says what the rest waits for.
    startable, later = _could_start(snapshot, full)
    for team in full:
        ordered = sorted(team.waiting, key=lambda row: (-priority[row], arrival_s[row], row))
        first = [row for row in ordered if row in startable]
        second = [row for row in ordered if row in later]
        team.divide([*first, *second], gpus_min)


def _could_start(
    snapshot: Snapshot, teams: Iterable[_Team]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the waiting rows of these teams that fit on free GPUs now, and those that may later.

    The others wait for something else, which their policy says.
    """
    columns = snapshot.jobs.columns
    position = snapshot.jobs.position
    waiting = {row for team in teams for row in team.waiting}
    running = {row for row, runs in enumerate(columns.others["running"]) if runs}
    others = frozenset(range(len(snapshot.jobs))) - waiting - running
    plan = with_batch_queue(Priority(), snapshot.without(others))
    placed = {position[placement.job] for placement in plan.placements}
    may_come = {position[reason.job] for reason in plan.waiting if reason.code in MAY_COME}
    return frozenset(placed & waiting), frozenset(may_come & waiting)


def _limited(snapshot: Snapshot, teams: Mapping[str, _Team], measured: Collection[int]) -> Jobs:
    """Return the jobs, elastic ones with no more GPUs than their team has room for.

    Those `measured` now that may not start are shown as jobs that are measured first.
    """
    # 1. In each team, running jobs get the room that is left first, then shown ones.
    columns = snapshot.jobs.columns
    gpus_max = columns.counts["gpus_max"].copy()
    gpus_min = columns.counts["gpus_min"].tolist()
    for team in teams.values():
        room = max(0, team.room)
        counted = dict(team.running)
        for row in team.shown:
            counted[row] = max(gpus_min[row], team.holding[row])
        for row, gpus in counted.items():
            more = max(0, min(int(gpus_max[row]) - gpus, room))
            room -= more
            gpus_max[row] = min(int(gpus_max[row]), gpus + more)

    # 2. The phase of measured ones.
    phases = list(columns.others["phase"])
    for row in measured:
        phases[row] = JobPhase.PROFILING
    counts = {**columns.counts, "gpus_max": frozen(gpus_max)}
    others = {**columns.others, "phase": tuple(phases)}
    return Jobs(replace(columns, counts=counts, others=others))
