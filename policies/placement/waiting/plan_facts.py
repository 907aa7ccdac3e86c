"""Facts of a plan that its reasons rest on: who holds a node, who is expected there, what is left.

`reason_rules` asks them for every waiting job; jobs with equal needs share each answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from policies.contract.plan import Expected, Lack, Plan, WaitCode, Waiting
from policies.contract.snapshot import PROFILING, JobPhase, Snapshot
from policies.placement.cluster_state import ClusterState, Shortage, ShortageCode
from policies.placement.from_snapshot import empty_cluster_of, left_beside
from policies.placement.layout import EVERY, NodeSet, Request, members
from policies.placement.priced_options import JobOptions
from policies.placement.waiting.leftover import Leftover
from policies.placement.waiting.reasons import Holders, held_by, least_shortage, why_impossible

CAPACITY = Shortage(ShortageCode.CAPACITY)


class Alternatives:
    """Requests that would start a job of a snapshot, found once for jobs with equal needs."""

    def __init__(self, snapshot: Snapshot, empty: ClusterState) -> None:
        """`empty`: the state of the cluster if nothing ran."""
        self.columns = snapshot.jobs.columns
        self.position = snapshot.jobs.position
        self.options = JobOptions(snapshot, empty)
        self._of_needs: dict[tuple[object, bool], Sequence[tuple[Request, NodeSet]]] = {}

    def needs(self, job: str) -> object:
        """Return a key that is equal for jobs that fit in the same places."""
        row = self.position[job]
        return self.options.keys[row], self.columns.others["exclusive"][row]

    def of(self, job: str, *, may_spread: bool) -> Sequence[tuple[Request, NodeSet]]:
        """Return the requests that would start a job, each with the nodes that suit it.

        `may_spread`: a training job that no node could hold may run on several.
        """
        row = self.position[job]
        key = self.options.keys[row], may_spread
        if key not in self._of_needs:
            self._of_needs[key] = self._of_row(row, may_spread=may_spread)
        return self._of_needs[key]

    def is_alone(self, job: str) -> bool:
        """Return True if a job wants its nodes to itself."""
        return bool(self.columns.others["exclusive"][self.position[job]])

    def units(self, job: str) -> Request | None:
        """Return the request of a batch job's units; None for a training job."""
        row = self.position[job]
        return self.options.requests.batch(row) if self._is_batch(row) else None

    def _of_row(self, row: int, *, may_spread: bool) -> Sequence[tuple[Request, NodeSet]]:
        """Return (request, nodes) of each way to start the job in this row."""
        if self._is_batch(row):
            return [(self.options.requests.batch(row), EVERY)]
        options = self.options.within(inf, row)
        if not options and may_spread:
            options = self.options.over_nodes(row)
        if options or not may_spread:
            return [(option.request, option.nodes) for option in options]
        return [(request, EVERY) for request in self._spread_by_wish(row)]

    def _spread_by_wish(self, row: int) -> Iterator[Request]:
        """Yield requests over nodes of a job that a node could hold, if it were as fast there.

        Share policies may be asked to spread such jobs where their speed over nodes is known.
        """
        least = int(self.columns.counts["gpus_min"][row])
        most = int(self.columns.counts["gpus_max"][row])
        for _, gpus, is_spread in sorted(self.options.speeds.rates(self.columns.kinds[row])):
            if is_spread and least <= gpus <= most:
                yield from self.options.requests.spread(row, gpus)

    def _is_batch(self, row: int) -> bool:
        """Return True for batch jobs, and for training jobs without GPUs, placed like them."""
        return bool(self.columns.others["batch"][row]) or not self.columns.counts["gpus_max"][row]


class Room:
    """Room for waiting jobs in one state of the cluster; each answer serves all equal jobs.

    `vacant`: nodes for jobs that want a node to themselves.
    """

    def __init__(
        self, alternatives: Alternatives, state: ClusterState, vacant: NodeSet = EVERY
    ) -> None:
        self.alternatives = alternatives
        self.state = state
        self.vacant = vacant
        self._shortages: dict[tuple[object, NodeSet, bool], Shortage | None] = {}
        self._nodes: dict[object, NodeSet] = {}

    def shortage(
        self, job: str, only: NodeSet = EVERY, *, may_spread: bool = True
    ) -> Shortage | None:
        """Return what a job lacks for a start on these nodes; None if it fits."""
        key = self.alternatives.needs(job), only, may_spread
        if key not in self._shortages:
            self._shortages[key] = self._shortage(job, only, may_spread=may_spread)
        return self._shortages[key]

    def nodes(self, job: str) -> NodeSet:
        """Return the nodes that have room for a job, or for a unit of it."""
        needs = self.alternatives.needs(job)
        if needs not in self._nodes:
            allowed = self._allowed(job)
            with_room: NodeSet = 0
            for request, nodes in self.alternatives.of(job, may_spread=True):
                for group in self.state.groups_for(request, nodes & allowed):
                    with_room |= group.nodes
            self._nodes[needs] = with_room
        return self._nodes[needs]

    def too_many_units(self, job: str) -> Lack | None:
        """Return the lack of a batch job that has room for some of its units, but not for all."""
        request = self.alternatives.units(job)
        if request is None:
            return None
        fitting = 0
        for group in self.state.groups_for(request):
            fitting += group.units * group.nodes.bit_count()
        if not fitting:
            return None
        return Lack("units", float(request.units), float(min(fitting, request.units - 1)))

    def _shortage(self, job: str, only: NodeSet, *, may_spread: bool) -> Shortage | None:
        """As `shortage`, without looking it up."""
        allowed = only & self._allowed(job)
        alternatives = [
            (request, nodes & allowed)
            for request, nodes in self.alternatives.of(job, may_spread=may_spread)
        ]
        if not alternatives:
            return CAPACITY
        return least_shortage(self.state, alternatives)

    def _allowed(self, job: str) -> NodeSet:
        """Return the nodes that a job may share, or the vacant ones for one that is to be alone."""
        return self.vacant if self.alternatives.is_alone(job) else EVERY


class Reservation(NamedTuple):
    """Start that a plan expects of a waiting job on a node."""

    start_s: float
    node: str
    job: str
    gpus: int


class PlanFacts:
    """Facts of a plan: who holds which node, who is expected there, and the room that is left.

    Each is found when it is first asked for, and kept for the other jobs.
    """

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self.plan = plan
        self.snapshot = snapshot
        self._reasons: dict[NodeSet, Waiting] = {}
        self._first: dict[NodeSet, Sequence[Reservation]] = {}
        self._node_sets: dict[Sequence[str], NodeSet] = {}

    @cached_property
    def leftover(self) -> Leftover:
        """Free GPUs and amounts of each open node."""
        return Leftover(self.snapshot, self.beside.state)

    @cached_property
    def empty_state(self) -> ClusterState:
        """State of the open nodes if nothing ran, without a power cap."""
        return empty_cluster_of(self.snapshot)

    @cached_property
    def alternatives(self) -> Alternatives:
        """Requests that would start the jobs of the snapshot."""
        return Alternatives(self.snapshot, self.empty_state)

    @cached_property
    def empty(self) -> Room:
        """Room on the open nodes if nothing ran, without a power cap."""
        return Room(self.alternatives, self.empty_state)

    @cached_property
    def beside(self) -> Room:
        """Room that the plan's placements leave for the jobs that wait."""
        placements = self.plan.placements
        used = {seat.node for placed in placements for seat in placed.ranks}
        vacant: NodeSet = 0
        for n, node in enumerate(self.snapshot.nodes):
            if node.id not in used:
                vacant |= 1 << n
        return Room(self.alternatives, left_beside(self.snapshot, placements), vacant)

    @cached_property
    def holders(self) -> Holders:
        """Jobs on each node."""
        return Holders(self.snapshot, self.empty_state, self.plan.placements)

    @cached_property
    def owners(self) -> Mapping[tuple[str, str], str]:
        """Job placed on each (node, device)."""
        owners: dict[tuple[str, str], str] = {}
        for placed in self.plan.placements:
            for seat in placed.ranks:
                for device in seat.devices:
                    owners[seat.node, device] = placed.job
        return owners

    @cached_property
    def reservations(self) -> Mapping[str, list[tuple[str, Expected]]]:
        """Waiting jobs expected on each node, by start."""
        by_node: dict[str, list[tuple[str, Expected]]] = {}
        for entry in self.plan.waiting:
            if entry.expected is not None:
                for node in entry.expected.nodes:
                    by_node.setdefault(node, []).append((entry.job, entry.expected))
        for of_node in by_node.values():
            of_node.sort(key=lambda pair: (pair[1].start_s, pair[0]))
        return by_node

    def first_reservation(self, nodes: NodeSet, job: str) -> Reservation | None:
        """Return the first reservation of another job on any of these nodes."""
        if nodes not in self._first:
            self._first[nodes] = self._first_two(nodes)
        others = [first for first in self._first[nodes] if first.job != job]
        return others[0] if others else None

    def _first_two(self, nodes: NodeSet) -> Sequence[Reservation]:
        """Return the first reservation on these nodes, and the first one of another job.

        Whichever job asks, one of the two is of another job.
        """
        reservations: list[Reservation] = []
        for node in named(self, nodes):
            for job, expected in self.reservations.get(node, ())[:2]:
                reservations.append(Reservation(expected.start_s, node, job, expected.gpus))
        reservations.sort()
        others = [later for later in reservations if later.job != reservations[0].job]
        return [*reservations[:1], *others[:1]]

    @cached_property
    def measured(self) -> Mapping[str, Mapping[str, None]]:
        """Nodes on which each kind is measured, in order."""
        columns = self.snapshot.jobs.columns
        position = self.snapshot.jobs.position
        measured: dict[str, dict[str, None]] = {}
        for placed in self.plan.placements:
            if placed.purpose is PROFILING and placed.job in position:
                of_kind = measured.setdefault(columns.kinds[position[placed.job]], {})
                of_kind.update(dict.fromkeys(seat.node for seat in placed.ranks))
        return measured

    def row(self, job: str) -> int:
        """Return the row of a job in the snapshot."""
        return self.snapshot.jobs.position[job]

    def alike(self, entry: Waiting) -> object:
        """Return a key that is equal for jobs with equal needs and equal reasons of the policy.

        A job that runs, or that depends on others, has a key of its own.
        """
        others = self.snapshot.jobs.columns.others
        row = self.row(entry.job)
        if others["running"][row] or others["dependencies"][row]:
            return entry.job
        needs = self.alternatives.needs(entry.job)
        return needs, others["team"][row], others["phase"][row], entry.of("", None)

    def phase(self, job: str) -> JobPhase:
        """Return the phase of a job when the snapshot was taken."""
        phase: JobPhase = self.snapshot.jobs.columns.others["phase"][self.row(job)]
        return phase

    def team(self, job: str) -> str:
        """Return the team of a job."""
        team: str = self.snapshot.jobs.columns.others["team"][self.row(job)]
        return team

    @cached_property
    def team_limits(self) -> Mapping[str, int | None]:
        """GPUs that each team may use; None without a limit."""
        return {team.name: team.max_gpus for team in self.snapshot.teams}

    @cached_property
    def gpus_of_teams(self) -> Mapping[str, int]:
        """GPUs that the placements of each team use."""
        teams = self.snapshot.jobs.columns.others["team"]
        used: Counter[str] = Counter()
        for placed in self.plan.placements:
            used[teams[self.row(placed.job)]] += placed.gpus
        return used

    def reached_limit(self, job: str) -> int | None:
        """Return the GPUs that the job's team may use, if the plan leaves too few for it."""
        team = self.team(job)
        limit = self.team_limits.get(team)
        least = int(self.snapshot.jobs.columns.counts["gpus_min"][self.row(job)])
        if limit is None or not least:
            return None
        used = self.gpus_of_teams.get(team, 0)
        return limit if used + least > limit else None

    @cached_property
    def gpus_needed_by_teams(self) -> Mapping[str, int]:
        """GPUs of each team's jobs: those that they hold, or the fewest that they need."""
        columns = self.snapshot.jobs.columns
        teams = columns.others["team"]
        running = columns.others["running"]
        needed: Counter[str] = Counter()
        for row, least in enumerate(columns.counts["gpus_min"].tolist()):
            held = sum(run.gpus for run in running[row])
            needed[teams[row]] += max(least, held)
        return needed

    def undone(self, job: str) -> tuple[str, ...]:
        """Return the jobs of the snapshot that a job depends on."""
        dependencies = self.snapshot.jobs.columns.others["dependencies"][self.row(job)]
        return tuple(other for other in dependencies if other in self.snapshot.jobs.position)

    def node_set(self, nodes: tuple[str, ...]) -> NodeSet:
        """Return these nodes as a set, without unknown ones."""
        if nodes not in self._node_sets:
            index = self.empty_state.layout.index
            known: NodeSet = 0
            for node in nodes:
                if node in index:
                    known |= 1 << index[node]
            self._node_sets[nodes] = known
        return self._node_sets[nodes]

    def held_from(self, job: str, nodes: NodeSet) -> Waiting:
        """Return the reason of a job for which these nodes would do: the jobs that hold them."""
        if nodes not in self._reasons:
            self._reasons[nodes] = held_by(self.holders, WaitCode.NO_CAPACITY, nodes)
        reason = self._reasons[nodes].of(job, None)
        if job in reason.jobs:
            others = [holder for holder in reason.jobs if holder != job]
            reason = replace(reason, jobs=tuple(others))
        return reason

    def impossible(self, job: str, *, may_spread: bool = True) -> Waiting | None:
        """Return why no open node could run a job if nothing else ran; None if one could."""
        if self.empty.shortage(job, may_spread=may_spread) is None:
            return None
        lack = self.empty.too_many_units(job)
        if lack is not None:
            return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))
        return why_impossible(self.snapshot, self.row(job))


def named(facts: PlanFacts, nodes: NodeSet) -> list[str]:
    """Return the ids of a set of nodes."""
    views = facts.snapshot.nodes
    every_node = (1 << len(views)) - 1  # `nodes` may be EVERY, which has no end
    return [views[n].id for n in members(nodes & every_node)]
