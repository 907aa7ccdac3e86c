"""Rules of the reasons for waiting: what must be true of a snapshot and a plan for each code.

A policy says why it left a job waiting, and may know only a part of the cluster. Before people read
a reason, the rule of its code is asked (`RULES`); where it does not hold, the first reason that is
true is told instead (`first_true`). The words of each code are in `jobs.wording`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from policies.contract.plan import Expected, Lack, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import PROFILING, JobPhase, Jobs, Snapshot
from policies.placement.beside import view_of
from policies.placement.finders import Shortage, ShortageCode
from policies.placement.from_snapshot import cluster_of
from policies.placement.layout import EVERY, Request, members
from policies.placement.leftover import Leftover
from policies.placement.priced_options import JobOptions, per_watt_second
from policies.placement.reasons import (
    Holders,
    for_power,
    held_by,
    least_shortage,
    why_impossible,
)

CAPACITY = Shortage(ShortageCode.CAPACITY)


class Room:
    """Room for jobs on the nodes of a snapshot, in which running jobs hold nothing.

    `vacant`: nodes (a set) for jobs that want a node to themselves.
    """

    def __init__(self, snapshot: Snapshot, vacant: int = EVERY) -> None:
        self.snapshot, self.vacant = snapshot, vacant
        self.state = cluster_of(snapshot)
        self.options = JobOptions(snapshot, self.state)
        self._shortages: dict[object, Shortage | None] = {}

    def shortage(self, job: str, only: int = EVERY, *, may_spread: bool = True) -> Shortage | None:
        """Return what a job lacks for a start on these nodes (a set); None if it fits.

        `may_spread`: a training job that fits on no node may run on several.
        """
        row = self.snapshot.jobs.position[job]
        key = self.options.keys[row], self._is_alone(row), only, may_spread
        if key not in self._shortages:
            allowed = only & self.vacant if self._is_alone(row) else only
            found = self._ways(row, may_spread=may_spread)
            ways = [(request, nodes & allowed) for request, nodes in found]
            self._shortages[key] = least_shortage(self.state, ways) if ways else CAPACITY
        return self._shortages[key]

    def nodes(self, job: str) -> int:
        """Return the nodes (a set) that have room for a job, or for a unit of it."""
        row, found = self.snapshot.jobs.position[job], 0
        for request, nodes in self._ways(row, may_spread=True):
            for group in self.state.groups_for(request, nodes):
                found |= group.nodes
        return found & self.vacant if self._is_alone(row) else found

    def too_many_units(self, job: str) -> Lack | None:
        """Return the lack of a batch job that has room for some of its units, but not for all."""
        row = self.snapshot.jobs.position[job]
        if not self._is_batch(row):
            return None
        request = self.options.requests.batch(row)
        fit = sum(g.units * g.nodes.bit_count() for g in self.state.groups_for(request))
        if not fit:
            return None
        return Lack("units", float(request.units), float(min(fit, request.units - 1)))

    def _ways(self, row: int, *, may_spread: bool) -> Sequence[tuple[Request, int]]:
        """Return requests that would start a job, each with its nodes; gangs where no node does."""
        if self._is_batch(row):
            return [(self.options.requests.batch(row), EVERY)]
        options = self.options.within(inf, row)
        if options or not may_spread:
            return [(option.request, option.nodes) for option in options]
        return [(request, EVERY) for request in self._spread(row)]

    def _spread(self, row: int) -> Iterator[Request]:
        """Yield requests of a job over several nodes, with numbers of GPUs of known speed."""
        columns = self.snapshot.jobs.columns
        least = int(columns.counts["gpus_min"][row])
        most = int(columns.counts["gpus_max"][row])
        kind = self.snapshot.kinds[self.snapshot.kind_index[columns.kinds[row]]]
        known = {t.gpus for t in kind.throughputs if t.spread and t.steps_per_s > 0.0}
        for gpus in sorted(known):
            if least <= gpus <= most:
                yield from self.options.requests.spread(row, gpus)

    def _is_batch(self, row: int) -> bool:
        columns = self.snapshot.jobs.columns
        return bool(columns.others["batch"][row]) or not columns.counts["gpus_max"][row]

    def _is_alone(self, row: int) -> bool:
        return bool(self.snapshot.jobs.columns.others["exclusive"][row])


class PlanFacts:
    """Facts of a plan: who holds which node, who is expected there, and the room that is left."""

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self.plan, self.snapshot = plan, snapshot

    @cached_property
    def leftover(self) -> Leftover:
        """Free GPUs and amounts of each open node."""
        return Leftover.of(self.snapshot, self.plan.placements)

    @cached_property
    def empty(self) -> Room:
        """Room on the open nodes if nothing ran, without a power cap."""
        nodes = tuple(
            replace(node, devices=tuple(replace(device, held=()) for device in node.devices))
            for node in self.snapshot.nodes
        )
        columns = self.snapshot.jobs.columns
        others = {**columns.others, "running": ((),) * len(columns.ids)}
        jobs = Jobs(replace(columns, others=others))
        return Room(
            replace(
                self.snapshot, nodes=nodes, jobs=jobs, power_cap_w=None, power_caps=(), profiling=()
            )
        )

    @cached_property
    def beside(self) -> Room:
        """Room that the plan's placements leave for the jobs that wait."""
        position = self.snapshot.jobs.position
        rows = [position[entry.job] for entry in self.plan.waiting]
        view = view_of(self.snapshot, rows, self.plan.placements)
        used = {seat.node for placed in self.plan.placements for seat in placed.ranks}
        vacant = 0
        for n, node in enumerate(self.snapshot.nodes):
            if node.id not in used:
                vacant |= 1 << n
        return Room(view, vacant)

    @cached_property
    def holders(self) -> Holders:
        """Jobs on each node."""
        return Holders(self.snapshot, self.empty.state, self.plan.placements)

    @cached_property
    def owners(self) -> Mapping[tuple[str, str], str]:
        """Job placed on each (node, device)."""
        return {
            (seat.node, device): placed.job
            for placed in self.plan.placements
            for seat in placed.ranks
            for device in seat.devices
        }

    @cached_property
    def reservations(self) -> Mapping[str, list[tuple[str, Expected]]]:
        """Waiting jobs expected on each node, the first first."""
        found: dict[str, list[tuple[str, Expected]]] = {}
        for entry in self.plan.waiting:
            if entry.expected is not None:
                for node in entry.expected.nodes:
                    found.setdefault(node, []).append((entry.job, entry.expected))
        for of_node in found.values():
            of_node.sort(key=lambda of: (of[1].start_s, of[0]))
        return found

    @cached_property
    def measured(self) -> Mapping[str, Mapping[str, None]]:
        """Nodes on which each kind is measured, in order."""
        columns, position = self.snapshot.jobs.columns, self.snapshot.jobs.position
        found: dict[str, dict[str, None]] = {}
        for placed in self.plan.placements:
            if placed.purpose is PROFILING and placed.job in position:
                of_kind = found.setdefault(columns.kinds[position[placed.job]], {})
                of_kind.update(dict.fromkeys(seat.node for seat in placed.ranks))
        return found

    def row(self, job: str) -> int:
        """Return the row of a job in the snapshot."""
        return self.snapshot.jobs.position[job]

    def alike(self, entry: Waiting) -> object:
        """Return a key that is equal for jobs with equal needs and equal reasons of the policy.

        A job that runs, or that depends on others, has a key of its own.
        """
        columns, row = self.snapshot.jobs.columns, self.row(entry.job)
        others = columns.others
        if others["running"][row] or others["dependencies"][row]:
            return entry.job
        needs = self.empty.options.keys[row], others["exclusive"][row], others["team"][row]
        return needs, others["phase"][row], entry.of("", None)

    def phase(self, job: str) -> JobPhase:
        """Return whether a job ran, waited, or was measured when the snapshot was taken."""
        found: JobPhase = self.snapshot.jobs.columns.others["phase"][self.row(job)]
        return found

    def team(self, job: str) -> str:
        """Return the team of a job."""
        found: str = self.snapshot.jobs.columns.others["team"][self.row(job)]
        return found

    def reached_limit(self, job: str) -> int | None:
        """Return the GPUs that the job's team may use, if the plan leaves too few for it."""
        columns, position = self.snapshot.jobs.columns, self.snapshot.jobs.position
        limits = {team.name: team.max_gpus for team in self.snapshot.teams}
        team, least = self.team(job), int(columns.counts["gpus_min"][self.row(job)])
        limit = limits.get(team)
        if limit is None or not least:
            return None
        used = 0
        for placed in self.plan.placements:
            if columns.others["team"][position[placed.job]] == team:
                used += placed.gpus
        return limit if used + least > limit else None

    def undone(self, job: str) -> tuple[str, ...]:
        """Return the jobs of the snapshot that a job depends on."""
        dependencies = self.snapshot.jobs.columns.others["dependencies"][self.row(job)]
        return tuple(other for other in dependencies if other in self.snapshot.jobs.position)

    def node_set(self, nodes: Sequence[str]) -> int:
        """Return these nodes as a set, without unknown ones."""
        index, found = self.empty.state.layout.index, 0
        for node in nodes:
            if node in index:
                found |= 1 << index[node]
        return found

    def held_from(self, job: str, nodes: int) -> Waiting:
        """Return the reason of a job for which these nodes (a set) would do: who holds them."""
        reason = held_by(self.holders, WaitCode.NO_CAPACITY, nodes)
        others = tuple(holder for holder in reason.jobs if holder != job)
        return replace(reason, job=job, jobs=others)

    def impossible(self, job: str, *, may_spread: bool = True) -> Waiting | None:
        """Return why no open node could run a job if nothing else ran; None if one could."""
        if self.empty.shortage(job, may_spread=may_spread) is None:
            return None
        lack = self.empty.too_many_units(job)
        if lack is not None:
            return Waiting("", WaitCode.NO_NODE_FITS, lacks=(lack,))
        return why_impossible(self.snapshot, self.row(job))


def first_true(facts: PlanFacts, job: str) -> Waiting:
    """Return the first reason that is true of a waiting job, in the order people ask for them."""
    # 1. Jobs that may not start yet, whatever is free.
    if facts.phase(job) is JobPhase.PROFILING:
        return Waiting(job, WaitCode.AWAITING_PROFILE)
    if undone := facts.undone(job):
        return Waiting(job, WaitCode.DEPENDENCY, jobs=undone)
    if facts.plan.status is PlanStatus.KEPT:
        return Waiting(job, WaitCode.SOLVER_FAILED)

    # 2. Jobs that no open node could run, even if nothing else ran.
    impossible = facts.impossible(job)
    if impossible is not None:
        return replace(impossible, job=job)

    # 3. Jobs whose team has no GPUs left.
    limit = facts.reached_limit(job)
    if limit is not None:
        return Waiting(job, WaitCode.TEAM_LIMIT, gpus=limit, team=facts.team(job))

    # 4. Jobs that find no room or no power beside the placements of the plan.
    shortage = facts.beside.shortage(job)
    if shortage is None:
        return Waiting(job, WaitCode.POSTPONED)
    if shortage.code is ShortageCode.POWER_CAP:
        return replace(for_power(facts.snapshot, shortage), job=job)
    return facts.held_from(job, facts.empty.nodes(job))


Rule = Callable[[PlanFacts, Waiting], bool]
"""Predicate of a code: whether a reason agrees with the facts."""


def holds(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if a reason is true of its job."""
    return RULES[entry.code](facts, entry)


def _is_awaiting_profile(facts: PlanFacts, entry: Waiting) -> bool:
    return facts.phase(entry.job) is JobPhase.PROFILING


def _is_dependent(facts: PlanFacts, entry: Waiting) -> bool:
    return bool(entry.jobs) and set(entry.jobs) <= set(facts.undone(entry.job))


def _has_no_decision(facts: PlanFacts, entry: Waiting) -> bool:
    return facts.plan.status is PlanStatus.KEPT


def _is_impossible(facts: PlanFacts, entry: Waiting) -> bool:
    """The needs named are those that no open node meets, measured on empty nodes.

    A policy that never spreads a job may say so of a gang that another one would.
    """
    impossible = facts.impossible(entry.job, may_spread=False)
    return impossible is not None and entry.of("", None) == impossible


def _has_no_capacity(facts: PlanFacts, entry: Waiting) -> bool:
    """It would fit if the named jobs were gone from the named nodes, and does not fit now."""
    if facts.beside.shortage(entry.job) != CAPACITY:
        return False
    nodes = facts.node_set(entry.nodes)
    if facts.empty.shortage(entry.job, nodes) is not None:
        return False
    return entry.jobs == facts.held_from(entry.job, nodes).jobs


def _has_no_power(facts: PlanFacts, entry: Waiting) -> bool:
    """It has room, and so many watts too little."""
    shortage = facts.beside.shortage(entry.job)
    if shortage is None or shortage.code is not ShortageCode.POWER_CAP:
        return False
    return entry.watts == for_power(facts.snapshot, shortage).watts


def _has_room(facts: PlanFacts, entry: Waiting) -> bool:
    """It would fit now; the policy starts it later."""
    return facts.beside.shortage(entry.job) is None


def _was_preempted(facts: PlanFacts, entry: Waiting) -> bool:
    """It ran, and the named jobs have its devices."""
    if facts.phase(entry.job) is not JobPhase.RUNNING or not entry.jobs:
        return False
    return set(entry.jobs) <= set(winners(facts, entry.job))


def winners(facts: PlanFacts, job: str) -> Mapping[str, None]:
    """Return the jobs that the plan places on devices of a job that ran, in order."""
    running = facts.snapshot.jobs.columns.others["running"][facts.row(job)]
    found = dict[str, None]()
    for run in running:
        for seat in run.ranks:
            for device in seat.devices:
                owner = facts.owners.get((seat.node, device), job)
                if owner != job:
                    found[owner] = None
    return found


def _is_cheaper_later(facts: PlanFacts, entry: Waiting) -> bool:
    """It would fit now, and energy costs less from then on."""
    if entry.from_s is None or not _has_room(facts, entry):
        return False
    snapshot = facts.snapshot
    now, later = snapshot.energy_at(snapshot.now_s), snapshot.energy_at(entry.from_s)
    if now is None or later is None:
        return False
    per_kg = snapshot.emissions_cost_per_kg
    return per_watt_second(later, per_kg) < per_watt_second(now, per_kg)


def _has_a_better_node(facts: PlanFacts, entry: Waiting) -> bool:
    """It would fit now, but not on the named nodes, on which it is expected."""
    if entry.expected is None or not set(entry.nodes) <= set(entry.expected.nodes):
        return False
    there = facts.node_set(entry.expected.nodes)
    return _has_room(facts, entry) and facts.beside.shortage(entry.job, there) is not None


def _is_reserved(facts: PlanFacts, entry: Waiting) -> bool:
    """It would fit now, on a node on which the named job is expected before it."""
    if not _has_room(facts, entry) or len(entry.nodes) != 1:
        return False
    if not facts.beside.nodes(entry.job) & facts.node_set(entry.nodes):
        return False
    expected = facts.reservations.get(entry.nodes[0], ())
    return any((job,) == entry.jobs and of.start_s == entry.from_s for job, of in expected)


def _is_over_team_limit(facts: PlanFacts, entry: Waiting) -> bool:
    """The jobs of its team together need more GPUs than the team may use."""
    columns = facts.snapshot.jobs.columns
    limits = {team.name: team.max_gpus for team in facts.snapshot.teams}
    if limits.get(entry.team) != entry.gpus:
        return False
    if columns.others["team"][facts.row(entry.job)] != entry.team:
        return False
    needed = 0
    for team, least, running in zip(
        columns.others["team"],
        columns.counts["gpus_min"].tolist(),
        columns.others["running"],
        strict=True,
    ):
        if team == entry.team:
            needed += max(least, sum(run.gpus for run in running))
    return needed > entry.gpus


IMPOSSIBLE = (
    WaitCode.NO_THROUGHPUT,
    WaitCode.NO_NODE_FITS,
    WaitCode.TYPES_UNAVAILABLE,
    WaitCode.LABEL_UNAVAILABLE,
    WaitCode.RUNTIME_UNAVAILABLE,
    WaitCode.AGENT_TOO_OLD,
    WaitCode.NODES_OF_OTHER_TEAMS,
    WaitCode.NODES_UNAVAILABLE,
    WaitCode.NODES_LOST,
    WaitCode.NODES_AVOIDED,
)
"""Codes of jobs that no open node could run, even if nothing else ran."""

RULES: Mapping[WaitCode, Rule] = {
    WaitCode.AWAITING_PROFILE: _is_awaiting_profile,
    WaitCode.DEPENDENCY: _is_dependent,
    WaitCode.SOLVER_FAILED: _has_no_decision,
    WaitCode.TEAM_LIMIT: _is_over_team_limit,
    **dict.fromkeys(IMPOSSIBLE, _is_impossible),
    WaitCode.NO_CAPACITY: _has_no_capacity,
    WaitCode.POWER_CAP: _has_no_power,
    WaitCode.POSTPONED: _has_room,
    WaitCode.PREEMPTED: _was_preempted,
    WaitCode.CHEAPER_LATER: _is_cheaper_later,
    WaitCode.BETTER_NODE: _has_a_better_node,
    WaitCode.RESERVED: _is_reserved,
}
"""Rule of each code."""


def named(facts: PlanFacts, nodes: int) -> list[str]:
    """Return the ids of a set of nodes."""
    views = facts.snapshot.nodes
    return [views[n].id for n in members(nodes & ((1 << len(views)) - 1))]
