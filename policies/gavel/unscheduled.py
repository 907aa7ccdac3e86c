"""Why jobs have no GPUs in this round of time slices, with what is in their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TypeAlias

from policies.contract.plan import Placement, WaitCode, Waiting
from policies.contract.snapshot import Purpose
from policies.contract.validation import TOLERANCE, profile_runs
from policies.gavel.allocation.grouping import JobGroup
from policies.gavel.allocation.observe import Observed
from policies.gavel.current import GroupRequests
from policies.placement.impossible import MOST_NAMED, why_impossible
from policies.placement.requests import THOUSANDTHS, members
from policies.placement.shortage import ShortageCode, why_not
from policies.placement.waiting import cap_rises_s

Holders: TypeAlias = list[tuple[str, float | None]]
"""(job, its run time from now if known)."""


def waiting_of(
    observed: Observed,
    requests: GroupRequests,
    placements: Sequence[Placement],
    round_end_s: float,
) -> tuple[Waiting, ...]:
    """Return a reason for each job of the snapshot without a placement, in the jobs' order.

    `placements`: what runs next; `round_end_s`: when slices are given out again.
    """
    ids = observed.snapshot.jobs.columns.ids
    placed = {p.job for p in placements if p.purpose is Purpose.TRAINING}
    if len(placed) == len(ids):
        return ()
    reasons, found = _Reasons(observed, requests, placements, round_end_s), []
    for row, job in enumerate(ids):
        if job not in placed:
            known = observed.waiting.get(row)
            found.append(replace(reasons.of(row), job=job) if known is None else known)
    return tuple(found)


class _Reasons:
    """Reasons by group, as if of a job without a name."""

    def __init__(
        self,
        observed: Observed,
        requests: GroupRequests,
        placements: Sequence[Placement],
        round_end_s: float,
    ) -> None:
        self.observed, self.requests, self.placements = observed, requests, placements
        self.snapshot, self.round_end_s = observed.snapshot, round_end_s
        self._of: dict[int, Waiting] = {}
        self._in_the_way: dict[tuple[frozenset[str], int], Waiting] = {}

    def of(self, row: int) -> Waiting:
        """Return the reason of the group of the job in this row."""
        g = self.observed.classes.group_of[row]
        if g not in self._of:
            self._of[g] = self._reason(row, self.observed.classes.groups[g])
        return self._of[g]

    def _reason(self, row: int, group: JobGroup) -> Waiting:
        types = self._types(row, group)
        if not types:
            code, nodes = why_impossible(self.snapshot, row)
            return Waiting("", code, nodes)
        if (missing_w := self._missing_w(row, group, types)) > TOLERANCE:
            rises_s = cap_rises_s(self.snapshot, missing_w)
            return Waiting("", WaitCode.POWER_CAP, watts=missing_w, earliest_s=rises_s)
        key = types, self.requests.admitting(row, 1)
        if key not in self._in_the_way:
            self._in_the_way[key] = self._busy(*key)
        return self._in_the_way[key]

    def _types(self, row: int, group: JobGroup) -> frozenset[str]:
        """Return the GPU types on which such a job runs now, or would on nodes of its own."""
        classes, layout = self.observed.classes, self.observed.state.layout
        columns, rates = classes.problem.columns, classes.rates[classes.group_of[row]]
        now = [c.gpu_type for c, rate in zip(columns, rates, strict=True) if rate > 0.0]
        if now:
            return frozenset(now)
        nodes = [layout.nodes[n] for n in members(self.requests.admitting(row, 1))]
        large = {node.gpu_type for node in nodes if len(node.devices) >= group.gpus}
        kind = self.snapshot.kinds[self.snapshot.kind_index[group.kind]]
        return frozenset(
            t.gpu_type
            for t in kind.throughputs
            if t.gpu_type in large
            and (t.gpus, t.spread) == (group.gpus, False)
            and t.steps_per_s > 0.0
        )

    def _missing_w(self, row: int, group: JobGroup, types: frozenset[str]) -> float:
        """Return the power that is missing where there is room for the job, else 0."""
        state, demand = self.observed.state, self.observed.requests.demand(row, 1)
        if state.cap_mw == inf:
            return 0.0
        request = state.layout.request(
            group.gpus, demand, types=tuple(sorted(types)), labels=group.labels
        )
        shortage = why_not(state, request)
        if shortage.code is not ShortageCode.POWER_CAP:
            return 0.0
        return shortage.missing_mw / THOUSANDTHS

    def _busy(self, types: frozenset[str], admitted: int) -> Waiting:
        """Return the jobs on the nodes that would do, and when slices, or one of them, end."""
        nodes = self.observed.state.layout.nodes
        found = [
            holder
            for n in members(admitted)
            if nodes[n].gpu_type in types
            for holder in self._holders.get(nodes[n].id, ())
        ]
        now_s = self.snapshot.now_s
        ends = [now_s + run_s for _, run_s in found if run_s is not None]
        jobs = tuple(dict.fromkeys(job for job, _ in found))[:MOST_NAMED]
        earliest_s = min([self.round_end_s, *ends])
        return Waiting("", WaitCode.NO_CAPACITY, jobs=jobs, earliest_s=earliest_s)

    @cached_property
    def _holders(self) -> dict[str, Holders]:
        """By node what runs next on it."""
        holders: dict[str, Holders] = defaultdict(list)
        for placed in self.placements:
            for seat in placed.ranks:
                holders[seat.node].append((placed.job, placed.predicted_run_s))
        for job, run in profile_runs(self.snapshot):
            for seat in run.ranks:
                holders[seat.node].append((job, None))
        return holders
