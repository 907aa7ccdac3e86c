"""Why jobs have no GPUs in this round of time sharing, with what is in their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.contract.plan import Placement, WaitCode, Waiting
from policies.contract.snapshot import Purpose
from policies.contract.validation import TOLERANCE, profile_runs
from policies.gavel.allocation.allocatable import Condition
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import Column
from policies.gavel.allocation.rates import Group, speed
from policies.placement.floor import Floor
from policies.placement.reasons import MOST_NAMED, why_impossible
from policies.placement.waiting import cap_rises_s

TRAINING = Purpose.TRAINING
"""See `policies.contract.validation.PROFILING`."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that all jobs of a group have in common."""

    code: WaitCode
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    watts: float | None = None
    earliest_s: float | None = None

    def of(self, job: str) -> Waiting:
        """As one job's."""
        return Waiting(job, self.code, self.nodes, self.jobs, self.watts, self.earliest_s)


@dataclass(slots=True)
class Reasons:
    """Reasons by group: `placements` are what runs next, `round_end_s` when turns are given out
    again.
    """

    observed: Observed
    floor: Floor
    placements: Sequence[Placement]
    round_end_s: float
    by_group: dict[int, Reason] = field(default_factory=dict)
    by_nodes: dict[tuple[frozenset[str], Condition], Reason] = field(default_factory=dict)
    holders: dict[str, list[tuple[str, float | None]]] = field(default_factory=dict)

    def all(self) -> tuple[Waiting, ...]:
        """One reason for each job of the snapshot that has no placement, in the jobs' order."""
        observed, ids = self.observed, self.observed.snapshot.jobs.columns.ids
        placed = {p.job for p in self.placements if p.purpose is TRAINING}
        if len(placed) == len(ids):
            return ()
        group_of = dict(
            zip(observed.rows.tolist(), observed.classes.group_of.tolist(), strict=True)
        )
        waiting, unplaced = (
            observed.waiting,
            [(row, job) for row, job in enumerate(ids) if job not in placed],
        )
        return tuple(
            [
                waiting[row] if row in waiting else self._of(row, group_of[row]).of(job)
                for row, job in unplaced
            ]
        )

    def _of(self, row: int, g: int) -> Reason:
        if g not in self.by_group:
            self.by_group[g] = self._reason(row, g)
        return self.by_group[g]

    def _reason(self, row: int, g: int) -> Reason:
        snapshot, group = self.observed.snapshot, self.observed.classes.groups[g]
        types = self._types(g, group)
        if not types:
            code, nodes = why_impossible(snapshot, row)
            return Reason(code, nodes)
        missing_w = self._missing_w(group, types)
        if missing_w > TOLERANCE:
            return Reason(
                WaitCode.POWER_CAP, watts=missing_w, earliest_s=cap_rises_s(snapshot, missing_w)
            )
        key = types, group.condition
        if key not in self.by_nodes:
            self.by_nodes[key] = self._in_the_way(types, group.condition)
        return self.by_nodes[key]

    def _types(self, g: int, group: Group) -> frozenset[str]:
        """GPU types on which such a job runs now, or would if it had the nodes to itself; none:
        then it is impossible.
        """
        columns, rates = self.observed.problem.columns, self.observed.classes.rates[g].tolist()
        now = frozenset(c.gpu_type for c, rate in zip(columns, rates, strict=True) if rate > 0.0)
        if now:
            return now
        allocatable, admitted = (
            self.observed.allocatable,
            self.observed.allocatable.admitting(group.condition),
        )
        large = {
            n.gpu_type
            for n, may in zip(allocatable.nodes, admitted, strict=True)
            if may and len(n.devices) >= group.gpus
        }
        return frozenset(t for t in large if speed(self.observed.snapshot, group, Column(t)) > 0.0)

    def _missing_w(self, group: Group, types: frozenset[str]) -> float:
        """Watts that are missing where there is room for the job; 0 where there is none, or no
        cap.
        """
        supplies, allocatable = self.floor.supplies, self.observed.allocatable
        if supplies.watts is None:
            return 0.0
        demand, admitted = group.condition.of_rank(1), allocatable.admitting(group.condition)
        needed = [
            supplies.extra_w(n, group.gpus)
            for n, devices in enumerate(self.floor.open)
            if len(devices) >= group.gpus
            and admitted[n]
            and allocatable.nodes[n].gpu_type in types
            and supplies.has(n, demand)
        ]
        return min(needed) - max(0.0, supplies.watts) if needed else 0.0

    def _in_the_way(self, types: frozenset[str], condition: Condition) -> Reason:
        """Who holds the nodes that would do; when turns are given out again, or the first of those
        holders ends.
        """
        self.holders = self.holders or self._all_holders()
        allocatable, snapshot = self.observed.allocatable, self.observed.snapshot
        nodes = zip(allocatable.nodes, allocatable.admitting(condition), strict=True)
        found = [
            holder
            for n, may in nodes
            if may and n.gpu_type in types
            for holder in self.holders.get(n.id, ())
        ]
        ends = [snapshot.now_s + run_s for _, run_s in found if run_s is not None]
        jobs = tuple(dict.fromkeys(job for job, _ in found))[:MOST_NAMED]
        return Reason(WaitCode.NO_CAPACITY, jobs=jobs, earliest_s=min([self.round_end_s, *ends]))

    def _all_holders(self) -> dict[str, list[tuple[str, float | None]]]:
        """By node (job, its run time from now if known) of everything that runs next."""
        holders: dict[str, list[tuple[str, float | None]]] = defaultdict(list)
        for placed in self.placements:
            for seat in placed.ranks:
                holders[seat.node].append((placed.job, placed.predicted_run_s))
        for job, run in profile_runs(self.observed.snapshot):
            for seat in run.ranks:
                holders[seat.node].append((job, None))
        return holders
