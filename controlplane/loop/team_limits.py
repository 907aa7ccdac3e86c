"""Limits of GPUs by team: what a round shows to its policy, so that no plan can exceed them.

Of a team with a limit (`TeamView.max_gpus`), a policy sees all that holds GPUs, and as many waiting
jobs as fit beside it: those that could start now first, each group by priority, then arrival. One
for which there is no room holds back those behind it, so that small jobs cannot starve it. A GPU
that jobs share counts for each of them. A team that uses more than its limit keeps what it has.
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
    """Team with a limit, and the room that is left of it.

    `running`: GPUs of each row that runs, or that it needs at least; `holding`: of rows that wait
    while they are stopped or measured. Of `waiting` rows, `shown` and `hidden` are chosen.
    """

    name: str
    limit: int
    room: int
    running: dict[int, int] = field(default_factory=dict)
    holding: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)

    def choose(self, rows: Iterable[int], least: Sequence[int]) -> None:
        """Show the first of these rows as far as there is room, and hide the others."""
        is_full = False
        for row in rows:
            more = max(0, least[row] - self.holding[row])
            is_full = is_full or (self.room < more and least[row] <= self.limit)
            if is_full or least[row] > self.limit:
                self.hidden.append(row)
            else:
                self.shown.append(row)
                self.room -= more


def within_team_limits(snapshot: Snapshot) -> tuple[Snapshot, tuple[Waiting, ...]]:
    """Return the snapshot as its policy may see it, and the reasons of the jobs left out.

    The most GPUs (`gpus_max`) of the shown jobs of a team add up to its limit at most, or to what
    it holds if that is more.
    """
    limits = {t.name: t.max_gpus for t in snapshot.teams if t.max_gpus is not None}
    teams = {name: _Team(name, most, room=most) for name, most in limits.items()}
    if not teams:
        return snapshot, ()
    _sort_out(snapshot, teams)
    requests = _measured(snapshot, teams)
    _choose(snapshot, teams)
    hidden = {row: team for team in teams.values() for row in team.hidden}
    columns = snapshot.jobs.columns
    measured = {row for row in hidden if columns.others["running"][row]}
    shown = replace(snapshot, profiling=requests, jobs=_limited(snapshot, teams, measured))
    if out := hidden.keys() - measured:
        shown = shown.without(out)
    waits = [
        Waiting(
            columns.ids[row], WaitCode.TEAM_LIMIT, gpus=hidden[row].limit, team=hidden[row].name
        )
        for row in sorted(out)
    ]
    return shown, tuple(waits)


def _sort_out(snapshot: Snapshot, teams: Mapping[str, _Team]) -> None:
    """Find what each team holds, also by jobs that are being stopped, and what waits for GPUs."""
    columns, held = snapshot.jobs.columns, _held(snapshot)
    least, most = (columns.counts[n].tolist() for n in ("gpus_min", "gpus_max"))
    for row, name in enumerate(columns.others["team"]):
        if (team := teams.get(name)) is None or not most[row]:
            continue
        runs = columns.others["running"][row]
        gpus = sum(run.gpus for run in runs) or held.get(columns.ids[row], 0)
        if any(run.purpose is TRAINING for run in runs):
            gpus = team.running[row] = max(gpus, least[row])
        else:
            team.holding[row] = gpus
            team.waiting.append(row)
        team.room -= gpus


def _held(snapshot: Snapshot) -> Mapping[str, int]:
    """Devices held by each job."""
    found: dict[str, int] = defaultdict(int)
    for node in snapshot.nodes:
        for device in node.devices:
            for hold in device.held:
                found[hold.job] += 1
    return found


def _measured(snapshot: Snapshot, teams: Mapping[str, _Team]) -> tuple[ProfileRequest, ...]:
    """Return the requests to measure for which there is room, oldest first; take it."""
    columns, position, found = snapshot.jobs.columns, snapshot.jobs.position, []
    for request in sorted(snapshot.profiling, key=lambda r: (r.since_s, r.job, r.copy)):
        row = position.get(request.job)
        team = None if row is None else teams.get(columns.others["team"][row])
        if team is not None and row is not None and not columns.others["running"][row]:
            if request.gpus > team.room:
                continue
            team.room -= request.gpus
        found.append(request)
    return tuple(r for r in snapshot.profiling if r in found)


def _choose(snapshot: Snapshot, teams: Mapping[str, _Team]) -> None:
    """Choose the waiting jobs of each team that its policy sees."""
    columns = snapshot.jobs.columns
    least, priority = (columns.counts[n].tolist() for n in ("gpus_min", "priority"))
    arrival_s = columns.numbers["arrival_s"]
    full = [t for t in teams.values() if sum(least[row] for row in t.waiting) > max(0, t.room)]
    starts, may_come = _could_start(snapshot, full) if full else (frozenset(), frozenset())
    for team in teams.values():
        if team not in full:
            team.choose(team.waiting, least)
            continue
        ordered = sorted(team.waiting, key=lambda row: (-priority[row], arrival_s[row], row))
        now = [row for row in ordered if row in starts]
        later = [row for row in ordered if row in may_come]
        team.choose([*now, *later], least)


def _could_start(
    snapshot: Snapshot, teams: Iterable[_Team]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the waiting rows of these teams that free GPUs would do for, and those that may come.

    The others wait for something else, which their policy says.
    """
    columns, position = snapshot.jobs.columns, snapshot.jobs.position
    wanted = {row for team in teams for row in team.waiting}
    runs = {row for row, of in enumerate(columns.others["running"]) if of}
    others = frozenset(range(len(snapshot.jobs))) - wanted - runs
    plan = with_batch_queue(Priority(), snapshot.without(others))
    placed = {position[p.job] for p in plan.placements}
    waiting = {position[w.job] for w in plan.waiting if w.code in MAY_COME}
    return frozenset(placed & wanted), frozenset(waiting & wanted)


def _limited(snapshot: Snapshot, teams: Mapping[str, _Team], measured: Collection[int]) -> Jobs:
    """Return the jobs, elastic ones with no more GPUs than their team has room for.

    Those `measured` now that may not start are shown as jobs that are measured first.
    """
    columns = snapshot.jobs.columns
    most, least = columns.counts["gpus_max"].copy(), columns.counts["gpus_min"].tolist()
    for team in teams.values():
        room = max(0, team.room)
        base = {**team.running, **{r: max(least[r], team.holding[r]) for r in team.shown}}
        for row, gpus in base.items():
            more = max(0, min(int(most[row]) - gpus, room))
            room, most[row] = room - more, min(int(most[row]), gpus + more)
    phases = list(columns.others["phase"])
    for row in measured:
        phases[row] = JobPhase.PROFILING
    counts = {**columns.counts, "gpus_max": frozen(most)}
    others = {**columns.others, "phase": tuple(phases)}
    return Jobs(replace(columns, counts=counts, others=others))
