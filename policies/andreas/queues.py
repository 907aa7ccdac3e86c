"""Orders of the jobs of a round by a score."""

from __future__ import annotations

import numpy as np

from policies.andreas.problem import Problem
from policies.contract.snapshot import Floats, Ints

SHORTEST_S = 1e-6
UNPLACEABLE_S = 1e12


def by_score(problem: Problem, score: Floats) -> Ints:
    """int64[E]: jobs by score, greatest first, equal ones by arrival."""
    return np.lexsort((problem.column("arrival_s"), -score)).astype(np.int64)


def fastest_s(problem: Problem) -> Floats:
    """float64[E]: least run time with a launch, > 0; very long if it fits nowhere."""
    fastest = np.min(problem.run_s + problem.move_s[:, None], axis=1, initial=np.inf)
    return np.where(np.isfinite(fastest), np.maximum(fastest, SHORTEST_S), UNPLACEABLE_S)


def apparent_tardiness_cost(problem: Problem, look_ahead: float) -> Floats:
    """float64[E]: ATC, w / t * exp(-max(0, d - T_c - t) / (k * mean t)) with t the least run time
    and k = `look_ahead`.
    """
    fastest = fastest_s(problem)
    fits = fastest < UNPLACEABLE_S
    mean = float(fastest[fits].mean()) if fits.any() else 1.0
    slack = np.maximum(problem.slack_s - fastest, 0.0)
    score: Floats = (
        problem.column("tardiness_weight") / fastest * np.exp(-slack / (look_ahead * mean))
    )
    return score
