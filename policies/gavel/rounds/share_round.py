"""Round of every share policy: shares after changes, then time slices.

An allocation of time is made when jobs, nodes or throughputs have changed (or a period has passed),
and a mechanism assigns time slices (Gavel, sections 3 and 5). Slices last a round: in an earlier
round running jobs go on, and free GPUs are assigned. Placements have no term: a job that loses its
slice is pre-empted by the next plan, since with terms a failed round would stop every job.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TypeAlias

import numpy as np

from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Bools, Snapshot
from policies.gavel.allocation.observe import GroupingOptions, Observed, observe
from policies.gavel.allocation.problem import Shares
from policies.gavel.allocation.rates import JobGroup
from policies.gavel.rounds.placements import (
    GroupRequests,
    current_slices,
    to_placements,
)
from policies.gavel.rounds.slices import (
    ClassQueues,
    Credits,
    Selection,
    ServiceAccount,
    from_memory,
    length_s,
    opened,
    received_s,
    running_rows,
)
from policies.placement.cluster_state import Shortage, ShortageCode, why_not
from policies.placement.from_snapshot import launches_that_stay
from policies.placement.layout import members
from policies.placement.time_slices import TimeSlices
from policies.placement.waiting.reasons import Holders, for_power, held_by, why_impossible

EARLY = 0.1
"""Fraction of a round by which a slice may end early, as periodic rounds are not exact.

A slice that would last longer than a round is over: its clock or the intervals have changed.
"""

Allocate: TypeAlias = Callable[[Observed], Shares]
"""Solver of shares. Raises SolverFailedError without any."""


@dataclass(frozen=True, slots=True)
class ShareRule:
    """Rule of a share policy.

    `memory_of`: name and parameters, whose memory is its own. Shares are made when the problem or
    what they also `depend_on` has changed, and, with `recompute_s` above 0, when they are as old.
    With `fills`, GPUs that the shares leave idle go to any job that can use them.
    """

    name: str
    memory_of: str
    allocate: Allocate
    options: GroupingOptions = field(default_factory=GroupingOptions)
    recompute_s: float = 0.0
    depend_on: str = ""
    fills: bool = True


def plan_of(snapshot: Snapshot, rule: ShareRule) -> Plan:
    """Return the plan of a share policy. Raises SolverFailedError where shares cannot be had."""
    return _Round(snapshot, rule).plan()


class _Round:
    def __init__(self, snapshot: Snapshot, rule: ShareRule) -> None:
        self.snapshot, self.rule = snapshot, rule
        self.observed = observe(snapshot, rule.options)
        self.classes = self.observed.classes
        self.requests = GroupRequests(self.observed)
        self.current = current_slices(self.observed, self.requests)
        self.round_s = length_s(snapshot.round_s)
        before = from_memory(snapshot.memory, rule.memory_of, self.classes)
        self.slices_go_on = (
            before is not None
            and EARLY < (before.round_end_s - snapshot.now_s) / self.round_s < 1.0 + EARLY
        )
        self.account = self._account(before)

    def plan(self) -> Plan:
        """Place running jobs, then those with a slice, then others."""
        slices = TimeSlices(self.observed.state, self.requests, self.current)
        slices.keep(self._fixed())
        fills, account = self.rule.fills, self.account
        queues = ClassQueues(self.observed, account.credit, self.current)
        left = self.observed.state.free_gpus()
        jobs = len(self.classes.class_of)
        if any(left.values()) and len(slices.placed) < jobs:
            due = Selection(
                self.observed, account, queues, left, slices.placed, lagging_only=not fills
            )
            slices.assign(list(due.slices()), may_evict=not self.slices_go_on)
        if fills and len(slices.placed) < jobs:
            slices.backfill(lambda: self._by_need(slices, queues))
        placements = to_placements(self.observed, self.requests, self.current, slices.placed)
        waiting = waiting_of(self.observed, self.requests, placements, account.round_end_s)
        return Plan(
            self.rule.name, PlanStatus.HEURISTIC, placements, waiting,
            objective=account.objective, shares=self._shares(), memory=account.to_memory(),
        )  # fmt: skip

    def _account(self, before: ServiceAccount | None) -> ServiceAccount:
        """Return the account now, with new shares where they are wanted."""
        now_s = self.snapshot.now_s
        if before is not None:
            before.credit = self._credit(before)
            before.receive(now_s, running_rows(self.observed, self.current))
        if before is None or self._is_outdated(before):
            before = self._opened(before)
        if not self.slices_go_on:
            before.round_end_s = now_s + self.round_s
        return before

    def _is_outdated(self, before: ServiceAccount) -> bool:
        age_s = self.snapshot.now_s - before.made_s
        return before.problem != self._fingerprint or 0.0 < self.rule.recompute_s <= age_s

    @property
    def _fingerprint(self) -> str:
        return self.classes.fingerprint + self.rule.depend_on

    def _opened(self, before: ServiceAccount | None) -> ServiceAccount:
        problem, rule = self.observed.problem, self.rule
        alone = np.zeros(problem.rates.shape)
        paired = np.zeros(problem.pair_rates.shape[:2])
        shares = rule.allocate(self.observed) if len(alone) else Shares(alone, paired, 0.0)
        shapes = (shares.alone.shape, shares.paired.shape)
        numbers = (shares.alone, shares.paired, shares.objective)
        if shapes != (alone.shape, paired.shape) or not all(np.isfinite(n).all() for n in numbers):
            raise SolverFailedError(
                f"{rule.name}: the shares are not a finite number for each class and column"
            )
        now_s = self.snapshot.now_s
        return opened(
            rule.memory_of, self._fingerprint, self.classes, shares, now_s, self.round_s, before
        )

    def _credit(self, before: ServiceAccount) -> Credits:
        """Return the credits: jobs that came in since start level with the least of their class."""
        columns, known = self.snapshot.jobs.columns, self.snapshot.jobs.position
        arrived = columns.numbers["arrival_s"] > before.seen_s
        if not arrived.any() and before.credit.keys() <= known.keys():
            return before.credit
        kept = {job: of for job, of in before.credit.items() if job in known}
        rows, class_of = np.flatnonzero(arrived).tolist(), self.classes.class_of
        least = {m: self._least(m, arrived, before.credit) for m in {class_of[r] for r in rows}}
        kept |= {columns.ids[r]: of for r in rows if (of := least[class_of[r]])}
        return kept

    def _least(self, m: int, arrived: Bools, credit: Credits) -> dict[str, float]:
        """Return the least that a job of a class has received by GPU type, without newcomers."""
        others = [job for job in self.classes.members[m] if not arrived[job]] if m >= 0 else []
        had = [received_s(self.observed, credit, job) for job in others]
        types = self.observed.problem.types if had else ()
        least = {t: min([of.get(t, 0.0) for of in had]) for t in types}
        return {t: had_s for t, had_s in least.items() if had_s > 0.0}

    def _fixed(self) -> Iterable[int]:
        """Return the jobs that go on whatever their lag: within slices all, else new ones."""
        if self.slices_go_on:
            return self.current
        of = self.observed
        stay = launches_that_stay(self.snapshot, of.waiting, of.state)
        return [job for job in self.current if job in stay]

    def _by_need(self, slices: TimeSlices, queues: ClassQueues) -> list[list[int]]:
        """Return the jobs without a place by class, classes by lag, those without shares last."""
        waiting: dict[int, list[int]] = defaultdict(list)
        for row, m in enumerate(self.classes.class_of):
            if row not in slices.placed and self.classes.group_of[row] >= 0:
                waiting[m].append(row)
        lag, need = self.account.lag_s(self.snapshot.now_s).tolist(), dict[int, float]()
        for (row, _), i in self.account.entry.items():
            for m in self.classes.account_rows[row]:
                need[m] = max(need.get(m, -np.inf), lag[i])
        order = sorted(waiting, key=lambda m: (m < 0, -need.get(m, -np.inf), m))
        return [queues.by_need(waiting[m]) if m >= 0 else waiting[m] for m in order]

    def _shares(self) -> Mapping[str, Mapping[str, float]]:
        """By job and GPU type the part of the time that it is to have, alone or with others."""
        ids, columns = self.snapshot.jobs.columns.ids, self.observed.problem.columns
        count, share = self.observed.problem.count.tolist(), self.account.share.tolist()
        of_class: dict[int, dict[str, float]] = defaultdict(dict)
        for (row, column), i in self.account.entry.items():
            for m in self.classes.account_rows[row]:
                name, total = columns[column].gpu_type, of_class[m]
                total[name] = total.get(name, 0.0) + share[i] / count[m]
        rows = enumerate(self.classes.class_of)
        return {ids[row]: of_class[m] for row, m in rows if m in of_class}


def waiting_of(
    observed: Observed,
    requests: GroupRequests,
    placements: Sequence[Placement],
    round_end_s: float,
) -> tuple[Waiting, ...]:
    """Return a reason for each job of the snapshot without a placement, in the jobs' order.

    `placements`: of the next round; `round_end_s`: end of its slices.
    """
    ids = observed.snapshot.jobs.columns.ids
    placed = {p.job for p in placements}
    if len(placed) == len(ids):
        return ()
    reasons, found = _Reasons(observed, requests, placements, round_end_s), []
    for row, job in enumerate(ids):
        if job not in placed:
            known = observed.waiting.get(row)
            found.append(replace(reasons.of(row), job=job) if known is None else known)
    return tuple(found)


@dataclass
class _Reasons:
    """Reasons by group, as if of a job without a name."""

    observed: Observed
    requests: GroupRequests
    placements: Sequence[Placement]
    round_end_s: float
    _of: dict[int, Waiting] = field(default_factory=dict)

    @cached_property
    def holders(self) -> Holders:
        return Holders(self.observed.snapshot, self.observed.state, self.placements)

    def of(self, row: int) -> Waiting:
        """Return the reason of the group of the job in this row."""
        g = self.observed.classes.group_of[row]
        if g not in self._of:
            self._of[g] = self._reason(row, self.observed.classes.groups[g])
        return self._of[g]

    def _reason(self, row: int, group: JobGroup) -> Waiting:
        types = self._types(row, group)
        if not types:
            return why_impossible(self.observed.snapshot, row)
        if (shortage := self._shortage(row, group, types)) is not None:
            return for_power(self.observed.snapshot, shortage)
        views = self.observed.state.layout.nodes
        admitted = members(self.requests.admitting(row, 1))
        usable = sum(1 << n for n in admitted if views[n].gpu_type in types)
        return held_by(self.holders, WaitCode.NO_CAPACITY, usable)

    def _types(self, row: int, group: JobGroup) -> frozenset[str]:
        """Return the GPU types on which such a job runs now, or would on nodes of its own."""
        classes, layout = self.observed.classes, self.observed.state.layout
        columns, rates = classes.problem.columns, classes.rates[classes.group_of[row]]
        now = [c.gpu_type for c, rate in zip(columns, rates, strict=True) if rate > 0.0]
        if now:
            return frozenset(now)
        nodes = [layout.nodes[n] for n in members(self.requests.admitting(row, 1))]
        large = {node.gpu_type for node in nodes if len(node.devices) >= group.gpus}
        kind = self.observed.snapshot.kinds[self.observed.snapshot.kind_index[group.kind]]
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
        demand, names = self.observed.requests.demand(row), tuple(sorted(types))
        _, labels, _ = group.constraints
        request = state.layout.request(group.gpus, demand, types=names, labels=labels)
        shortage = why_not(state, request)
        of_power = shortage is not None and shortage.code is ShortageCode.POWER_CAP
        return shortage if of_power else None
