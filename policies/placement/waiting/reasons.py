"""Reasons of waiting jobs: what is in the way, from the snapshot and what a plan has taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf

from policies.contract.labels import (
    APART,
    FEATURE,
    RUNTIME,
    TEAM,
    is_own,
    runtime_of,
)
from policies.contract.plan import (
    Lack,
    Placement,
    WaitCode,
    Waiting,
    available,
    demanded,
    gpus_per_unit,
    seat_demand,
)
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    NodeView,
    Snapshot,
    profile_runs,
)
from policies.placement.cluster_state import ClusterState, Shortage, ShortageCode, why_not
from policies.placement.layout import MILLIWATTS, Layout, NodeSet, Request, members
from policies.placement.priced_options import GroupingKey, JobOptions, Option

MOST_NAMED = 8
"""Most jobs or nodes that a reason names: the reasons of thousands of jobs may repeat them."""


def not_eligible(snapshot: Snapshot) -> dict[int, Waiting]:
    """Return by row the reasons of jobs that wait whatever is free: profiling or dependencies."""
    columns = snapshot.jobs.columns
    phases = columns.others["phase"]
    dependencies = columns.others["dependencies"]
    waiting: dict[int, Waiting] = {}
    if JobPhase.PROFILING in phases:
        for row, phase in enumerate(phases):
            if phase is JobPhase.PROFILING:
                waiting[row] = Waiting(columns.ids[row], WaitCode.AWAITING_PROFILE)
    if not any(dependencies):
        return waiting
    known = snapshot.jobs.position
    for row, others in enumerate(dependencies):
        undone = tuple(job for job in others if job in known)
        if undone and row not in waiting:
            waiting[row] = Waiting(columns.ids[row], WaitCode.DEPENDENCY, jobs=undone)
    return waiting


class Holders:
    """Jobs on each node once a plan is carried out, with those outside the snapshot that stop."""

    def __init__(
        self, snapshot: Snapshot, state: ClusterState, placements: Sequence[Placement]
    ) -> None:
        self.layout = state.layout
        self.snapshot = snapshot
        self.placements = placements
        self._named: dict[NodeSet, tuple[str, ...]] = {}

    @cached_property
    def at(self) -> Mapping[int, Sequence[str]]:
        """Jobs by node, without nodes that have none."""
        index = self.layout.index
        jobs: dict[int, list[str]] = {}
        seats_of_jobs = [(placement.job, placement.ranks) for placement in self.placements]
        seats_of_jobs += [(job, run.ranks) for job, run in profile_runs(self.snapshot)]
        for job, seats in seats_of_jobs:
            for seat in seats:
                if seat.node in index:
                    jobs.setdefault(index[seat.node], []).append(job)
        for node, job in strangers(self.snapshot):
            jobs.setdefault(index[node], []).append(job)
        return jobs

    def on(self, nodes: NodeSet) -> tuple[str, ...]:
        """Return jobs on these nodes, at most MOST_NAMED."""
        if nodes not in self._named:
            jobs: dict[str, None] = {}
            for n in members(nodes):
                jobs.update(dict.fromkeys(self.at.get(n, ())))
                if len(jobs) >= MOST_NAMED:
                    break
            self._named[nodes] = tuple(jobs)[:MOST_NAMED]
        return self._named[nodes]


def strangers(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield (node, job) of each hold of a job outside the snapshot: one that is being stopped."""
    known = snapshot.jobs.position
    for node in snapshot.nodes:
        for device in node.devices:
            for hold in device.held:
                if hold.job not in known:
                    yield node.id, hold.job


@dataclass(slots=True)
class Reasons:
    """Reasons by class of jobs, after `placements` were taken from `state`."""

    snapshot: Snapshot
    state: ClusterState
    options: JobOptions
    placements: Sequence[Placement]

    def of(self, rows: Sequence[int]) -> Iterator[Waiting]:
        """Yield one reason for each of these jobs."""
        holders = Holders(self.snapshot, self.state, self.placements)
        columns = self.snapshot.jobs.columns
        keys = self.options.keys
        phases = columns.others["phase"]
        of_class: dict[GroupingKey, Waiting] = {}
        for row in rows:
            key = keys[row]
            if key not in of_class:
                of_class[key] = self._reason(row, holders)
            reason = of_class[key]
            code = reason.code
            # A job that ran has had room: the plan gives it to others.
            if phases[row] is JobPhase.RUNNING and code is WaitCode.NO_CAPACITY:
                code = WaitCode.POSTPONED
            of_job = reason.of(columns.ids[row], None)
            yield of_job if code is reason.code else replace(of_job, code=code)

    def _reason(self, row: int, holders: Holders) -> Waiting:
        """Return why a job has no placement; its own id is left out."""
        options = self.options.within(inf, row) or self.options.over_nodes(row)
        if not options:
            return why_impossible(self.snapshot, row)
        if options[0].spread and not self.options.spreads:
            return not_spread(self.state.layout, options)
        alternatives = [(option.request, option.nodes) for option in options]
        shortage = least_shortage(self.state, alternatives)
        if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
            return for_power(self.snapshot, shortage)
        nodes_that_would_do: NodeSet = 0
        for option in options:
            nodes_that_would_do |= option.nodes
        code = WaitCode.POSTPONED if shortage is None else WaitCode.NO_CAPACITY
        return held_by(holders, code, nodes_that_would_do)


def not_spread(layout: Layout, options: Sequence[Option]) -> Waiting:
    """Return the reason of a job that only nodes together could hold, of a policy without that."""
    together: NodeSet = 0
    for option in options:
        together |= option.nodes
    views = layout.nodes
    named = tuple([views[n].id for n in islice(members(together), MOST_NAMED)])
    return Waiting("", WaitCode.NOT_SPREAD, named)


def held_by(holders: Holders, code: WaitCode, nodes: NodeSet) -> Waiting:
    """Return the reason of a job for which these nodes would do, with the jobs on them."""
    views = holders.layout.nodes
    named = tuple([views[n].id for n in islice(members(nodes), MOST_NAMED)])
    return Waiting("", code, named, holders.on(nodes))


def least_shortage(
    state: ClusterState, alternatives: Sequence[tuple[Request, NodeSet]]
) -> Shortage | None:
    """Return the shortage of these alternatives, each with its nodes; None if one fits.

    The least shortage of power, if any of them lacks power alone; else the one of capacity.
    """
    least = Shortage(ShortageCode.CAPACITY)
    for request, nodes in alternatives:
        shortage = why_not(state, request, nodes)
        if shortage is None:
            return None
        if shortage.code is not ShortageCode.POWER_CAP:
            continue
        if least.code is ShortageCode.CAPACITY or shortage.missing_mw < least.missing_mw:
            least = shortage
    return least


def for_power(snapshot: Snapshot, shortage: Shortage) -> Waiting:
    """Return the reason of a job that lacks power, and when a cap that ends or rises leaves it."""
    watts = shortage.missing_mw / MILLIWATTS
    rises_s = cap_rises_s(snapshot, watts)
    return Waiting("", WaitCode.POWER_CAP, watts=watts, from_s=rises_s)


def cap_rises_s(snapshot: Snapshot, missing_w: float) -> float | None:
    """Return when the cluster may use so many watts more than now; None if no cap leaves them."""
    wanted_w = (snapshot.cap_w or 0.0) + missing_w
    changes_s: set[float] = set()
    for cap in snapshot.power_caps:
        changes_s.update((cap.from_s, cap.to_s))
    for at_s in sorted(changes_s):
        if snapshot.now_s < at_s < inf:
            cap_w = snapshot.cap_at(at_s)
            if cap_w is None or cap_w >= wanted_w:
                return at_s
    return None


def why_impossible(snapshot: Snapshot, row: int) -> Waiting:
    """Return why a job can run on no open node, whatever is free.

    If some nodes meet all its needs, they take no new jobs: they are lost, cordoned, draining or
    for profiling alone. Else the first need that none of the nodes meets which met those before.
    """
    left: Sequence[NodeView] = snapshot.nodes
    if left:
        for need in needs_of(snapshot, row):
            suitable = [node for node in left if need.suits(node)]
            if not suitable:
                if need.code is WaitCode.NO_THROUGHPUT and not _are_open(left):
                    break  # that these nodes are closed is the nearer cause
                return need.unmet(left)
            left = suitable
    closed = tuple(node.id for node in left if not node.takes_training)[:MOST_NAMED]
    if left and all(node.state is NodeState.LOST for node in left):
        return Waiting("", WaitCode.NODES_LOST, closed)
    if _are_open(left):
        return Waiting("", WaitCode.NO_NODE_FITS, closed)
    return Waiting("", WaitCode.NODES_UNAVAILABLE, closed)


def _are_open(nodes: Sequence[NodeView]) -> bool:
    """Return True if one of these nodes takes new jobs."""
    return any(node.takes_training for node in nodes)


@dataclass(frozen=True, slots=True)
class Need:
    """Need of a job: the nodes that suit it, and the reason where none of some nodes does."""

    code: WaitCode
    suits: Callable[[NodeView], bool]
    missing: Callable[[Sequence[NodeView]], Waiting]

    def unmet(self, nodes: Sequence[NodeView]) -> Waiting:
        """Return the reason of a job that these nodes would suit but for this need."""
        return replace(self.missing(nodes), code=self.code)


def needs_of(snapshot: Snapshot, row: int) -> tuple[Need, ...]:
    """Return the needs of a job, in the order in which people are told of them."""
    columns = snapshot.jobs.columns
    types = columns.others["allowed_types"][row]
    labels = columns.others["labels"][row]
    wanted = {label for label in labels if not is_own(label)}
    runtime = {label for label in labels if label.startswith(RUNTIME)}
    avoided = {label for label in labels if label.startswith(APART)}
    features = {label for label in labels if label.startswith(FEATURE)}
    team = {label for label in labels if label.startswith(TEAM)}
    is_gang = could_be_gang(snapshot, row)
    amounts = _amounts(snapshot, row, is_gang=is_gang)
    known = _types_of_known_speed(snapshot, row, is_gang=is_gang)
    return (
        Need(
            WaitCode.TYPES_UNAVAILABLE,
            lambda node: not types or node.gpu_type in types,
            lambda nodes: _words(types, [node.gpu_type for node in nodes if node.gpu_type]),
        ),
        Need(
            WaitCode.LABEL_UNAVAILABLE,
            lambda node: wanted <= set(node.labels),
            lambda nodes: _labels(wanted, nodes, snapshot.nodes),
        ),
        Need(
            WaitCode.RUNTIME_UNAVAILABLE,
            lambda node: runtime <= set(node.labels),
            lambda _: _words([runtime_of(labels)], []),
        ),
        Need(
            WaitCode.AGENT_TOO_OLD,
            lambda node: features <= set(node.labels),
            lambda nodes: _features(features, nodes),
        ),
        Need(
            WaitCode.NODES_OF_OTHER_TEAMS,
            lambda node: team <= set(node.labels),
            _named,
        ),
        Need(
            WaitCode.NO_NODE_FITS,
            lambda node: all(_has_enough(node, name, amount) for name, amount in amounts),
            lambda nodes: _lacks(amounts, nodes),
        ),
        Need(
            WaitCode.NO_THROUGHPUT,
            lambda node: node.gpu_type in known,
            lambda nodes: _words([node.gpu_type for node in nodes], []),
        ),
        Need(
            WaitCode.NODES_AVOIDED,
            lambda node: avoided <= set(node.labels) or not node.takes_training,
            _named,
        ),
    )


def _named(nodes: Sequence[NodeView]) -> Waiting:
    """Name these nodes."""
    return Waiting("", WaitCode.NO_NODE_FITS, tuple(node.id for node in nodes)[:MOST_NAMED])


def _words(missing: Iterable[str], offered: Iterable[str]) -> Waiting:
    """Name the words that are missing, and those that are offered."""
    return Waiting(
        "",
        WaitCode.NO_NODE_FITS,
        missing=tuple(sorted(set(missing)))[:MOST_NAMED],
        offered=tuple(sorted(set(offered)))[:MOST_NAMED],
    )


def _labels(wanted: set[str], nodes: Sequence[NodeView], every_node: Sequence[NodeView]) -> Waiting:
    """Name the labels that these nodes lack, and these nodes if others have the labels.

    If each label is on one of these nodes, none of them has all labels together.
    """
    here = _labels_of(nodes)
    missing = wanted - here or wanted
    reason = _words(missing, here)
    are_apart = missing <= here
    if are_apart or not missing & _labels_of(every_node):
        return reason
    return replace(reason, nodes=_named(nodes).nodes)


def _features(wanted: set[str], nodes: Sequence[NodeView]) -> Waiting:
    """Name these nodes, and the features that none of their agents has."""
    there: set[str] = set()
    for node in nodes:
        there.update(node.labels)
    missing = wanted - there or wanted
    names = [label.removeprefix(FEATURE) for label in missing]
    return replace(_words(names, []), nodes=_named(nodes).nodes)


def _labels_of(nodes: Sequence[NodeView]) -> set[str]:
    """Return the labels that people gave to these nodes."""
    return {label for node in nodes for label in node.labels if not is_own(label)}


def _lacks(amounts: Sequence[tuple[str, float]], nodes: Sequence[NodeView]) -> Waiting:
    """Name what no node has enough of; all needs if only their sum is on no node."""
    lacks: list[Lack] = []
    for name, amount in amounts:
        most = max(has(node, name) for node in nodes)
        if name == "gpus" and max(len(node.devices) for node in nodes) >= amount > most:
            name = "healthy_gpus"
        if most < inf:
            lacks.append(Lack(name, amount, most))
    short = [lack for lack in lacks if demanded(lack.wanted) > available(lack.most)]
    return Waiting("", WaitCode.NO_NODE_FITS, lacks=tuple(short or lacks))


def _has_enough(node: NodeView, name: str, amount: float) -> bool:
    """Return True if an empty node has so much of a resource."""
    return demanded(amount) <= available(has(node, name))


def could_be_gang(snapshot: Snapshot, row: int) -> bool:
    """Return True if no node could hold a training job's GPUs, but several could, open or not."""
    columns = snapshot.jobs.columns
    least = int(columns.counts["gpus_min"][row])
    if least < 2 or columns.others["batch"][row]:
        return False
    types = columns.others["allowed_types"][row]
    labels = set(columns.others["labels"][row])
    demand = seat_demand(columns, row)
    together: dict[str, int] = {}
    for node in snapshot.nodes:
        is_typed = not types or node.gpu_type in types
        is_there = node.state is not NodeState.LOST and node.role is not NodeRole.PROFILING
        if not (is_typed and is_there and labels <= set(node.labels)):
            continue
        if not all(_has_enough(node, name, amount) for name, amount in demand.items() if amount):
            continue
        if len(node.devices) >= least:
            return False
        of_type = "" if columns.others["may_mix"][row] else node.gpu_type
        together[of_type] = together.get(of_type, 0) + int(has(node, "gpus"))
    return max(together.values(), default=0) >= least


def _amounts(snapshot: Snapshot, row: int, *, is_gang: bool) -> tuple[tuple[str, float], ...]:
    """Return what a job, or each unit of it, needs of one node: GPUs first, then the rest.

    A gang over nodes needs one GPU of each.
    """
    columns = snapshot.jobs.columns
    demand = seat_demand(columns, row)
    rest = sorted((name, amount) for name, amount in demand.items() if amount > 0.0)
    gpus = int(columns.counts["gpus_min"][row])
    if columns.others["batch"][row]:
        gpus = gpus_per_unit(columns, row)
    if is_gang:
        gpus = 1
    return (("gpus", float(gpus)), *rest)


def has(node: NodeView, name: str) -> float:
    """Return how much of a resource a node has when it is empty; of GPUs the healthy ones."""
    if name == "gpus":
        return float(sum(device.healthy for device in node.devices))
    if name in ("cores", "memory_gb"):
        return float(getattr(node, name))
    return dict(node.resources).get(name, 0.0)


def _types_of_known_speed(snapshot: Snapshot, row: int, *, is_gang: bool) -> set[str]:
    """Return the GPU types on which a job's speed is known; batch jobs need none.

    That of a gang over nodes is estimated from any other on its type.
    """
    columns = snapshot.jobs.columns
    least = int(columns.counts["gpus_min"][row])
    most = int(columns.counts["gpus_max"][row])
    if columns.others["batch"][row] or not most:
        return {node.gpu_type for node in snapshot.nodes}
    kind = snapshot.kinds[snapshot.kind_index[columns.kinds[row]]]
    if is_gang:
        return {t.gpu_type for t in kind.throughputs if t.is_known and t.gpus}
    return {t.gpu_type for t in kind.throughputs if t.is_known and least <= t.gpus <= most}
