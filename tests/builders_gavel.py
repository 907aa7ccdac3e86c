"""Builders of the small clusters of Gavel's exact cases, and of simulations of share policies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    Floats,
    GpuTypeView,
    JobColumns,
    Jobs,
    JobView,
    KindView,
    Snapshot,
    TeamOrder,
    TeamView,
)
from policies.gavel.allocation.observe import observe
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.solvers.fairness import inverse
from policies.gavel.solvers.finish_time import isolated_rates
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot

ROUND_S = 360.0
LONG = 1e9
FASTER = {("V100", 1): 2.0, ("P100", 1): 1.0, ("K80", 1): 0.5}
SLOWER = {("V100", 1): 3.0, ("P100", 1): 2.0, ("K80", 1): 1.0}
"""T0 and T1 of spec/gavel.md."""


def cluster(v100: int, p100: int, k80: int) -> tuple[Any, ...]:
    return (a_node("v", "V100", v100), a_node("p", "P100", p100), a_node("k", "K80", k80))


def two_jobs(*gpus: int) -> Snapshot:
    return a_snapshot(
        cluster(*gpus),
        [a_job("j0", "a"), a_job("j1", "b")],
        [a_kind("a", FASTER), a_kind("b", SLOWER)],
    )


def simulated(
    nodes: Any, kinds: list[KindView], jobs: list[JobView], policy: Policy, **scenario: Any
) -> Simulation:
    return Simulation(Scenario(nodes, tuple(kinds), round_s=ROUND_S, **scenario), jobs, policy)


def steps_of(job: str, steps: float, kind: str = "k", **fields: Any) -> JobView:
    """A job of so many steps that has not begun."""
    return a_job(job, kind, remaining_steps=steps, total_steps=steps, **fields)


PRICES = (
    GpuTypeView("V100", 15.7, 32.0, 3.1),
    GpuTypeView("P100", 9.3, 16.0, 2.0),
    GpuTypeView("K80", 4.1, 12.0, 0.8),
)
"""What an hour costs, as in the exact case of spec/gavel.md."""

TEAMS = (TeamView("red", 3.0), TeamView("blue", 1.0, TeamOrder.FIFO))


def with_teams_and_prices(
    snapshot: Snapshot, weights: Sequence[float] = (1.0,), prices: Sequence[GpuTypeView] = PRICES
) -> Snapshot:
    """The same with jobs that are red, blue and of no team by turns, of these weights by turns, and
    with prices.
    """
    names = ("red", "blue", "")
    jobs = [
        replace(job, team=names[i % 3], weight=weights[i % len(weights)])
        for i, job in enumerate(snapshot.jobs)
    ]
    return replace(snapshot, jobs=Jobs(JobColumns.of(jobs)), teams=TEAMS, gpu_types=tuple(prices))


class Held:
    """Shares of a plan held against what is known of the jobs: each job is a class of `problem`.
    Objectives are to be high.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot, self.plan = snapshot, plan
        self.observed = observe(snapshot, GroupingOptions(jobs=True, teams=True))
        self.problem = self.observed.problem
        self.steps = np.maximum(self.observed.number("remaining_steps"), 1.0)

    @cached_property
    def time(self) -> Floats:
        """float64[M, T]: the part of the time that each job has on each type."""
        rows = [
            [self.plan.shares.get(job, {}).get(t, 0.0) for t in self.problem.types]
            for job in self.observed.classes.keys
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.problem.types))

    @cached_property
    def throughput(self) -> Floats:
        """float64[M]: steps/s."""
        throughput: Floats = (self.time * self.problem.type_rates).sum(axis=1)
        return throughput

    @cached_property
    def relative(self) -> Floats:
        """float64[M]: to the fastest."""
        return self.throughput * inverse(self.problem.fastest_rates)

    def least_level(self, weight: Floats) -> float:
        """Max-min fairness by these weights."""
        return float(
            (
                self.problem.scale / weight * self.throughput * inverse(self.problem.equal_rates)
            ).min()
        )

    def by_jobs(self) -> float:
        """Max-min fairness of jobs."""
        return self.least_level(self.problem.weight)

    def by_teams(self) -> float:
        """The first level of fairness among teams, by weights inside each."""
        weights = {team.name: team.weight for team in self.snapshot.teams}
        of_team = np.array([weights.get(name, 1.0) for name in self.observed.classes.entities])
        total = np.bincount(
            self.problem.entity, weights=self.problem.weight, minlength=len(of_team)
        )
        return self.least_level((of_team / total)[self.problem.entity] * self.problem.weight)

    def rho(self) -> float:
        """The highest rho of jobs for which shares are made the first time, below 0."""
        isolated = isolated_rates(self.problem)
        elapsed_s = self.snapshot.now_s - self.observed.number("arrival_s")
        done_s = np.maximum(self.observed.number("total_steps") - self.steps, 0.0) / isolated
        with np.errstate(divide="ignore"):
            return -float(
                (
                    (elapsed_s + self.steps / self.throughput) / (done_s + self.steps / isolated)
                ).max()
            )

    def makespan(self) -> float:
        """Until all have ended, below 0."""
        with np.errstate(divide="ignore"):
            return -float((self.steps / self.throughput).max())

    def queue(self) -> float:
        """What the queue by arrival is worth."""
        arrival = self.observed.number("arrival_s")
        place = np.argsort(np.argsort(arrival, kind="stable"), kind="stable")
        return float((self.relative * (len(place) - place)).sum())

    def shortest(self) -> float:
        """What the job has that could end first."""
        return float(self.relative[np.argmin(self.steps * inverse(self.problem.fastest_rates))])

    def total(self) -> float:
        """The sum of throughputs."""
        return float(self.relative.sum())

    def per_price(self) -> float:
        """Progress per price of the GPUs in use."""
        price = {of.name: of.price_per_hour for of in self.snapshot.gpu_types}
        spent = float(
            (self.problem.scale @ self.time)
            @ np.array([price[name] for name in self.problem.types])
        )
        return float(self.relative.sum()) / spent if spent > 0.0 else 0.0


OBJECTIVES: Mapping[str, Callable[[Held], float]] = {
    "max_min_fairness": Held.by_jobs,
    "finish_time_fairness": Held.rho,
    "makespan": Held.makespan,
    "fifo_shares": Held.queue,
    "shortest_first": Held.shortest,
    "max_throughput": Held.total,
    "min_cost": Held.per_price,
    "hierarchical": Held.by_teams,
}
"""What each share policy maximises, by what its plan says each job has."""
