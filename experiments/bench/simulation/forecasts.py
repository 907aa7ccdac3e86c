"""Forecasts of starts and what happened: `python -m experiments.bench.simulation.forecasts`.

ANDREAS' scenarios with the defaults of live clusters and restarts that take time. In each round a
job that waits is told a start as in a live cluster (`jobs.forecasts.calibration`), from what is
known by then: jobs that are still to come are not. The value is the median error of the wait.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from controlplane.simulation.ahead import run_ahead
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import load
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, show
from experiments.reproduce.andreas.grid import cluster
from jobs.forecasts.calibration import SCORED, Calibration, Interval, Score, StartedJob
from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import Snapshot
from policies.host import registry

GOAL = 0.15


@dataclass(frozen=True, slots=True)
class First:
    """First forecast of a job: when it was made, the start that was planned, and the interval."""

    made_s: float
    planned_s: float
    interval: Interval


@dataclass
class Observer:
    """A policy that notes the first forecast of each job, and when the job starts.

    A policy without a schedule of its own is simulated to the end of the queue.
    """

    policy: Policy
    first: dict[str, First] = field(default_factory=dict)
    started_s: dict[str, float] = field(default_factory=dict)

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan."""
        plan, now_s = self.policy(snapshot), snapshot.now_s
        for placement in plan.placements:
            if placement.job in self.first:
                self.started_s.setdefault(placement.job, now_s)
        if {entry.job for entry in plan.waiting} - self.first.keys():
            calibration = self._calibration()
            for job, start_s in self._planned(snapshot, plan).items():
                planned_s = max(now_s, start_s)
                told = First(now_s, planned_s, calibration.interval(now_s, planned_s))
                self.first.setdefault(job, told)
        return plan

    def score(self) -> Score | None:
        """Score of the jobs that have started."""
        return Score.of(
            [
                StartedJob(self.first[job].made_s, self.first[job].interval, at_s)
                for job, at_s in self.started_s.items()
            ]
        )

    def _planned(self, snapshot: Snapshot, plan: Plan) -> Mapping[str, float]:
        planned = {entry.job: entry.expected.start_s for entry in plan.waiting if entry.expected}
        if planned:
            return planned
        ahead = run_ahead(snapshot, self.policy).jobs
        starts = {entry.job: ahead[entry.job].start_s for entry in plan.waiting}
        return {job: start_s for job, start_s in starts.items() if start_s is not None}

    def _calibration(self) -> Calibration:
        told = [(self.first[job], at_s) for job, at_s in list(self.started_s.items())[-SCORED:]]
        return Calibration(
            [first.planned_s - first.made_s for first, _ in told],
            [at_s - first.made_s for first, at_s in told],
        )


def run(policy: str, scenario: int, tuning: float, seed: int, jobs: int) -> Score | None:
    """Score the forecasts of one simulation on ten nodes."""
    observer = Observer(registry.make(policy))
    simulate(
        replace(cluster(scenario, 10), value_of_time=0.01, min_run_factor=10.0),
        load(
            {"type": "andreas", "nodes": 10, "scenario": scenario, "jobs": jobs, "tuning": tuning},
            seed,
        ),
        observer,
        name=policy,
        seed=seed,
        switches=Switches(restart_cost_s=30.0),
    )
    return observer.score()


def figures(
    policies: Sequence[str], tunings: Sequence[float], seeds: int, jobs: int
) -> Iterator[Figure]:
    """A figure for each policy, scenario, load and seed in which a job has waited."""
    for policy, scenario, tuning in product(policies, (1, 2), tunings):
        for seed in range(1, seeds + 1):
            score = run(policy, scenario, tuning, seed, jobs)
            if score is not None:
                name = f"error of starts, {policy}, scenario {scenario}, tuning {tuning:g}"
                facts = {"inside": round(score.inside, 3), "drift": round(score.drift, 3)}
                yield figure(name, score.error, GOAL, "", seed=seed, waited=score.jobs, **facts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.simulation.forecasts")
    parser.add_argument("--policies", nargs="+", default=["cost_search", "fifo", "edf"])
    parser.add_argument("--tunings", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=200)
    given = parser.parse_args(arguments)
    show(figures(given.policies, given.tunings, given.seeds, given.jobs))


if __name__ == "__main__":
    main()
