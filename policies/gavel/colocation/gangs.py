"""Gangs among jobs of one GPU: who is one, how many GPUs they have together, where they sit, and
the node kept for the first that finds no room.
"""

from __future__ import annotations

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.problem import Problem
from policies.contract.snapshot import Bools, Floats, Ints
from policies.gavel.colocation.vacancies import Vacancies
from policies.placement.from_snapshot import remaining_s
from policies.placement.speed import Speeds


class Gangs:
    """The gangs of a problem, seated before its other jobs on their part of the GPUs: what they are
    of all that is wanted.

    `singles` int64: jobs that run on one GPU; `ends_s[n]`: when the devices of node n that are
    taken come free (inf: nobody knows); `shut` bool[N]: nodes that jobs of one GPU may not have,
    for a gang that starts there in `starts_s`.
    """

    def __init__(self, problem: Problem, vacancies: Vacancies, *, shuts_out_singles: bool) -> None:
        self.problem, self.vacancies, self.shuts_out_singles = problem, vacancies, shuts_out_singles
        most = problem.cost.shape[1]
        known = np.where(problem.feasible, problem.config_gpus[None, :], most)
        self.least: Ints = known.min(axis=1, initial=most)
        """int64[E]: the fewest GPUs that each job can run on; more than any node has where it can
        on none.
        """
        possible = self.least < most
        self.singles: Ints = np.flatnonzero(possible & (self.least == 1))
        self.gangs: Ints = np.flatnonzero(possible & (self.least > 1))
        self.shut: Bools = np.zeros(len(problem.nodes), dtype=np.bool_)
        self.starts_s = float("inf")
        self.ends_s = _ends_s(problem)
        self.ready_s = [
            sorted([0.0] * int(free) + ends)
            for free, ends in zip(vacancies.free, self.ends_s, strict=True)
        ]
        """By node, in how many seconds each device is there for the next gang: as `ends_s`, with
        what gangs that wait will have.
        """
        self.order = self._order()
        held = [sum(len(seat.devices) for seat in stay.run.ranks) for stay in problem.pinned]
        self.in_use = sum(gpus for gpus in held if gpus > 1)
        wanted = int(self.least[self.gangs].sum()) + self.in_use
        all_wanted = wanted + len(self.singles) + held.count(1)
        self.part = -(-(int(vacancies.free.sum()) + sum(held)) * wanted // max(all_wanted, 1))
        """GPUs that gangs have together at most, unless none has any."""

    def seat(self) -> None:
        """Those that run first, where they run; then the others by arrival, each where it ends
        soonest, now or later.

        The first that would take more than their part ends this: were it overtaken, it might wait
        for ever.
        """
        while self.order and not (
            self.in_use and self._is_new(self.order[0]) and self._exceeds(self.order[0])
        ):
            self._next()

    def fill(self) -> None:
        """Let the rest have what nobody else has taken, up to the first that finds no room, which
        would wait for ever likewise.
        """
        while self.order and self._next():
            pass

    def _order(self) -> list[int]:
        waits = self.problem.home[self.gangs] == NONE
        order: list[int] = self.gangs[
            np.lexsort((self.problem.column("arrival_s")[self.gangs], waits))
        ].tolist()
        return order

    def _is_new(self, job: int) -> bool:
        return bool(self.problem.home[job] == NONE)

    def _exceeds(self, job: int) -> bool:
        return self.in_use + int(self.least[job]) > self.part

    def _next(self) -> bool:
        job = self.order.pop(0)
        return self._stay(job) or self._plan(job)

    def _stay(self, job: int) -> bool:
        home, config = int(self.problem.home[job]), int(self.problem.home_config[job])
        if (
            home == NONE
            or not self.vacancies.roomy(job, int(self.problem.config_gpus[config]))[home]
        ):
            return False
        self._take(job, home, int(self.problem.config_gpus[config]))
        return True

    def _plan(self, job: int) -> bool:
        """Start the gang where it ends soonest, or have it wait for that node; not where it lacks
        but watts or resources: there it would keep devices idle for nothing. Whether it starts.
        """
        gpus = int(self.least[job])
        starts_s = np.array(
            [ready[gpus - 1] if gpus <= len(ready) else np.inf for ready in self.ready_s]
        )
        possible = (starts_s > 0.0) | self.vacancies.roomy(job, gpus)
        ends_s = np.where(possible, starts_s + self._times_s(job), np.inf)
        stopped = np.maximum(0, gpus - (self.vacancies.free - self._residents()))
        best = int(np.lexsort((self.vacancies.free, stopped, ends_s))[0])
        starts = bool(np.isfinite(ends_s[best]) and starts_s[best] <= 0.0)
        if starts:
            self._take(job, best, gpus)
        elif np.isfinite(ends_s[best]):
            self._wait(best, gpus, float(starts_s[best]), float(ends_s[best]))
        return starts

    def _wait(self, n: int, gpus: int, start_s: float, end_s: float) -> None:
        """The next gangs find the devices taken until this one ends; for the first that waits
        singles may be shut out.
        """
        self.ready_s[n] = sorted([*self.ready_s[n][gpus:], *([end_s] * gpus)])
        if self.starts_s == float("inf"):
            self.starts_s = start_s
            self.shut[n] = self.shuts_out_singles

    def _take(self, job: int, n: int, gpus: int) -> None:
        self.vacancies.take(job, n, gpus)
        self.in_use += gpus
        ends_s = [float(self._times_s(job)[n])] * gpus
        self.ends_s[n] += ends_s
        self.ready_s[n] = sorted([*self.ready_s[n][gpus:], *ends_s])

    def _residents(self) -> Ints:
        """int64[N]: devices of each node on which jobs of one GPU run that may be stopped."""
        homes = self.problem.home[self.singles]
        return np.bincount(homes[homes != NONE], minlength=len(self.problem.nodes)).astype(np.int64)

    def _times_s(self, job: int) -> Floats:
        """float64[N]: run time on the fewest GPUs, or on those of its home; inf where it cannot
        run.
        """
        problem, home, gpus = self.problem, int(self.problem.home[job]), int(self.least[job])
        config = np.array(
            [self.vacancies.config_at(n, gpus) for n in range(len(problem.nodes))], dtype=np.int64
        )
        times_s = np.where(config == NONE, np.inf, problem.run_s[job, config] + problem.move_s[job])
        if home != NONE:
            times_s[home] = problem.run_s[job, problem.home_config[job]]
        return times_s


def _ends_s(problem: Problem) -> list[list[float]]:
    """By node, in how many seconds each device comes free that a job holds which stays."""
    at = {n.id: i for i, n in enumerate(problem.nodes)}
    ends_s: list[list[float]] = [[] for _ in problem.nodes]
    speeds = Speeds(problem.snapshot.kinds)
    for stay in problem.pinned:
        for seat in stay.run.ranks:
            if seat.node in at:
                ends_s[at[seat.node]] += [remaining_s(problem.snapshot, speeds, stay)] * len(
                    seat.devices
                )
    return ends_s
