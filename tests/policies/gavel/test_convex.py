"""Share policies written with cvxpy: shares like those of our own programs, and clear errors."""

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings

from policies.contract.policy import PolicyError, SolverFailedError, parameter
from policies.contract.validation import validate_plan
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.convex import ConvexPolicy, ShareProblem
from policies.gavel.max_min_fairness import MaxMinFairness
from tests import textbook_shares as textbook
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot
from tests.builders_shares import a_problem, problems

KINDS = [
    a_kind("fast", {("V100", 1): 4.0, ("K80", 1): 1.0}),
    a_kind("even", {("V100", 1): 2.0, ("K80", 1): 2.0}),
]
NODES = [a_node("n1", "V100", 2), a_node("n2", "K80", 1)]


@dataclass(frozen=True, slots=True)
class LeastThroughput(ConvexPolicy):
    """Max-min fairness, and a limit to how much time a job class may have."""

    name: ClassVar[str] = "least_throughput"
    most_time: float = parameter(1.0, meaning="the largest share of time of a job", minimum=0.0)

    def objective(self, problem: ShareProblem) -> cp.Expression:
        return cp.min(cp.multiply(problem.normalised, 1.0 / problem.weight)[problem.runnable])

    def constraints(self, problem: ShareProblem) -> list[cp.Constraint]:
        return [cp.sum(problem.alone, axis=1) <= self.most_time * problem.count]


@dataclass(frozen=True, slots=True)
class NotConcave(ConvexPolicy):
    name: ClassVar[str] = "not_concave"

    def objective(self, problem: ShareProblem) -> cp.Expression:
        return cp.sum_squares(problem.throughput)


def test_a_cvxpy_policy_plans_like_the_products_own_policy_of_the_same_objective() -> None:
    snapshot = a_snapshot(
        nodes=NODES, kinds=KINDS, jobs=[a_job(f"j{i}", KINDS[i % 2].id) for i in range(5)]
    )
    plan, own = LeastThroughput()(snapshot), MaxMinFairness(fill=False)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert len(plan.placements) == 3
    assert plan.objective == pytest.approx(own.objective, rel=1e-6)


def test_constraints_of_the_policy_hold_beside_those_of_the_cluster() -> None:
    snapshot = a_snapshot(nodes=NODES, kinds=KINDS, jobs=[a_job("a", "fast")])
    shares = LeastThroughput(most_time=0.25)(snapshot).shares
    assert sum(shares["a"].values()) == pytest.approx(0.25)


def test_logarithms_are_solved_too() -> None:
    """Two equal jobs, one of twice the weight: it has two thirds of the GPU."""
    problem = ShareProblem(a_problem([[1.0], [1.0]], gpus=[1], weight=[2.0, 1.0]))
    shares = problem.maximise(problem.weight @ cp.log(problem.throughput))
    assert shares.alone.ravel() == pytest.approx([2 / 3, 1 / 3], abs=1e-5)


def test_an_objective_that_is_not_concave_is_refused_with_its_words() -> None:
    snapshot = a_snapshot(nodes=NODES, kinds=KINDS, jobs=[a_job("a", "fast")])
    with pytest.raises(PolicyError, match="not concave"):
        NotConcave()(snapshot)


def test_constraints_that_contradict_each_other_are_a_failure_of_the_solver() -> None:
    problem = ShareProblem(a_problem([[1.0]], gpus=[1]))
    with pytest.raises(SolverFailedError, match="infeasible"):
        problem.maximise(problem.throughput[0], [problem.throughput[0] >= 2.0])


@settings(max_examples=40, deadline=None)
@given(problems())
def test_shares_of_any_problem_stay_within_time_and_gpus(problem: AllocationProblem) -> None:
    program = ShareProblem(problem)
    shares = program.maximise(cp.sum(cp.multiply(program.count, program.throughput)))
    assert textbook.excess(problem, shares) <= 1e-7
    assert shares.throughput(problem) == pytest.approx(
        np.asarray(program.throughput.value), abs=1e-6
    )
