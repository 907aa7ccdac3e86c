"""The search over rollouts: what a schedule costs, that it is feasible, that searching never makes
it worse, what it decides.
"""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from policies.contract import plan_json
from policies.contract.plan import Expected, Plan, WaitCode
from policies.contract.snapshot import JobColumns, Jobs, PriceInterval, Snapshot
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem, build
from policies.search.cost_search import CostSearch, starting_now
from policies.search.kernels.local_search import Found, search
from policies.search.kernels.rollout import (
    RolloutData,
    empty_schedule,
    keep_running,
    list_schedule,
)
from policies.search.rollout import orders, rents, rollout_data
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

KINDS = [a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.4, ("T4", 1): 0.4})]
NODES = [a_node("v", "V100", 2), a_node("t", "T4", 1)]
FORESIGHT = {"hysteresis": 0.02, "haste": 0.5, "risk": 1.0}

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def where(plan: Plan) -> dict[str, tuple[str, int]]:
    """Node and number of GPUs of each placed job."""
    return {p.job: (p.ranks[0].node, p.gpus) for p in plan.placements}


def found(
    problem: Problem,
    moves: int = 30,
    seed: int = 1,
    work: int = 10**6,
    foresight: dict[str, float] | None = None,
) -> tuple[RolloutData, Found]:
    data, _ = rollout_data(problem, **(foresight or {}))
    return data, search(data, orders(problem), rents(problem), moves, work, seed)


def a_queue(seed: int, **fields: Any) -> Snapshot:
    """Two nodes of a kind and nine jobs, some urgent, two running."""
    rng = np.random.default_rng(seed)
    rows = [
        a_job(
            f"j{i}",
            "k",
            remaining_steps=float(rng.integers(50, 3000)),
            gpus_max=2,
            due_s=1000.0 + float(rng.integers(100, 6000)),
            tardiness_weight=float(rng.uniform(1e-4, 1e-3)),
            running=on("v", "gpu1") if i == 0 else on("t", "gpu0") if i == 1 else (),
        )
        for i in range(9)
    ]
    return replace(
        a_snapshot([*NODES, a_node("v2", "V100", 2), a_node("t2", "T4", 1)], rows, KINDS),
        seed=seed,
        **fields,
    )


@relaxed
@given(snapshot=snapshots())
def test_the_result_costs_no_more_than_the_best_start_and_that_no_more_than_the_first(
    snapshot: Snapshot,
) -> None:
    problem = build(snapshot)
    if len(problem.rows) and problem.nodes:
        _, result = found(problem, seed=snapshot.seed % 1000 + 1, foresight=FORESIGHT)
        assert result.cost <= result.start_cost <= result.first_cost


@pytest.mark.parametrize("seed", range(5))
def test_more_moves_never_cost_more(seed: int) -> None:
    problem = build(a_queue(seed))
    costs = [found(problem, moves=moves, seed=seed + 1)[1].cost for moves in (0, 10, 100, 400)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_more_work_never_costs_more_and_none_leaves_the_best_start(seed: int) -> None:
    problem = build(a_queue(seed))
    results = [
        found(problem, moves=400, work=work, seed=seed + 1)[1] for work in (0, 100, 1000, 20_000)
    ]
    costs = [r.cost for r in results]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(results[0].start_cost, rel=1e-12)


def test_running_jobs_that_stay_cost_the_search_no_work() -> None:
    """A full cluster on which nothing waits: work for one placement suffices to try every job's
    leaving.
    """
    jobs = [
        a_job(
            f"j{n}",
            "k",
            remaining_steps=900.0,
            due_s=900.0,
            tardiness_weight=0.001,
            running=on(n, "gpu0"),
        )
        for n in "ab"
    ]
    problem = build(a_snapshot([a_node("a", "V100", 1), a_node("b", "V100", 1)], jobs, KINDS))
    data, _ = rollout_data(problem)
    empty = empty_schedule(data)
    kept = keep_running(data, empty, schedule := deepcopy(empty), np.ones(2, np.int64))
    assert schedule.node.tolist() == data.current_node.tolist()
    assert list_schedule(data, schedule, np.arange(2), np.full(2, NONE), 0.0) == 0.0
    assert kept == pytest.approx(found(problem)[1].cost)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "energy",
    [
        a_snapshot().energy,
        (PriceInterval(0.0, 2000.0, 0.3, 1.3), PriceInterval(2000.0, inf, 0.1, 1.3)),
    ],
)
def test_a_schedule_costs_what_its_nodes_draw_and_its_jobs_are_late(
    seed: int, energy: tuple[PriceInterval, ...]
) -> None:
    problem = build(a_queue(seed, energy=energy))
    data, result = found(problem)
    assert result.cost == pytest.approx(_account(problem, data, result), rel=1e-9)


def _account(problem: Problem, data: RolloutData, result: Found) -> float:
    """Node by node, piece by piece between the starts and ends there."""
    ends = result.start_s + data.time_s[np.arange(len(result.node)), result.config]
    cost = float((data.weight * np.maximum(ends - data.slack_s, 0.0)).sum())
    for n in range(len(data.opened_s)):
        here = result.node == n
        times = np.unique(np.concatenate([result.start_s[here], ends[here]]))
        for from_s, to_s in pairwise(times):
            at_work = here & (result.start_s <= from_s) & (ends >= to_s)
            gpus = int(data.config_gpus[result.config[at_work]].sum())
            c = int(np.searchsorted(data.first, n, side="right")) - 1
            if gpus:
                seconds = problem.prices.priced_s(np.array([from_s, to_s]))
                cost += float(problem.cost[c, gpus] * (seconds[1] - seconds[0]))
    return cost


@relaxed
@given(snapshot=snapshots())
def test_no_schedule_uses_more_gpus_of_a_node_than_it_has(snapshot: Snapshot) -> None:
    problem = build(snapshot)
    if not len(problem.rows) or not problem.nodes:
        return
    data, result = found(problem, foresight=FORESIGHT)
    has = np.isfinite(data.release_s).sum(axis=1)
    placed = np.flatnonzero(result.node != NONE)
    ends = result.start_s[placed] + data.time_s[placed, result.config[placed]]
    for at_s in result.start_s[placed]:
        during = placed[(result.start_s[placed] <= at_s) & (ends > at_s)]
        used = np.bincount(result.node[during], data.config_gpus[result.config[during]], len(has))
        assert np.all(used <= has)


@relaxed
@given(snapshot=snapshots())
def test_every_job_that_fits_somewhere_has_its_place_in_the_schedule(snapshot: Snapshot) -> None:
    problem = build(snapshot)
    if len(problem.rows) and problem.nodes:
        data, result = found(problem)
        assert np.array_equal(result.node != NONE, np.any(np.isfinite(data.time_s), axis=1))


def test_only_what_starts_at_once_is_decided() -> None:
    place, start_s = (np.array([0, 1, NONE]), np.array([2, 0, NONE])), np.array([0.0, 5.0, inf])
    solution = starting_now(np.array([1, 0]), Found(*place, start_s, 0.0, 0.0, 0.0))
    assert (solution.node.tolist(), solution.config.tolist()) == ([1, NONE, NONE], [2, NONE, NONE])


def busy_v100(due_s: float, busy_s: float = 300.0, **fields: Any) -> Snapshot:
    """A V100 that is free in `busy_s`, an idle T4 on which energy costs three times as much, and a
    job that has until `due_s`.
    """
    running = a_job(
        "runs",
        "k",
        remaining_steps=busy_s,
        due_s=1100.0 + busy_s,
        tardiness_weight=0.01,
        running=on("v", "gpu0"),
    )
    waiting = a_job(
        "waits", "k", remaining_steps=1000.0, due_s=due_s, **{"tardiness_weight": 0.01, **fields}
    )
    return a_snapshot([a_node("v", "V100", 1), a_node("t", "T4", 1)], [running, waiting], KINDS)


def test_a_job_with_time_to_spare_waits_for_the_cheap_gpu_although_another_is_idle() -> None:
    plan = CostSearch()(busy_v100(due_s=10_000.0))
    assert where(plan) == {"runs": ("v", 1)}
    assert [(w.job, w.code) for w in plan.waiting] == [("waits", WaitCode.POSTPONED)]


def with_jobs(snapshot: Snapshot, **fields: Any) -> Snapshot:
    rows = [replace(job, **fields) for job in snapshot.jobs]
    return replace(snapshot, jobs=Jobs(JobColumns.of(rows)))


def test_gpus_of_a_launch_that_stays_are_expected_when_it_ends() -> None:
    snapshot = with_jobs(busy_v100(due_s=10_000.0), min_run_s=1e6)
    assert where(CostSearch()(snapshot)) == {"runs": ("v", 1)}


def test_a_job_does_not_wait_for_a_cheap_gpu_where_waiting_costs_more() -> None:
    both = {"runs": ("v", 1), "waits": ("t", 1)}
    assert where(CostSearch()(with_jobs(busy_v100(due_s=10_000.0), waiting_cost=1.0))) == both
    assert len(where(CostSearch()(with_jobs(busy_v100(due_s=10_000.0), waiting_cost=1e-9)))) == 1


def test_what_a_move_costs_does_not_shrink_with_the_work_that_is_left() -> None:
    late = a_queue(1)
    for total_steps, factor in ((3000.0, 3.0), (1000.0, 1.0), (0.0, 1.0)):
        rows = [replace(j, remaining_steps=1000.0, total_steps=total_steps) for j in late.jobs]
        problem = build(replace(late, jobs=Jobs(JobColumns.of(rows))))
        moving = rollout_data(problem, hysteresis=0.1, move_cost=0.2)[0].moving
        expected = (0.1 + 0.2 * factor) * problem.cheapest
        assert moving[problem.running] == pytest.approx(expected[problem.running])


def test_a_planned_wait_that_others_may_make_too_long_is_not_risked() -> None:
    snapshot = busy_v100(due_s=3500.0)
    assert where(CostSearch(risk=0.0)(snapshot)) == {"runs": ("v", 1)}
    assert where(CostSearch(risk=10.0)(snapshot)) == {"runs": ("v", 1), "waits": ("t", 1)}


def test_a_job_without_due_date_waits_for_a_cheap_gpu_only_for_a_while() -> None:
    snapshot = busy_v100(due_s=inf, busy_s=3000.0, tardiness_weight=0.0)
    assert where(CostSearch(haste=0.0)(snapshot)) == {"runs": ("v", 1)}
    assert where(CostSearch(haste=50.0)(snapshot)) == {"runs": ("v", 1), "waits": ("t", 1)}


def test_when_all_are_late_short_jobs_go_first() -> None:
    late = {"due_s": 900.0, "tardiness_weight": 0.001}
    jobs = [
        a_job(f"j{i}", "k", remaining_steps=steps, **late)
        for i, steps in enumerate([3000.0, 2000.0, 100.0])
    ]
    assert where(CostSearch()(a_snapshot([a_node("v", "V100", 1)], jobs, KINDS))) == {
        "j2": ("v", 1)
    }


def test_when_many_wait_jobs_take_one_gpu_each_although_two_are_faster() -> None:
    late = {"due_s": 900.0, "tardiness_weight": 0.001, "gpus_max": 2}
    jobs = [a_job(f"j{i}", "k", remaining_steps=1000.0, **late) for i in range(6)]
    assert [
        g
        for _, g in where(CostSearch()(a_snapshot([a_node("v", "V100", 2)], jobs, KINDS))).values()
    ] == [1, 1]


def test_a_running_job_does_not_move_for_less_than_the_hysteresis() -> None:
    jobs = [
        a_job(
            "a",
            "k",
            remaining_steps=1000.0,
            running=on("t", "gpu0"),
            due_s=1e6,
            tardiness_weight=0.001,
        )
    ]
    snapshot = a_snapshot(NODES, jobs, KINDS)
    assert where(CostSearch(hysteresis=0.02)(snapshot)) == {"a": ("v", 1)}
    assert (
        where(
            CostSearch(hysteresis=1.0)(replace(snapshot, nodes=(a_node("v3", "V100", 2), NODES[0])))
        )
        != {}
    )
    steady = a_snapshot(
        [NODES[0], a_node("v2", "V100", 2)],
        [replace(jobs[0], running=on("v2", "gpu0"), gpus_max=1)],
        KINDS,
    )
    assert where(CostSearch()(steady)) == {"a": ("v2", 1)}


@pytest.mark.parametrize("seed", range(4))
def test_the_same_snapshot_and_seed_give_the_same_plan(seed: int) -> None:
    snapshot = a_queue(seed)
    assert plan_json.digest(CostSearch()(snapshot)) == plan_json.digest(CostSearch()(snapshot))


def test_a_job_launched_at_this_very_moment_is_not_stopped() -> None:
    """Where stops take no time, rounds of one moment that undid each other's launches would never
    end.
    """
    now = on("v", "gpu0", since_s=1000.0)
    jobs = [
        a_job("long", "k", remaining_steps=9000.0, running=now, due_s=900.0, tardiness_weight=0.001)
    ]
    jobs.append(a_job("short", "k", remaining_steps=10.0, due_s=900.0, tardiness_weight=0.001))
    assert where(CostSearch()(a_snapshot([a_node("v", "V100", 1)], jobs, KINDS))) == {
        "long": ("v", 1)
    }
    before = [replace(jobs[0], running=on("v", "gpu0", since_s=999.0)), jobs[1]]
    assert where(CostSearch()(a_snapshot([a_node("v", "V100", 1)], before, KINDS))) == {
        "short": ("v", 1)
    }


def test_a_waiting_job_is_told_its_start_its_end_and_its_place_in_the_best_schedule() -> None:
    jobs = [
        a_job("a", due_s=1100.0, tardiness_weight=1.0),
        a_job("b", arrival_s=1.0, due_s=1300.0, tardiness_weight=1.0),
        a_job("c", arrival_s=2.0, due_s=9000.0, tardiness_weight=1.0),
    ]
    plan = CostSearch()(a_snapshot([a_node("n1", gpus=1)], jobs))
    assert {w.job: w.expected for w in plan.waiting} == {
        "b": Expected(1100.0, 1200.0, ("n1",), 1),
        "c": Expected(1200.0, 1300.0, ("n1",), 1),
    }


@relaxed
@given(snapshots())
def test_no_start_is_expected_before_now_nor_an_end_before_its_start(snapshot: Snapshot) -> None:
    for waiting in CostSearch()(snapshot).waiting:
        if (expected := waiting.expected) is not None:
            assert expected.start_s >= snapshot.now_s
            assert expected.end_s is None or expected.end_s >= expected.start_s
