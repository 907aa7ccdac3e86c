"""ANDREAS' objective f: as the kernel computes it, written down plainly, and at the optimum."""

from collections.abc import Iterator
from itertools import product
from math import inf

import numpy as np
import pytest

from policies.andreas.kernels.greedy import search
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import Solution
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.policies.test_randomized_greedy import every_variant


def random_problem(seed: int, *, charged: bool, jobs: int = 3) -> Problem:
    """Three nodes, a few jobs, some late, some running: small enough to try everything."""
    rng = np.random.default_rng(seed)
    nodes = [a_node("n1", "V100", 2), a_node("n2", "T4", 1), a_node("n3", "V100", 1)]
    kinds = [a_kind(f"k{i}", _rates(rng), setup_s=3.0) for i in range(2)]
    homes = [on("n1", "gpu1"), on("n2", "gpu0"), on("n1", "gpu0")]
    rows = [
        a_job(
            f"j{i}",
            f"k{rng.integers(2)}",
            remaining_steps=float(rng.integers(1, 500)),
            gpus_max=int(rng.integers(1, 3)),
            due_s=float(rng.choice([inf, 900.0, 1100.0, 1500.0])),
            tardiness_weight=float(rng.choice([0.0, 0.01, 1.0])),
            restart_cost_s=20.0,
            running=homes[i % 3] if i < 3 and rng.integers(2) else (),
        )
        for i in range(jobs)
    ]
    return build(a_snapshot(nodes, rows, kinds, seed=seed), charged=charged)


def _rates(rng: np.random.Generator) -> dict[tuple[str, int], float]:
    one = float(rng.uniform(0.5, 2.0))
    return {
        ("V100", 1): one,
        ("V100", 2): one * float(rng.uniform(1.1, 2.0)),
        ("T4", 1): one * float(rng.uniform(0.2, 0.9)),
    }


def every_solution(problem: Problem) -> Iterator[Solution]:
    """All feasible assignments of jobs to (node, configuration)."""
    of_class = {
        (int(problem.node_class[n]), int(g)): k
        for k, (c, g) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True))
        for n in range(len(problem.nodes))
        if problem.node_class[n] == c
    }
    seats = [
        (n, k)
        for n in range(len(problem.nodes))
        for (c, _), k in of_class.items()
        if c == problem.node_class[n]
    ]
    options = [
        [(NONE, NONE), *((n, k) for n, k in seats if problem.feasible[e, k])]
        for e in range(len(problem.rows))
    ]
    for chosen in product(*options):
        used = np.zeros(len(problem.nodes), dtype=np.int64)
        for n, k in chosen:
            if n != NONE:
                used[n] += problem.config_gpus[k]
        if all(used[n] <= len(d) for n, d in enumerate(problem.devices)):
            yield Solution(np.array([n for n, _ in chosen]), np.array([k for _, k in chosen]))


def plain_f(problem: Problem, solution: Solution, policy: RandomizedGreedy) -> float:
    """f written down once more, job by job, from the snapshot alone."""
    snapshot = problem.snapshot
    step = snapshot.energy_at(snapshot.now_s)
    assert step is not None
    per_watt_s = step.price_per_kwh * step.pue / 1000 / 3600
    whole = policy.mode == "paper" and policy.objective == "whole"
    sticky = policy.hysteresis if policy.mode == "paper" else 0.0
    total = 0.0
    on_node: dict[int, list[tuple[int, float]]] = {}
    for e, row in enumerate(problem.rows):
        job = snapshot.jobs[int(row)]
        kind = next(k for k in snapshot.kinds if k.id == job.kind)
        launch = max(
            kind.setup_s,
            job.restart_cost_s if job.running or job.remaining_steps < job.total_steps else 0.0,
        )
        launch = launch if policy.mode == "paper" else 0.0
        runs = {}
        for node in snapshot.nodes:
            for known in kind.throughputs:
                if known.gpu_type == node.gpu_type and job.gpus_min <= known.gpus <= min(
                    job.gpus_max, len(node.devices)
                ):
                    runs[node.id, known.gpus] = job.remaining_steps / known.steps_per_s
        cheap = min(
            (launch + t) * snapshot.node_by_id[n].power_w[g] * per_watt_s
            for (n, g), t in runs.items()
        )
        at = (job.running[0].ranks[0].node, 1) if job.running else None
        if solution.node[e] == NONE:
            late = snapshot.now_s + snapshot.round_s + max(runs.values()) + launch - job.due_s
            total += (
                policy.rho * job.tardiness_weight * max(0.0, late)
                + (cheap if whole else 0.0)
                + (sticky * cheap if at else 0.0)
            )
            continue
        seat = (problem.nodes[solution.node[e]].id, int(problem.config_gpus[solution.config[e]]))
        run_s = runs[seat] + (0.0 if seat == at else launch)
        total += job.tardiness_weight * max(0.0, snapshot.now_s + run_s - job.due_s) + (
            sticky * cheap if at and seat != at else 0.0
        )
        on_node.setdefault(int(solution.node[e]), []).append((seat[1], run_s))
    for n, jobs_there in on_node.items():
        used = sum(g for g, _ in jobs_there)
        cost = problem.nodes[n].power_w[used] * per_watt_s
        total += cost * (
            sum(g * t for g, t in jobs_there) / used if whole else min(t for _, t in jobs_there)
        )
    return total


@every_variant
@pytest.mark.parametrize("seed", range(12))
def test_f_of_the_kernel_is_f_written_down_plainly_and_never_below_the_optimum(
    policy: RandomizedGreedy, seed: int
) -> None:
    problem = random_problem(seed, charged=policy.mode == "paper")
    node, config, best, _ = search(**policy.search_arguments(problem))
    found = Solution(node, config)
    value = best + float(policy.f.postponing(problem).sum())
    assert value == pytest.approx(plain_f(problem, found, policy), rel=1e-9, abs=1e-9)
    assert policy.f.value(problem, found) == pytest.approx(value, rel=1e-9, abs=1e-9)
    optimum = min(plain_f(problem, s, policy) for s in every_solution(problem))
    assert value >= optimum - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_greedy_finds_the_optimum_of_tiny_instances_that_leave_nobody_out(seed: int) -> None:
    policy = RandomizedGreedy()
    problem = random_problem(seed, charged=True, jobs=2)
    optimum = min(plain_f(problem, s, policy) for s in every_solution(problem))
    assert policy.f.value(problem, policy.solve(problem)) <= optimum * 1.2 + 1e-9
