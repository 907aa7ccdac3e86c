"""Gangs among jobs of one GPU: who is one, where gangs sit, and the node that is kept for the first that finds no room."""

from __future__ import annotations

import numpy as np

from policies.kernels.arrays import NONE
from policies.mechanisms.problem import Problem
from policies.mechanisms.staying import remaining_s
from policies.mechanisms.vacancies import Vacancies
from policies.snapshot import Bools, Floats, Ints


class Gangs:
    """The gangs of a problem, seated before its other jobs.

    `singles` int64: jobs that run on one GPU; `ends_s[n]`: when the devices of node n that are taken come free (inf: nobody knows);
    `shut` bool[N]: nodes that jobs of one GPU may not have, for a gang that starts there in `starts_s`.
    """

    def __init__(self, problem: Problem, vacancies: Vacancies, *, shuts_out_singles: bool) -> None:
        self.problem, self.vacancies, self.shuts_out_singles = problem, vacancies, shuts_out_singles
        most = problem.cost.shape[1]
        known = np.where(problem.feasible, problem.config_gpus[None, :], most)
        self.least: Ints = known.min(axis=1, initial=most)
        """int64[E]: the fewest GPUs that each job can run on; more than any node has where it can on none."""
        possible = self.least < most
        self.singles: Ints = np.flatnonzero(possible & (self.least == 1))
        self.gangs: Ints = np.flatnonzero(possible & (self.least > 1))
        self.shut: Bools = np.zeros(len(problem.nodes), dtype=np.bool_)
        self.kept: Bools = self.shut.copy()
        self.starts_s = float("inf")
        self.ends_s = _ends_s(problem)

    def seat(self) -> None:
        """Those that run first, where they run; then the others by arrival, each where it ends soonest."""
        waits = self.problem.home[self.gangs] == NONE
        order = self.gangs[np.lexsort((self.problem.column("arrival_s")[self.gangs], waits))]
        for job in order.tolist():
            if not self._stay(job) and not self._start(job) and not self.kept.any():
                self._keep_node(job)

    def _stay(self, job: int) -> bool:
        home, config = int(self.problem.home[job]), int(self.problem.home_config[job])
        if home == NONE or not self.vacancies.roomy(job, int(self.problem.config_gpus[config]))[home]:
            return False
        self._take(job, home, int(self.problem.config_gpus[config]))
        return True

    def _start(self, job: int) -> bool:
        gpus = int(self.least[job])
        at = np.flatnonzero(self.vacancies.roomy(job, gpus) & ~self.kept)
        if not len(at):
            return False
        stopped = np.maximum(0, gpus - (self.vacancies.free[at] - self._residents()[at]))
        best = np.lexsort((self.vacancies.free[at], stopped, self._times_s(job, at)))[0]
        self._take(job, int(at[best]), gpus)
        return True

    def _take(self, job: int, n: int, gpus: int) -> None:
        self.vacancies.take(job, n, gpus)
        self.ends_s[n] += [float(self._times_s(job, np.array([n]))[0])] * gpus

    def _residents(self) -> Ints:
        """int64[N]: devices of each node on which jobs of one GPU run that may be stopped."""
        homes = self.problem.home[self.singles]
        return np.bincount(homes[homes != NONE], minlength=len(self.problem.nodes)).astype(np.int64)

    def _times_s(self, job: int, nodes: Ints) -> Floats:
        """float64[len(nodes)]: run time on the fewest GPUs, or on those of its home; inf where it cannot run."""
        problem, home = self.problem, int(self.problem.home[job])
        gpus = int(self.least[job])
        config = np.array([self.vacancies.config_at(int(n), gpus) for n in nodes], dtype=np.int64)
        times_s = np.where(config == NONE, np.inf, problem.run_s[job, config] + problem.move_s[job])
        stays_s = problem.run_s[job, problem.home_config[job]] if home != NONE else np.inf
        return np.where(nodes == home, stays_s, times_s)

    def _keep_node(self, job: int) -> None:
        """Keep for the gang the node on which it will end soonest, once the jobs there have ended; not where it lacks but watts or
        resources: there it would keep devices idle for nothing.
        """
        gpus, nodes = int(self.least[job]), np.arange(len(self.problem.nodes))
        starts_s = np.array([self._ready_s(n, gpus) for n in nodes.tolist()])
        ends_s = starts_s + self._times_s(job, nodes)
        if not len(nodes) or not np.isfinite(ends_s).any():
            return
        best = int(np.argmin(ends_s))
        if starts_s[best] <= 0.0:
            return
        self.kept[best] = True
        self.shut = self.kept & self.shuts_out_singles
        self.starts_s = float(starts_s[best])

    def _ready_s(self, n: int, gpus: int) -> float:
        """When node n has so many devices to give; inf if nobody knows."""
        ends_s = sorted([0.0] * int(self.vacancies.free[n]) + self.ends_s[n])
        return ends_s[gpus - 1] if gpus <= len(ends_s) else float("inf")


def _ends_s(problem: Problem) -> list[list[float]]:
    """By node, in how many seconds each device comes free that a job holds which stays."""
    at = {n.id: i for i, n in enumerate(problem.nodes)}
    ends_s: list[list[float]] = [[] for _ in problem.nodes]
    for stay in problem.pinned:
        for seat in stay.run.ranks:
            if seat.node in at:
                ends_s[at[seat.node]] += [remaining_s(problem.snapshot, stay)] * len(seat.devices)
    return ends_s
