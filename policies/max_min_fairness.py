"""Max-min fairness over unlike GPUs (Gavel's least attained service, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from policies.base import SolverFailedError
from policies.parameters import parameter
from policies.plan import Plan
from policies.shares.classing import Asked
from policies.shares.division import Division, Shares
from policies.shares.observe import Observed
from policies.shares.policy import Sharing, plan_of
from policies.snapshot import Floats, Ints, Snapshot


@dataclass(frozen=True, slots=True)
class MaxMinFairness:
    """Time on unlike GPUs shared so that the worst-off job makes as much progress as can be (Gavel's LAS).

    Every job gets shares of time by GPU type that maximise the least weighted throughput, measured against equal time on all GPUs;
    the round mechanism turns them into turns.
    """

    form: str = parameter(
        "aware",
        meaning="aware: by each job's speed on each type; agnostic: as if types were alike; sharing: aware, two may share a GPU",
        choices=("aware", "agnostic", "sharing"),
    )
    weighted: bool = parameter(True, meaning="shares in proportion to the jobs' weights; else all weigh the same")
    spread: bool = parameter(False, meaning="gangs may have time on several nodes where their speed there is known")
    recompute_s: float = parameter(
        0.0,
        meaning="shares are made anew when they are as old, 0: only when jobs, nodes or speeds have changed",
        minimum=0.0,
        maximum=1e9,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Who has a turn in this round; the objective is the least weighted throughput over that with equal time on all GPUs."""
        asked = Asked(spread=self.spread, pairs=self.form == "sharing")
        return plan_of(snapshot, Sharing("max_min_fairness", repr(self), self._allocate, asked, self.recompute_s))

    def _allocate(self, observed: Observed) -> Shares:
        division = observed.division
        if self.form == "agnostic":
            division = replace(division, rates=np.where(division.rates > 0.0, 1.0, 0.0))
        if not self.weighted:
            division = replace(division, weight=np.ones_like(division.weight))
        return max_min(division)


def max_min(division: Division) -> Shares:
    """max min_m (1 / w_m) throughput(m, X) / throughput(m, X_equal) s_m over the feasible X, as one linear program.

    SolverFailedError if it has no optimum.
    """
    program = _Program(division)
    size = program.time.shape[1]
    bounds = np.stack([np.zeros(size + 1), np.append(program.most, np.inf)], axis=1)
    least = hstack([-program.progress, csr_array(np.ones((len(division.count), 1)))])
    limits = hstack([vstack([program.time, program.gpus]), csr_array((program.time.shape[0] + program.gpus.shape[0], 1))])
    ceiling = np.concatenate([np.zeros(len(division.count)), division.count, division.gpus])
    goal = np.append(np.zeros(size), -1.0)
    found = linprog(goal, A_ub=vstack([least, limits]), b_ub=ceiling, bounds=bounds, method="highs")
    if found.status != 0 or found.x is None:
        raise SolverFailedError(f"max-min fairness: {found.message}")
    return program.shares(np.maximum(found.x[:-1], 0.0), float(found.x[-1]))


class _Program:
    """Variables X[r, c], rows first (classes, then pairs); matrices of the constraints over them."""

    def __init__(self, division: Division) -> None:
        self.division = division
        self.classes, self.columns = division.rates.shape
        self.pairs = len(division.pairs)
        self.row, self.column = (of.ravel() for of in np.indices((self.classes + self.pairs, self.columns)))

    @cached_property
    def members(self) -> tuple[Ints, Ints, Floats]:
        """(class, variable, steps/s) of every class that a variable is time of; a pair's is of both its classes."""
        d, alone = self.division, self.classes * self.columns
        variable = np.arange(self.pairs * self.columns) + alone
        sides = [(np.repeat(d.pairs[:, i], self.columns), variable, d.pair_rates[:, :, i].ravel()) for i in (0, 1)]
        parts = [(self.row[:alone], np.arange(alone), d.rates.ravel()), *sides]
        of, at, rate = (np.concatenate(values) for values in zip(*parts, strict=True))
        return of, at, rate

    @property
    def progress(self) -> csr_array:
        """[M, variables]: throughput of a job over that with equal time on every GPU, times s_m / w_m."""
        d, (of, at, rate) = self.division, self.members
        unit = np.where(d.equal_rates > 0.0, d.equal_rates, d.fastest_rates) * d.weight * d.count / d.scale
        return self._matrix(rate / unit[of], of, at, self.classes)

    @property
    def time(self) -> csr_array:
        """[M, variables]: time of each class, at most that of all its jobs; a pair of a class with itself takes twice."""
        of, at, _ = self.members
        return self._matrix(np.ones(len(of)), of, at, self.classes)

    @property
    def gpus(self) -> csr_array:
        """[T, variables]: GPUs of each type, at most N_j."""
        d = self.division
        scale = np.concatenate([d.scale, d.scale[d.pairs[:, 0]]])[self.row].astype(np.float64)
        return self._matrix(scale, d.column_type[self.column], np.arange(len(self.row)), len(d.types))

    @property
    def most(self) -> Floats:
        """float64[variables]: the upper bounds; 0 where a row cannot run."""
        _, at, rate = self.members
        runs = np.bincount(at, rate > 0.0, len(self.row)) > 0.0
        return np.where(runs, np.inf, 0.0)

    def shares(self, found: Floats, objective: float) -> Shares:
        """The solution by class and by pair."""
        table = found.reshape(-1, self.columns)
        return Shares(table[: self.classes], table[self.classes :], objective)

    def _matrix(self, values: Floats, rows: Ints, variables: Ints, height: int) -> csr_array:
        return coo_array((values, (rows, variables)), shape=(height, len(self.row))).tocsr()
