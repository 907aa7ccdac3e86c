"""What every share policy does in a round: shares when something has changed, turns at the end of a
term, else only what is free.

Two steps (Gavel, sections 3 and 5): an allocation of time, made anew when jobs, nodes or
throughputs have changed (or a period has passed), and a mechanism that gives out turns. Turns last
a round: in a round that an event asks for before they end, whoever runs goes on, and what is free
is given out. No placement has a term of its own: whoever goes on is kept as it is, without a word
to its node or a checkpoint, and whoever loses its turn is pre-empted by the plan of the round at
its end. (With a term as long as the turn every job would be stopped at its end unless it were
prolonged in time; a round that fails could not.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from policies.contract.plan import Plan, PlanStatus
from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.job_classes import PLAIN, GroupingOptions, JobClasses
from policies.gavel.allocation.observe import Observed, observe
from policies.gavel.allocation.problem import Shares
from policies.gavel.service_account import Kept, Levels, ServiceAccount, from_memory, opened
from policies.placement.homes import Home, homes_of
from policies.placement.naming_turns import placements_of
from policies.placement.rounds import Queues, attained_s, length_s, turns, under_way
from policies.placement.seating import Seating
from policies.placement.turnless import Reasons

EARLY = 0.1
"""Part of a round. One held in the last tenth of a turn counts as its end: periodic rounds are
never held on the second. A turn that would go on for longer than a round was given out by another
clock, or when rounds were longer, and is over.
"""

Allocate: TypeAlias = Callable[[Observed], Shares]
"""How time is shared. Raises SolverFailedError where no shares can be had; then the round keeps
what runs.
"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """A share policy: its name, and with its parameters (`memory_of`: whose memory is its own),
    what it tells apart, how it shares.

    Shares are made anew when the problem has changed, or what counts `beside` it, and, where
    `recompute_s` is above 0, when they are as old. With `fills`, GPUs that the shares leave idle go
    to whoever can use them.
    """

    name: str
    memory_of: str
    allocate: Allocate
    asked: GroupingOptions = PLAIN
    recompute_s: float = 0.0
    beside: str = ""
    fills: bool = True


def plan_of(snapshot: Snapshot, sharing: Sharing) -> Plan:
    """The plan of a share policy for this snapshot. Raises SolverFailedError where shares are
    wanted and cannot be had.
    """
    return _Round(snapshot, sharing).plan()


class _Round:
    def __init__(self, snapshot: Snapshot, sharing: Sharing) -> None:
        self.snapshot, self.sharing = snapshot, sharing
        self.observed = observe(snapshot, sharing.asked)
        self.homes = homes_of(self.observed)
        self.round_s = length_s(snapshot.round_s)
        before = from_memory(
            snapshot.memory,
            sharing.memory_of,
            self.observed.classes,
            snapshot.standing.get("account"),
        )
        self.turns_go_on = (
            before is not None
            and EARLY < (before.round_end_s - snapshot.now_s) / self.round_s < 1.0 + EARLY
        )
        self.account = self._ledger(before)

    def plan(self) -> Plan:
        """Seat those who go on, then those whose turn it is, then whoever can use what is left."""
        seating = Seating(self.observed, self.homes)
        queues = Queues(self.observed, self.account, self.homes)
        seating.fix(self._fixed())
        fills = self.sharing.fills
        due = turns(
            self.observed,
            self.account,
            queues,
            seating.floor.left(),
            seating.seated,
            lagging_only=not fills,
        )
        seating.seat(due, may_evict=not self.turns_go_on)
        if fills:
            seating.fill(queues, self._by_need)
        placements = placements_of(self.observed, self.homes, seating.seated)
        waiting = Reasons(self.observed, seating.floor, placements, self.account.round_end_s).all()
        return Plan(
            self.sharing.name, PlanStatus.HEURISTIC, placements, waiting,
            objective=self.account.objective, shares=self._shares(), memory=self._memory(),
        )  # fmt: skip

    def _memory(self) -> dict[str, Any]:
        """What is kept for the next round."""
        memory = self.account.to_memory()
        self.snapshot.standing["account"] = Kept(
            memory["entries"], self.observed.classes, self.account
        )
        return memory

    def _ledger(self, before: ServiceAccount | None) -> ServiceAccount:
        """The account as it is now, with new shares where they are wanted, for the round that now
        begins or goes on.
        """
        now_s = self.snapshot.now_s
        if before is not None:
            before = before.after(now_s, under_way(self.observed, self.homes), self._level(before))
        account = (
            before if before is not None and not self._is_outdated(before) else self._opened(before)
        )
        return account if self.turns_go_on else account.going_on(round_end_s=now_s + self.round_s)

    def _is_outdated(self, before: ServiceAccount) -> bool:
        wanted_s = self.sharing.recompute_s
        return (
            before.problem != self._divided or 0.0 < wanted_s <= self.snapshot.now_s - before.made_s
        )

    @property
    def _divided(self) -> str:
        """What shares depend on, in few characters."""
        return self.observed.classes.fingerprint + self.sharing.beside

    def _opened(self, before: ServiceAccount | None) -> ServiceAccount:
        classes, problem = self.observed.classes, self.observed.problem
        alone, paired = (
            np.zeros((rows, len(problem.columns)))
            for rows in (len(classes.keys), len(problem.pairs))
        )
        shares = (
            self.sharing.allocate(self.observed) if classes.keys else Shares(alone, paired, 0.0)
        )
        if (shares.alone.shape, shares.paired.shape) != (
            alone.shape,
            paired.shape,
        ) or not _is_finite(shares):
            raise SolverFailedError(
                f"{self.sharing.name}: the shares are not a finite number for each class and column"
            )
        return opened(
            self.sharing.memory_of,
            self._divided,
            classes,
            shares,
            self.snapshot.now_s,
            self.round_s,
            before,
        )

    def _level(self, before: ServiceAccount) -> Levels:
        """Who has come in since starts level with those of its class who have received least; who
        has left is forgotten.
        """
        ids, known = self.snapshot.jobs.columns.ids, self.snapshot.jobs.position
        arrived = (
            self.snapshot.jobs.columns.numbers["arrival_s"][self.observed.rows] > before.seen_s
        )
        newcomers = (
            np.flatnonzero(arrived & (self.observed.classes.of >= 0)).tolist()
            if arrived.any()
            else []
        )
        if not newcomers and before.level.keys() <= known.keys():
            return before.level
        kept = {job: by_type for job, by_type in before.level.items() if job in known}
        for e in newcomers:
            mates = [
                attained_s(self.observed, before.level, m) for m in self._mates(e) if not arrived[m]
            ]
            had = {
                t: min([of_mate.get(t, 0.0) for of_mate in mates], default=0.0)
                for t in self.observed.allocatable.types
            }
            if any(had.values()):
                kept[ids[self.observed.row_list[e]]] = {
                    t: seconds for t, seconds in had.items() if seconds > 0.0
                }
        return kept

    def _mates(self, e: int) -> list[int]:
        classes = self.observed.classes
        return classes.members[classes.class_list[e]]

    def _fixed(self) -> list[Home]:
        """Who goes on whoever has a turn: while turns last everybody, at their end who was launched
        only now.
        """
        return [
            h
            for h in self.homes.values()
            if self.turns_go_on or h.run.since_s >= self.snapshot.now_s
        ]

    def _by_need(self) -> list[int]:
        """Classes by the time that they are lag on any column, those without shares last."""
        classes, lag = len(self.observed.classes.keys), self.account.lag_s(self.snapshot.now_s)
        need = np.full(classes, -np.inf)
        alone = self.account.row < classes
        np.maximum.at(need, self.account.row[alone], lag[alone])
        for side in (0, 1):
            np.maximum.at(
                need,
                self.observed.problem.pairs[self.account.row[~alone] - classes, side],
                lag[~alone],
            )
        order: list[int] = np.argsort(-need, kind="stable").tolist()
        return order

    def _shares(self) -> dict[str, dict[str, float]]:
        """By job and GPU type the part of the time that it is to have, alone or beside others;
        mostly that of the round before.
        """
        classes, share, jobs = (
            self.observed.classes,
            self.account.share,
            (self.snapshot.jobs.columns.ids, self.observed.row_list),
        )
        kept: _KeptShares | None = self.snapshot.standing.get("shares")
        if (
            kept is not None
            and kept.classes is classes
            and kept.share is share
            and kept.jobs == jobs
        ):
            return dict(kept.by_job)  # a plan's own
        ids, of_class = jobs[0], self._shares_by_class
        by_job = {
            ids[row]: of_class[m]
            for row, m in zip(jobs[1], classes.class_list, strict=True)
            if m in of_class
        }
        self.snapshot.standing["shares"] = _KeptShares(classes, share, jobs, by_job)
        return dict(by_job)

    @cached_property
    def _shares_by_class(self) -> dict[int, dict[str, float]]:
        classes, problem, account = (
            len(self.observed.classes.keys),
            self.observed.problem,
            self.account,
        )
        count, pairs, columns = problem.count.tolist(), problem.pairs.tolist(), problem.columns
        total: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for row, column, share in zip(
            account.row.tolist(), account.column.tolist(), account.share.tolist(), strict=True
        ):
            for m in (row,) if row < classes else pairs[row - classes]:
                total[m][columns[column].gpu_type] += share / count[m]
        return {m: dict(by_type) for m, by_type in total.items()}


@dataclass(frozen=True, slots=True)
class _KeptShares:
    """Shares `by_job` as they follow from the account's `share` of classes, and from which `jobs`
    are in them (ids, rows).
    """

    classes: JobClasses
    share: Floats
    jobs: tuple[tuple[str, ...], list[int]]
    by_job: dict[str, dict[str, float]]


def _is_finite(shares: Shares) -> bool:
    return bool(np.isfinite(shares.alone).all() and np.isfinite(shares.paired).all()) and isfinite(
        shares.objective
    )
