"""Sums over jobs as programs: total throughput, and queues as weights (Gavel, section 4.2)."""

from math import inf

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.fairness import idle, inverse
from policies.gavel.solvers.program import Method, Program


def total_throughput(problem: AllocationProblem) -> Shares:
    """Maximise sum_m throughput(m, X) / throughput(m, X_fastest). Raises SolverFailedError."""
    return best_total(problem, inverse(problem.fastest_rates))


def best_total(problem: AllocationProblem, value: Floats) -> Shares:
    """Maximise the sum over all jobs of value[m] * throughput(m, X). Raises SolverFailedError."""
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    program.maximise(program.variables.sums(value))
    return program.shares(program.solve(Method.SIMPLEX))


def first_in_first_out(problem: AllocationProblem, position: Ints) -> Shares:
    """Maximise sum_m throughput(m, X) / throughput(m, X_fastest) * (M - position_m).

    `position` int64[M]: of a class's jobs in the queue, from 0; M is the number of all jobs. Raises
    SolverFailedError.
    """
    return best_total(problem, _queue_value(problem, position))


def shortest_job_first(problem: AllocationProblem, steps: Floats) -> Shares:
    """Serve the job that can end soonest, then the others in that order as in a queue.

    `steps` float64[M] left to each job of a class; the objective is the sum of the queue. Jobs that
    can run nowhere come last. Raises SolverFailedError.
    """
    # 1. Positions in the queue.
    can_run = problem.fastest_rates > 0.0
    soonest_s = np.where(can_run, steps * inverse(problem.fastest_rates), inf)
    position = np.empty(len(steps), dtype=np.int64)
    position[np.argsort(soonest_s, kind="stable")] = np.arange(len(steps))

    # 2. The most for the first job; then, with that, the most for the queue.
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    first = np.where(position == 0, inverse(problem.fastest_rates), 0.0)
    program.maximise(program.variables.sums(first))
    program.solve(Method.SIMPLEX)
    program.keep_optimum()
    program.maximise(program.variables.sums(_queue_value(problem, position)))
    return program.shares(program.solve())


def _queue_value(problem: AllocationProblem, position: Ints) -> Floats:
    """float64[M]: worth of a job's throughput, higher the earlier its position in the queue."""
    value: Floats = (problem.count.sum() - position) * inverse(problem.fastest_rates)
    return value
