"""Search over simulated schedules of the whole queue for the least total cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.naming import plan_of
from policies.andreas.problem import Problem, build
from policies.andreas.queues import apparent_tardiness_cost, by_score, fastest_s
from policies.andreas.solution import Solution
from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.search.kernels.local_search import Start, search
from policies.search.outlook import Foresight, decided, outlook

LOOK_AHEAD = (8.0, 2.0, 0.5)
"""k of the ATC orders to start from."""

RENTS = (0.0, 0.25, 1.0)
"""Rents to start from, as parts of what a second's delay of all jobs costs per GPU."""


@dataclass(frozen=True, slots=True)
class CostSearch:
    """Least energy and tardiness cost by a search over roll-outs of the whole queue.

    Every candidate is rolled out: all jobs, in some order, are scheduled forward on the GPUs'
    release times, each where and when it costs least, and the energy and tardiness of all of them
    are counted. Starts are several orders (pressure, due date, ATC, weight over run time), with and
    without the running jobs staying, at several rents for GPUs; a local search then moves jobs in
    the order, sets configurations, and lets running jobs go. What the best schedule starts at once
    is the decision: a job may be left waiting although GPUs are idle, where they would cost more
    than waiting does.
    """

    moves: int = parameter(
        200, meaning="steps of the local search at most", minimum=0, maximum=1_000_000
    )
    work: int = parameter(
        20_000,
        meaning=(
            "bound of the local search's work: steps x jobs (without running ones that stay) x"
            " nodes"
        ),
        minimum=0,
        maximum=10**9,
    )
    risk: float = parameter(
        2.0,
        meaning=(
            "by how much a planned wait may grow, as a fraction of it, because of jobs that are"
            " still to come"
        ),
        minimum=0.0,
        maximum=100.0,
    )
    hysteresis: float = parameter(
        0.1,
        meaning="what moving or stopping a running job must save, as a fraction of its energy",
        minimum=0.0,
        maximum=1.0,
    )
    haste: float = parameter(
        0.5,
        meaning=(
            "what a second of waiting costs a job without due date or tardiness weight, as a part"
            " of its energy cost a second"
        ),
        minimum=0.0,
        maximum=100.0,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The best schedule's first step; the objective is the whole schedule's cost."""
        problem = build(snapshot)
        solution, cost = self.solve(problem)
        return plan_of(problem, solution, "cost_search", cost)

    def solve(self, problem: Problem) -> tuple[Solution, float]:
        """What the best schedule found starts now, and what the schedule costs."""
        jobs = len(problem.rows)
        if not jobs or not problem.nodes:
            return (
                Solution(np.full(jobs, NONE, dtype=np.int64), np.full(jobs, NONE, dtype=np.int64)),
                0.0,
            )
        data, nodes = outlook(problem, Foresight(self.hysteresis, self.haste, self.risk))
        start = Start(orders(problem), rents(problem))
        found = search(data, start, self.moves, self.work, _seed(problem.snapshot.seed))
        return decided(nodes, found.node, found.config, found.start_s), found.cost


def orders(problem: Problem) -> Ints:
    """int64[S, E]: initial orders by ATC, weight over time, pressure, due date, arrival."""
    scores = [apparent_tardiness_cost(problem, k) for k in LOOK_AHEAD]
    scores += [
        problem.column("tardiness_weight") / fastest_s(problem),
        fastest_s(problem) - problem.slack_s,
        -problem.slack_s,
    ]
    return np.stack([by_score(problem, s) for s in scores])


def rents(problem: Problem) -> Floats:
    """float64[R], rents to start from, per second of a GPU of the fastest class."""
    gpus = sum(len(d) for d in problem.devices)
    return np.array(RENTS) * float(problem.column("tardiness_weight").sum()) / max(gpus, 1)


def _seed(seed: int) -> int:
    """A non-zero 32-bit state from any seed, by Knuth's multiplicative hash."""
    return ((seed % 2**32) * 2654435761 + 0x9E3779B9) % 2**32 or 1
