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
    NodeState,
    NodeView,
    Snapshot,
    profile_runs,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.finders import Shortage, ShortageCode, why_not
from policies.placement.layout import MILLIWATTS, Request, members
from policies.placement.priced_options import GroupingKey, JobOptions

MOST_NAMED = 8
"""Most jobs or nodes that a reason names; thousands of jobs would each repeat them."""


def not_eligible(snapshot: Snapshot) -> dict[int, Waiting]:
    """By row, jobs that wait for anything but capacity: profiling or dependencies."""
    columns = snapshot.jobs.columns
    phases, dependent = columns.others["phase"], columns.others["dependencies"]
    waiting = {}
    if JobPhase.PROFILING in phases:
        profiled = (i for i, phase in enumerate(phases) if phase is JobPhase.PROFILING)
        waiting = {i: Waiting(columns.ids[i], WaitCode.AWAITING_PROFILE) for i in profiled}
    if not any(dependent):
        return waiting
    known = snapshot.jobs.position
    for i, dependencies in enumerate(dependent):
        undone = tuple(d for d in dependencies if d in known)
        if undone and i not in waiting:
            waiting[i] = Waiting(columns.ids[i], WaitCode.DEPENDENCY, jobs=undone)
    return waiting


class Holders:
    """Jobs on each node once a plan is carried out, with those outside the snapshot that stop."""

    def __init__(
        self, snapshot: Snapshot, state: ClusterState, placements: Sequence[Placement]
    ) -> None:
        self.layout, self.snapshot, self.placements = state.layout, snapshot, placements
        self._found: dict[int, tuple[str, ...]] = {}

    @cached_property
    def at(self) -> Mapping[int, Sequence[str]]:
        """Jobs by node, without nodes that have none."""
        index, found = self.layout.index, dict[int, list[str]]()
        runs = [(job, run.ranks) for job, run in profile_runs(self.snapshot)]
        for job, ranks in [*[(placed.job, placed.ranks) for placed in self.placements], *runs]:
            for seat in ranks:
                if (n := index.get(seat.node)) is not None:
                    found.setdefault(n, []).append(job)
        for node, job in strangers(self.snapshot):
            found.setdefault(index[node], []).append(job)
        return found

    def on(self, nodes: int) -> tuple[str, ...]:
        """Return jobs on these nodes, at most MOST_NAMED."""
        if nodes not in self._found:
            holders = [job for n in members(nodes) for job in self.at.get(n, ())]
            self._found[nodes] = tuple(dict.fromkeys(holders))[:MOST_NAMED]
        return self._found[nodes]


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
        columns, known = self.snapshot.jobs.columns, dict[GroupingKey, Waiting]()
        keys, phases = self.options.keys, columns.others["phase"]
        for row in rows:
            key = keys[row]
            if key not in known:
                known[key] = self._reason(row, holders)
            one = known[key]
            code = one.code
            if phases[row] is JobPhase.RUNNING and code is WaitCode.NO_CAPACITY:
                code = WaitCode.POSTPONED
            yield replace(one, job=columns.ids[row], code=code)

    def _reason(self, row: int, holders: Holders) -> Waiting:
        options = self.options.within(inf, row)
        if not options:
            return why_impossible(self.snapshot, row)
        alternatives = [(option.request, option.nodes) for option in options]
        shortage = least_shortage(self.state, alternatives)
        if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
            return for_power(self.snapshot, shortage)
        nodes_that_would_do = 0
        for option in options:
            nodes_that_would_do |= option.nodes
        code = WaitCode.POSTPONED if shortage is None else WaitCode.NO_CAPACITY
        return held_by(holders, code, nodes_that_would_do)


def held_by(holders: Holders, code: WaitCode, nodes: int) -> Waiting:
    """Return the reason of a job for which these nodes would do, with the jobs on them."""
    views = holders.layout.nodes
    named = tuple([views[n].id for n in islice(members(nodes), MOST_NAMED)])
    return Waiting("", code, named, holders.on(nodes))


def least_shortage(
    state: ClusterState, alternatives: Sequence[tuple[Request, int]]
) -> Shortage | None:
    """Return the shortage of these alternatives (request, set of nodes); None if one fits.

    Of those that lack power alone, the one that lacks least.
    """
    found = [why_not(state, request, only) for request, only in alternatives]
    if None in found:
        return None
    of_power = [s for s in found if s is not None and s.code is ShortageCode.POWER_CAP]
    return min(of_power, key=lambda s: s.missing_mw, default=Shortage(ShortageCode.CAPACITY))


def for_power(snapshot: Snapshot, shortage: Shortage) -> Waiting:
    """Return the reason of a job that lacks power, and when a cap that ends or rises leaves it."""
    watts = shortage.missing_mw / MILLIWATTS
    rises_s = cap_rises_s(snapshot, watts)
    return Waiting("", WaitCode.POWER_CAP, watts=watts, from_s=rises_s)


def cap_rises_s(snapshot: Snapshot, missing_w: float) -> float | None:
    """Return when the cluster may use so many watts more than now; None if no cap leaves them."""
    wanted_w = (snapshot.cap_w or 0.0) + missing_w
    changes = {at for s in snapshot.power_caps for at in (s.from_s, s.to_s)}
    caps = ((at, snapshot.cap_at(at)) for at in sorted(changes) if snapshot.now_s < at < inf)
    return next((at for at, cap in caps if cap is None or cap >= wanted_w), None)


def why_impossible(snapshot: Snapshot, row: int) -> Waiting:
    """Return why a job can run on no open node, whatever is free.

    Nodes that have all it needs are in its way (lost, cordoned, draining, for profiling alone);
    else the first need that none of them meets.
    """
    left: Sequence[NodeView] = snapshot.nodes
    for need in needs_of(snapshot, row) if left else ():
        suitable = [node for node in left if need.suits(node)]
        if not suitable and (need.code is WaitCode.NO_THROUGHPUT and not _open(left)):
            break
        if not suitable:
            return need.unmet(left)
        left = suitable
    named = tuple(n.id for n in left if not n.takes_training)[:MOST_NAMED]
    if left and all(n.state is NodeState.LOST for n in left):
        return Waiting("", WaitCode.NODES_LOST, named)
    return Waiting("", WaitCode.NO_NODE_FITS if _open(left) else WaitCode.NODES_UNAVAILABLE, named)


def _open(nodes: Sequence[NodeView]) -> bool:
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
    types, labels = columns.others["allowed_types"][row], columns.others["labels"][row]
    wanted = {label for label in labels if not is_own(label)}
    runtime = {label for label in labels if label.startswith(RUNTIME)}
    avoided = {label for label in labels if label.startswith(APART)}
    features = {label for label in labels if label.startswith(FEATURE)}
    team = {label for label in labels if label.startswith(TEAM)}
    amounts = _amounts(snapshot, row)
    known = _types_of_known_speed(snapshot, row)
    return (
        Need(
            WaitCode.TYPES_UNAVAILABLE,
            lambda n: not types or n.gpu_type in types,
            lambda of: _words(types, (n.gpu_type for n in of if n.gpu_type)),
        ),
        Need(
            WaitCode.LABEL_UNAVAILABLE,
            lambda n: wanted <= set(n.labels),
            lambda of: _labels(wanted, of, snapshot.nodes),
        ),
        Need(
            WaitCode.RUNTIME_UNAVAILABLE,
            lambda n: runtime <= set(n.labels),
            lambda of: _words((runtime_of(labels),), ()),
        ),
        Need(
            WaitCode.AGENT_TOO_OLD,
            lambda n: features <= set(n.labels),
            lambda of: _features(features, of),
        ),
        Need(
            WaitCode.NODES_OF_OTHER_TEAMS,
            lambda n: team <= set(n.labels),
            _named,
        ),
        Need(
            WaitCode.NO_NODE_FITS,
            lambda n: all(_has_enough(n, name, amount) for name, amount in amounts),
            lambda of: _lacks(amounts, of),
        ),
        Need(
            WaitCode.NO_THROUGHPUT,
            lambda n: n.gpu_type in known,
            lambda of: _words((n.gpu_type for n in of), ()),
        ),
        Need(
            WaitCode.NODES_AVOIDED,
            lambda n: avoided <= set(n.labels) or not n.takes_training,
            _named,
        ),
    )


def _named(nodes: Sequence[NodeView]) -> Waiting:
    return Waiting("", WaitCode.NO_NODE_FITS, tuple(node.id for node in nodes)[:MOST_NAMED])


def _words(missing: Iterable[str], offered: Iterable[str]) -> Waiting:
    told = tuple(sorted(set(missing)))[:MOST_NAMED], tuple(sorted(set(offered)))[:MOST_NAMED]
    return Waiting("", WaitCode.NO_NODE_FITS, missing=told[0], offered=told[1])


def _labels(wanted: set[str], nodes: Sequence[NodeView], every_node: Sequence[NodeView]) -> Waiting:
    """Name the labels that these nodes lack, and these nodes if others have the labels.

    If each label is on one of these nodes, none of them has all labels together.
    """
    here = _labels_of(nodes)
    missing = wanted - here or wanted
    reason = _words(missing, here)
    if missing <= here or not missing & _labels_of(every_node):
        return reason
    return replace(reason, nodes=_named(nodes).nodes)


def _features(wanted: set[str], nodes: Sequence[NodeView]) -> Waiting:
    """Name these nodes, and the features that none of their agents has."""
    there = {label for node in nodes for label in node.labels}
    names = {label.removeprefix(FEATURE) for label in wanted - there or wanted}
    return replace(_words(names, ()), nodes=_named(nodes).nodes)


def _labels_of(nodes: Sequence[NodeView]) -> set[str]:
    """Return the labels that people gave to these nodes."""
    return {label for node in nodes for label in node.labels if not is_own(label)}


def _lacks(amounts: Sequence[tuple[str, float]], nodes: Sequence[NodeView]) -> Waiting:
    """Name what no node has enough of; what none has together if each is somewhere."""
    lacks = []
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


def _amounts(snapshot: Snapshot, row: int) -> tuple[tuple[str, float], ...]:
    """Return what a job, or each unit of it, needs of one node: GPUs first, then what else."""
    columns = snapshot.jobs.columns
    demand = seat_demand(columns, row)
    used = tuple(sorted((name, amount) for name, amount in demand.items() if amount > 0.0))
    is_batch, least = columns.others["batch"][row], int(columns.counts["gpus_min"][row])
    return (("gpus", float(gpus_per_unit(columns, row) if is_batch else least)), *used)


def has(node: NodeView, name: str) -> float:
    """Return how much of a resource a node has when it is empty; of GPUs the healthy ones."""
    if name == "gpus":
        return float(sum(device.healthy for device in node.devices))
    if name in ("cores", "memory_gb"):
        return float(getattr(node, name))
    return dict(node.resources).get(name, 0.0)


def _types_of_known_speed(snapshot: Snapshot, row: int) -> set[str]:
    columns = snapshot.jobs.columns
    least, most = (int(columns.counts[name][row]) for name in ("gpus_min", "gpus_max"))
    if columns.others["batch"][row] or not most:
        return {node.gpu_type for node in snapshot.nodes}
    kind = snapshot.kinds[snapshot.kind_index[columns.kinds[row]]]
    return {t.gpu_type for t in kind.throughputs if t.is_known and least <= t.gpus <= most}
