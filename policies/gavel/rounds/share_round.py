"""Round of every share policy: shares after changes, then time slices.

An allocation of time is made when jobs, nodes or throughputs have changed (or a period has passed),
and a mechanism assigns time slices (Gavel, sections 3 and 5). Slices last as long as a periodic
round. In a round before their end running jobs go on, and only free GPUs are assigned. Placements
have no term: a job that loses its slice is pre-empted by the next plan, since with terms a failed
round would stop every job.
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
from policies.placement.layout import NodeSet, members
from policies.placement.time_slices import TimeSlices
from policies.placement.waiting.reasons import Holders, for_power, held_by, why_impossible

EARLY = 0.1
"""Fraction of a round by which a slice may end early, as periodic rounds are not exact.

A slice that would last longer than a round counts as over: the clock or the interval has changed.
"""

Allocate: TypeAlias = Callable[[Observed], Shares]
"""Solver of shares. Raises SolverFailedError without any."""


@dataclass(frozen=True, slots=True)
class ShareRule:
    """Rule of a share policy.

    `name`: in the registry. `memory_of`: name and parameters of the policy, which marks its memory.
    `allocate` makes the shares: when the problem or the further inputs `depend_on` have changed,
    and, with `recompute_s` above 0, when they are that old. With `fills`, GPUs that the shares
    leave idle go to any job that can use them.
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
    """One decision: the observed snapshot, the running jobs, and the service account.

    `slices_go_on`: the slices of the last round have not ended yet.
    """

    def __init__(self, snapshot: Snapshot, rule: ShareRule) -> None:
        self.snapshot = snapshot
        self.rule = rule
        self.observed = observe(snapshot, rule.options)
        self.classes = self.observed.classes
        self.requests = GroupRequests(self.observed)
        self.current = current_slices(self.observed, self.requests)
        self.round_s = length_s(snapshot.round_s)
        before = from_memory(snapshot.memory, rule.memory_of, self.classes)
        self.slices_go_on = False
        if before is not None:
            rounds_left = (before.round_end_s - snapshot.now_s) / self.round_s
            self.slices_go_on = EARLY < rounds_left < 1.0 + EARLY
        self.account = self._account(before)

    def plan(self) -> Plan:
        """Place running jobs, then those with a slice, then others."""
        account = self.account

        # 1. Jobs that stay where they are.
        slices = TimeSlices(self.observed.state, self.requests, self.current)
        slices.keep(self._staying())

        # 2. Time slices on the GPUs that are left; only lagging rows get some if nothing is filled.
        queues = ClassQueues(self.observed, account.credit, self.current)
        free_gpus = self.observed.state.free_gpus()
        jobs = len(self.classes.class_of)
        if any(free_gpus.values()) and len(slices.placed) < jobs:
            selection = Selection(
                self.observed,
                account,
                queues,
                free_gpus,
                slices.placed,
                lagging_only=not self.rule.fills,
            )
            slices.assign(list(selection.slices()), may_evict=not self.slices_go_on)

        # 3. Any job on GPUs that are idle then.
        if self.rule.fills and len(slices.placed) < jobs:
            slices.backfill(lambda: self._unplaced_by_need(slices, queues))

        # 4. The plan, with the account as memory for the next round.
        placements = to_placements(self.observed, self.requests, self.current, slices.placed)
        waiting = waiting_of(self.observed, self.requests, placements)
        return Plan(
            self.rule.name,
            PlanStatus.HEURISTIC,
            placements,
            waiting,
            objective=account.objective,
            shares=self._shares_by_job(),
            memory=account.to_memory(),
        )

    def _account(self, before: ServiceAccount | None) -> ServiceAccount:
        """Return the account now, with new shares if those of `before` are outdated."""
        now_s = self.snapshot.now_s
        account = before
        if account is not None:
            account.credit = self._credit(account)
            account.receive(now_s, running_rows(self.observed, self.current))
        if account is None or self._is_outdated(account):
            account = self._with_new_shares(account)
        if not self.slices_go_on:
            account.round_end_s = now_s + self.round_s
        return account

    def _is_outdated(self, account: ServiceAccount) -> bool:
        """Return True if shares must be made anew: their inputs have changed, or they are old."""
        age_s = self.snapshot.now_s - account.made_s
        return account.problem != self._fingerprint or 0.0 < self.rule.recompute_s <= age_s

    @property
    def _fingerprint(self) -> str:
        """Digest of all inputs of the shares."""
        return self.classes.fingerprint + self.rule.depend_on

    def _with_new_shares(self, before: ServiceAccount | None) -> ServiceAccount:
        """Ask the policy for shares and return an account of them.

        Raises SolverFailedError if they are not a finite number for each class and column.
        """
        problem = self.observed.problem
        alone_shape = problem.rates.shape
        paired_shape = problem.pair_rates.shape[:2]
        if len(problem.rates):
            shares = self.rule.allocate(self.observed)
        else:
            shares = Shares(np.zeros(alone_shape), np.zeros(paired_shape), 0.0)

        has_shape = shares.alone.shape == alone_shape and shares.paired.shape == paired_shape
        numbers = (shares.alone, shares.paired, shares.objective)
        if not has_shape or not all(np.isfinite(number).all() for number in numbers):
            raise SolverFailedError(
                f"{self.rule.name}: the shares are not a finite number for each class and column"
            )
        return opened(
            self.rule.memory_of,
            self._fingerprint,
            self.classes,
            shares,
            self.snapshot.now_s,
            self.round_s,
            before,
        )

    def _credit(self, before: ServiceAccount) -> Credits:
        """Return the credits of present jobs.

        Jobs that arrived after the last round start level with the least of their class.
        """
        columns = self.snapshot.jobs.columns
        present = self.snapshot.jobs.position
        arrived = columns.numbers["arrival_s"] > before.seen_s
        if not arrived.any() and before.credit.keys() <= present.keys():
            return before.credit

        credit: dict[str, Mapping[str, float]] = {}
        for job, seconds in before.credit.items():
            if job in present:
                credit[job] = seconds
        least_of_class: dict[int, dict[str, float]] = {}
        for row in np.flatnonzero(arrived).tolist():
            m = self.classes.class_of[row]
            if m not in least_of_class:
                least_of_class[m] = self._least_received_s(m, arrived, before.credit)
            if least_of_class[m]:
                credit[columns.ids[row]] = least_of_class[m]
        return credit

    def _least_received_s(self, m: int, arrived: Bools, credit: Credits) -> dict[str, float]:
        """Return the least time that a job of class m has received, by GPU type if above 0.

        Jobs that have just arrived do not count.
        """
        if m < 0:
            return {}
        others = [job for job in self.classes.members[m] if not arrived[job]]
        if not others:
            return {}
        received = [received_s(self.observed, credit, job) for job in others]
        least: dict[str, float] = {}
        for gpu_type in self.observed.problem.types:
            least_s = min([of_job.get(gpu_type, 0.0) for of_job in received])
            if least_s > 0.0:
                least[gpu_type] = least_s
        return least

    def _staying(self) -> Iterable[int]:
        """Return the running jobs that go on, whatever their lag.

        All of them before the slices end; then those within their least run time.
        """
        if self.slices_go_on:
            return self.current
        stay = launches_that_stay(self.snapshot, self.observed.waiting, self.observed.state)
        return [job for job in self.current if job in stay]

    def _unplaced_by_need(self, slices: TimeSlices, queues: ClassQueues) -> list[list[int]]:
        """Return the jobs without a place by class, classes by lag, those without shares last."""
        # 1. Jobs without a place that take part in the decision.
        jobs_of_class: dict[int, list[int]] = defaultdict(list)
        for row, m in enumerate(self.classes.class_of):
            if row not in slices.placed and self.classes.group_of[row] >= 0:
                jobs_of_class[m].append(row)

        # 2. The greatest lag of each class, alone or in a pair, on any column.
        lag_s = self.account.lag_s(self.snapshot.now_s).tolist()
        most_lag_s: dict[int, float] = {}
        for (row, _), entry in self.account.entry.items():
            for m in self.classes.account_rows[row]:
                most_lag_s[m] = max(most_lag_s.get(m, -inf), lag_s[entry])

        # 3. Sort classes by it, and the jobs in each; jobs of no class (-1) come last.
        ordered: list[list[int]] = []
        for m in sorted(jobs_of_class, key=lambda m: (m < 0, -most_lag_s.get(m, -inf), m)):
            jobs = jobs_of_class[m]
            ordered.append(queues.by_need(jobs) if m >= 0 else jobs)
        return ordered

    def _shares_by_job(self) -> Mapping[str, Mapping[str, float]]:
        """Return each job's share of time by GPU type, alone and beside others together."""
        columns = self.observed.problem.columns
        count = self.observed.problem.count.tolist()
        share = self.account.share.tolist()
        share_of_class: dict[int, dict[str, float]] = defaultdict(dict)
        for (row, column), entry in self.account.entry.items():
            gpu_type = columns[column].gpu_type
            for m in self.classes.account_rows[row]:
                by_type = share_of_class[m]
                by_type[gpu_type] = by_type.get(gpu_type, 0.0) + share[entry] / count[m]
        ids = self.snapshot.jobs.columns.ids
        share_of_job: dict[str, Mapping[str, float]] = {}
        for row, m in enumerate(self.classes.class_of):
            if m in share_of_class:
                share_of_job[ids[row]] = share_of_class[m]
        return share_of_job


def waiting_of(
    observed: Observed, requests: GroupRequests, placements: Sequence[Placement]
) -> tuple[Waiting, ...]:
    """Return a reason for each job of the snapshot without a placement, in the jobs' order.

    `placements`: of the next round.
    """
    ids = observed.snapshot.jobs.columns.ids
    placed = {placement.job for placement in placements}
    if len(placed) == len(ids):
        return ()
    reasons = _Reasons(observed, requests, placements)
    waiting = []
    for row, job in enumerate(ids):
        if job in placed:
            continue
        if row in observed.waiting:
            waiting.append(observed.waiting[row])
        else:
            waiting.append(replace(reasons.of_job(row), job=job))
    return tuple(waiting)


@dataclass
class _Reasons:
    """Reasons why jobs wait. Jobs of a group have the same one, which names no job."""

    observed: Observed
    requests: GroupRequests
    placements: Sequence[Placement]
    _by_group: dict[int, Waiting] = field(default_factory=dict)

    @cached_property
    def holders(self) -> Holders:
        """The jobs that hold devices in the next round."""
        return Holders(self.observed.snapshot, self.observed.state, self.placements)

    def of_job(self, row: int) -> Waiting:
        """Return the reason of the group of the job in this row."""
        number = self.observed.classes.group_of[row]
        if number not in self._by_group:
            self._by_group[number] = self._reason(row, self.observed.classes.groups[number])
        return self._by_group[number]

    def _reason(self, row: int, group: JobGroup) -> Waiting:
        """Return the reason: it can run nowhere, power is missing, or others hold the GPUs."""
        types = self._possible_types(row, group)
        if not types:
            return why_impossible(self.observed.snapshot, row)
        shortage = self._shortage_of_power(row, group, types)
        if shortage is not None:
            return for_power(self.observed.snapshot, shortage)
        nodes = self.observed.state.layout.nodes
        usable: NodeSet = 0
        for node in members(self.requests.admitting(row, 1)):
            if nodes[node].gpu_type in types:
                usable |= 1 << node
        return held_by(self.holders, WaitCode.NO_CAPACITY, usable)

    def _possible_types(self, row: int, group: JobGroup) -> frozenset[str]:
        """Return the GPU types on which such a job can run now, or else on empty nodes."""
        # 1. On what is open now.
        classes = self.observed.classes
        rates = classes.rates[classes.group_of[row]]
        types = set()
        for column, rate in zip(classes.problem.columns, rates, strict=True):
            if rate > 0.0:
                types.add(column.gpu_type)
        if types:
            return frozenset(types)

        # 2. On nodes that are large enough if nobody else were there.
        layout = self.observed.state.layout
        nodes = [layout.nodes[node] for node in members(self.requests.admitting(row, 1))]
        large_enough = {node.gpu_type for node in nodes if len(node.devices) >= group.gpus}
        kind = self.observed.snapshot.kinds[self.observed.snapshot.kind_index[group.kind]]
        for throughput in kind.throughputs:
            is_its_size = throughput.gpus == group.gpus and not throughput.spread
            if is_its_size and throughput.steps_per_s > 0.0:
                types.add(throughput.gpu_type)
        return frozenset(types & large_enough)

    def _shortage_of_power(
        self, row: int, group: JobGroup, types: frozenset[str]
    ) -> Shortage | None:
        """Return the power that is missing where there is capacity for the job, if any is."""
        state = self.observed.state
        if state.cap_mw == inf:
            return None
        _, labels, _ = group.constraints
        demand = self.observed.requests.demand(row)
        request = state.layout.request(
            group.gpus, demand, types=tuple(sorted(types)), labels=labels
        )
        shortage = why_not(state, request)
        if shortage is not None and shortage.code is ShortageCode.POWER_CAP:
            return shortage
        return None
