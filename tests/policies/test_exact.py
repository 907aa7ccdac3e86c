"""ANDREAS' exact model: what it calls optimal is the least cost of all solutions there are, counted
one by one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policies.andreas.exact import Exact
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract.plan import PlanStatus
from policies.contract.policy import PolicyError, SolverFailedError
from policies.contract.snapshot import PowerCapStep, PriceInterval, Snapshot
from policies.contract.validation import validate_plan
from policies.cost_model.kernels import NONE, extra_watts
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import Solution
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

MODELS = [
    Exact(objective=o, pricing=p, opening="free")
    for o in ("whole", "first_end")
    for p in ("used", "own")
]
any_model = pytest.mark.parametrize("policy", MODELS, ids=lambda p: f"{p.objective}-{p.pricing}")
patient = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
MOST_COUNTED = 3000


def solutions(problem: Problem) -> Iterator[Solution]:
    """Every solution there is, one by one; refuses problems that have too many."""
    number = {
        (int(c), int(g)): k
        for k, (c, g) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True))
    }
    seats = [
        (n, number[int(problem.node_class[n]), g])
        for n, d in enumerate(problem.devices)
        for g in range(1, len(d) + 1)
    ]
    choices = [
        [(NONE, NONE), *(s for s in seats if problem.feasible[j, s[1]])]
        for j in range(len(problem.rows))
    ]
    assume(np.prod([float(len(c)) for c in choices]) <= MOST_COUNTED)
    for chosen in product(*choices):
        table = np.array(chosen, dtype=np.int64).reshape(len(chosen), 2)
        solution = Solution(table[:, 0].copy(), table[:, 1].copy())
        if _is_possible(problem, solution):
            yield solution


def _is_possible(problem: Problem, solution: Solution) -> bool:
    used, watts = Counter[int](), 0.0
    for j in solution.placed:
        used[int(solution.node[j])] += int(problem.config_gpus[solution.config[j]])
    for n, gpus in used.items():
        if gpus > len(problem.devices[n]):
            return False
        watts += extra_watts(problem.power, problem.node_class[n], problem.busy[n], gpus)
        demand = problem.demand[solution.placed][solution.node[solution.placed] == n].sum(axis=0)
        if np.any(demand > problem.capacity[n] + 1e-9):
            return False
    return watts <= problem.watts + 1e-9


def priced_by_the_hour(snapshot: Snapshot) -> Snapshot:
    steps = tuple(
        PriceInterval(1000.0 + 50.0 * i, 1050.0 + 50.0 * i, price, 1.33)
        for i, price in enumerate((0.3, 0.05, 0.2))
    )
    return replace(snapshot, energy=steps)


def test_a_bound_is_not_raised_by_what_decides_ties() -> None:
    """One job costs millions to postpone; the other waits for nothing, as no node is its own."""
    dear = a_job("a", remaining_steps=1e6, due_s=0.0, tardiness_weight=100.0)
    nowhere = a_job("b", allowed_types=("K80",))
    problem = build(a_snapshot([a_node("n1")], [dear, nowhere]))
    policy = Exact(opening="free")
    solved = policy.solve(problem)
    assert solved.bound <= policy.f.value(problem, solved.solution)


def test_what_is_called_optimal_is_so_though_nodes_and_jobs_are_alike() -> None:
    """With one of its propagators the solver calls a solution optimal that costs 32% more."""
    seats = [a_node(f"n{i}", gpus=gpus) for i, gpus in enumerate((1, 1, 1, 2))]
    done = [a_job(name, remaining_steps=0.0) for name in "ab"]
    problem = build(a_snapshot(seats, [*done, a_job("c", remaining_steps=1.0, gpus_max=2)]))
    policy = Exact(objective="first_end", pricing="own")
    solved = policy.solve(problem)
    assert policy.f.value(problem, solved.solution) == pytest.approx(2.5547689580886836e-05)


@any_model
@patient
@given(snapshot=snapshots(), by_the_hour=st.booleans())
def test_the_optimum_is_the_least_cost_of_all_solutions(
    policy: Exact, snapshot: Snapshot, by_the_hour: bool
) -> None:
    problem = build(priced_by_the_hour(snapshot) if by_the_hour else snapshot)
    least = min(policy.f.value(problem, s) for s in solutions(problem))
    solved = policy.solve(problem)
    assert solved.status is PlanStatus.OPTIMAL
    assert policy.f.value(problem, solved.solution) == pytest.approx(least, rel=1e-6, abs=1e-6)
    assert solved.bound <= least + 1e-6 * max(1.0, abs(least))


@any_model
@patient
@given(snapshot=snapshots())
def test_with_matching_as_many_nodes_are_open_as_can_be_and_at_the_least_cost(
    policy: Exact, snapshot: Snapshot
) -> None:
    policy, problem = replace(policy, opening="matching"), build(snapshot)
    counted = [(len(set(s.node[s.placed])), policy.f.value(problem, s)) for s in solutions(problem)]
    most = max(opened for opened, _ in counted)
    solved = policy.solve(problem)
    assert solved.open_nodes == most
    least = min(value for opened, value in counted if opened == most)
    assert policy.f.value(problem, solved.solution) == pytest.approx(least, rel=1e-6, abs=1e-6)


@patient
@given(snapshot=snapshots(), coded=st.booleans())
def test_no_heuristic_is_below_the_bound(snapshot: Snapshot, coded: bool) -> None:
    policy, problem = Exact(opening="free"), build(snapshot)
    found = RandomizedGreedy(mode="coded" if coded else "paper", iterations=50).solve(problem)
    bound = policy.solve(problem).bound
    assert policy.f.value(problem, found) >= bound - 1e-6 * max(1.0, abs(bound))


def a_crowd(jobs: int = 12) -> Snapshot:
    nodes = [a_node("n1", gpus=4), a_node("n2", gpus=2), a_node("n3", "T4", 2)]
    rows = [
        a_job(
            f"j{i}",
            gpus_max=3,
            remaining_steps=50.0 + 37.0 * (i % 5),
            due_s=1000.0 + 60.0 * i,
            tardiness_weight=0.01 * (1 + i % 3),
        )
        for i in range(jobs)
    ]
    return a_snapshot(nodes, rows)


def test_a_plan_says_that_it_is_optimal_and_which_pricing_judged() -> None:
    plan = Exact()(a_crowd())
    assert (plan.status, plan.bound) == (PlanStatus.OPTIMAL, plan.objective)
    assert (
        plan.message == "energy of whole runs, priced at the node's GPUs in use; 3 of 3 nodes open"
    )
    own = Exact(objective="first_end", pricing="own")(a_crowd())
    assert (
        own.message
        == "energy until each node's first end, priced at each job's own GPUs; 3 of 3 nodes open"
    )


def test_the_pricing_changes_what_is_cheapest() -> None:
    """Two jobs beside each other share the node's idle watts; priced each alone, they do better one
    after the other elsewhere.
    """
    kind = a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.2, ("T4", 1): 0.99})
    snapshot = a_snapshot(
        [a_node("n1", gpus=2), a_node("n2", "T4", 1)], [a_job("a"), a_job("b")], [kind]
    )
    together, apart = (Exact(pricing=p, opening="free")(snapshot) for p in ("used", "own"))
    assert [p.ranks[0].node for p in together.placements] == ["n1", "n1"]
    assert [p.ranks[0].node for p in apart.placements] == ["n2"]


def test_an_unfinished_search_gives_its_bound() -> None:
    plan = Exact(objective="first_end", opening="free", budget=0.1)(a_crowd(40))
    assert plan.status is PlanStatus.FEASIBLE
    assert plan.objective is not None
    assert plan.bound is not None
    assert plan.bound < plan.objective
    assert validate_plan(plan, a_crowd(40)) == ()


def test_a_search_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(SolverFailedError, match=r"CP-SAT ended with UNKNOWN .* raise the budget"):
        Exact(budget=0.001, objective="first_end")(a_crowd(60))


def test_a_cluster_that_is_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(
        PolicyError,
        match=(
            r"12 jobs on 3 nodes have \d+ .* more than most_seats \(10\): choose randomized_greedy"
        ),
    ):
        Exact(most_seats=10)(a_crowd())


def test_the_same_seed_gives_the_same_plan_within_a_budget_of_work() -> None:
    policy = Exact(objective="first_end", opening="free", budget=0.1)
    assert policy(a_crowd(40)) == policy(a_crowd(40))


def test_a_running_job_stays_where_moving_gains_less_than_it_costs() -> None:
    nodes = [a_node(f"n{i}", gpus=2) for i in range(3)]
    jobs = [a_job(f"j{i}", running=on(f"n{i}", "gpu1"), restart_cost_s=30.0) for i in range(3)]
    plan = Exact()(a_snapshot(nodes, jobs))
    assert {p.job: (p.ranks[0].node, p.ranks[0].devices) for p in plan.placements} == {
        f"j{i}": (f"n{i}", ("gpu1",)) for i in range(3)
    }


def test_a_lower_cap_before_the_next_round_holds_already() -> None:
    capped = replace(a_crowd(), power_caps=(PowerCapStep(1200.0, 9000.0, 1100.0),))
    plan = Exact()(capped)
    assert validate_plan(plan, capped) == ()
    assert [v.code for v in validate_plan(Exact()(a_crowd()), capped)] == ["power_cap"]
