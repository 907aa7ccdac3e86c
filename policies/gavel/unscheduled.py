"""Why jobs have no GPUs in this round of time slices, with what is in their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import Placement, WaitCode, Waiting
from policies.contract.snapshot import Purpose
from policies.gavel.allocation.grouping import JobGroup
from policies.gavel.allocation.observe import Observed
from policies.gavel.current import GroupRequests
from policies.placement.finders import Shortage, ShortageCode, why_not
from policies.placement.layout import members
from policies.placement.plan_builder import Holders, for_power, why_impossible


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
        self.observed, self.requests = observed, requests
        self.holders = Holders(observed.snapshot, observed.state, placements)
        self.snapshot, self.round_end_s = observed.snapshot, round_end_s
        self._of: dict[int, Waiting] = {}

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
        if (shortage := self._shortage(row, group, types)) is not None:
            return for_power(self.snapshot, shortage)
        views = self.observed.state.layout.nodes
        admitted = members(self.requests.admitting(row, 1))
        usable = sum(1 << n for n in admitted if views[n].gpu_type in types)
        jobs, ends_s = self.holders.on(usable)
        earliest_s = min(self.round_end_s, inf if ends_s is None else ends_s)
        return Waiting("", WaitCode.NO_CAPACITY, jobs=jobs, earliest_s=earliest_s)

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

    def _shortage(self, row: int, group: JobGroup, types: frozenset[str]) -> Shortage | None:
        """Return the power that is missing where there is capacity for the job."""
        state = self.observed.state
        if state.cap_mw == inf:
            return None
        demand, names = self.observed.requests.demand(row, 1), tuple(sorted(types))
        request = state.layout.request(group.gpus, demand, types=names, labels=group.labels)
        shortage = why_not(state, request)
        of_power = shortage is not None and shortage.code is ShortageCode.POWER_CAP
        return shortage if of_power else None
