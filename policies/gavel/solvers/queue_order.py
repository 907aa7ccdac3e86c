"""Queues as programs: first in, first out, and the shortest job first (Gavel, section 4.2)."""

from __future__ import annotations

from math import inf

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.division.division import Division, Shares
from policies.gavel.solvers.levels import idle, inverse
from policies.gavel.solvers.program import Method, Program
from policies.gavel.solvers.throughput import best_total


def first_in_first_out(division: Division, place: Ints, *, method: Method | None = None) -> Shares:
    """Shares that maximise sum_m throughput(m, X) / throughput(m, X_fastest) * (M - place_m), which
    is their objective.

    `place` int64[M]: of a class's jobs in the queue, from 0; M is the number of all jobs. Raises
    SolverFailedError.
    """
    return best_total(division, _queue_value(division, place), method)


def shortest_job_first(
    division: Division, steps: Floats, *, method: Method | None = None
) -> Shares:
    """Shares under which the job that can end soonest does, and others follow in that order as in a
    queue.

    `steps` float64[M] left to each job of a class; the objective is the sum of the queue. Jobs that
    can run nowhere come last. Raises SolverFailedError.
    """
    soonest = np.where(division.fastest_rates > 0.0, steps * inverse(division.fastest_rates), inf)
    place = np.empty(len(steps), dtype=np.int64)
    place[np.argsort(soonest, kind="stable")] = np.arange(len(steps))
    program = Program(division)
    if not program.places.size:
        return idle(division)
    first = np.where(place == 0, inverse(division.fastest_rates), 0.0)
    program.maximise(program.places.sums(first))
    program.solve(method or Method.SIMPLEX)
    program.keep_optimum()
    program.maximise(program.places.sums(_queue_value(division, place)))
    return program.shares(program.solve())


def _queue_value(division: Division, place: Ints) -> Floats:
    ahead: Floats = (division.count.sum() - place) * inverse(division.fastest_rates)
    return ahead
