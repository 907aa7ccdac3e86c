"""ANDREAS' Randomized Greedy: its costs, its objective, its decisions, and its kernel compiled or
not.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.andreas.objective import Objective
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract import plan_json
from policies.contract.plan import Plan, WaitCode
from policies.contract.policy import PolicyParameterError
from policies.contract.snapshot import JobView, Snapshot
from policies.cost_model.problem import build
from policies.cost_model.solution import Solution
from policies.host.registry import make
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

EPOCH_S = {
    "LSTM-big": (43.0842, 30.5512, 110.7112),
    "LSTM-small": (43.0261, 30.5871, 110.6581),
    "EfficientNet": (51.6221, 41.2372, 88.9881),
    "ConvNet": (20.5382, 17.8042, 41.2582),
}
"""Seconds per epoch on one V100, two V100, one T4 (measured by the authors on ARMIDA)."""

KINDS = [
    a_kind(k, {("V100", 1): 1 / a, ("V100", 2): 1 / b, ("T4", 1): 1 / c})
    for k, (a, b, c) in EPOCH_S.items()
]
ARMIDA = [
    a_node("armida-05", "V100", 1),
    a_node("armida-06", "V100", 2),
    a_node("armida-07", "T4", 1),
]

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def where(plan: Plan) -> Mapping[str, tuple[str, int]]:
    """Node and number of GPUs of each placed job."""
    return {p.job: (p.ranks[0].node, p.gpus) for p in plan.placements}


@pytest.mark.parametrize(("gpu_type", "gpus", "per_hour"), [("V100", 2, 0.1598), ("T4", 1, 0.0913)])
def test_a_node_costs_what_the_authors_published(gpu_type: str, gpus: int, per_hour: float) -> None:
    problem = build(a_snapshot([a_node("n1", gpu_type, gpus)]))
    published = problem.cost[0, gpus] * 3600.0 * 0.17168313 / 0.172
    assert published == pytest.approx(per_hour, abs=0.0005)
    assert problem.cost[0, gpus] * 3600.0 == pytest.approx({2: 0.16013, 1: 0.0915}[gpus], abs=5e-5)


def test_without_any_price_energy_is_free_and_due_dates_still_count() -> None:
    snapshot = a_snapshot(
        [a_node("n1", gpus=1)],
        [a_job("a"), a_job("b", due_s=1100.0, tardiness_weight=1.0)],
        energy=(),
    )
    assert build(snapshot).cost.max() == 0.0
    assert where(RandomizedGreedy()(snapshot)) == {"b": ("n1", 1)}


def test_the_cheapest_configuration_that_meets_the_due_date_is_taken() -> None:
    jobs = [
        a_job("a", "LSTM-big", remaining_steps=10.0, gpus_max=2, due_s=1e6, tardiness_weight=1.0)
    ]
    assert where(RandomizedGreedy(iterations=0)(a_snapshot(ARMIDA, jobs, KINDS))) == {
        "a": ("armida-06", 2)
    }
    jobs = [
        a_job("a", "ConvNet", remaining_steps=10.0, gpus_max=2, due_s=1e6, tardiness_weight=1.0)
    ]
    assert where(RandomizedGreedy(iterations=0)(a_snapshot(ARMIDA, jobs, KINDS)))["a"] == (
        "armida-05",
        1,
    )


def test_the_fastest_configuration_is_taken_when_none_meets_the_due_date() -> None:
    jobs = [
        a_job("a", "ConvNet", remaining_steps=10.0, gpus_max=2, due_s=1001.0, tardiness_weight=1.0)
    ]
    assert where(RandomizedGreedy()(a_snapshot(ARMIDA, jobs, KINDS))) == {"a": ("armida-06", 2)}


def table_v_at_j2s_submission() -> Snapshot:
    """Table V at 7200 s: J7, J8 and J1 run, J2 is submitted; due dates are relative to
    submissions.
    """
    submitted = {
        "J7": ("LSTM-big", 3600, 17600, 3, 107.5),
        "J8": ("LSTM-small", 4800, 7600, 3, 81.5),
    }
    submitted |= {
        "J1": ("LSTM-big", 6000, 5600, 5, 31.9),
        "J2": ("LSTM-small", 7200, 12600, 2, 60.0),
    }
    places = {
        "J7": on("armida-07", "gpu0"),
        "J8": on("armida-06", "gpu0", "gpu1"),
        "J1": on("armida-05", "gpu0"),
        "J2": (),
    }
    jobs = [
        a_job(
            j,
            kind,
            arrival_s=float(s),
            due_s=float(s + d),
            tardiness_weight=float(w),
            remaining_steps=left,
            gpus_max=2,
            running=places[j],
        )
        for j, (kind, s, d, w, left) in submitted.items()
    ]
    return a_snapshot(ARMIDA, jobs, KINDS, now_s=7200.0)


def test_j7_is_postponed_while_j2_runs_when_j2_is_submitted() -> None:
    plan = RandomizedGreedy(mode="coded")(table_v_at_j2s_submission())
    assert sorted(where(plan)) == ["J1", "J2", "J8"]
    (waiting,) = plan.waiting
    assert (waiting.job, waiting.code) == ("J7", WaitCode.POSTPONED)


def shared(*jobs: JobView) -> Mapping[str, tuple[str, int]]:
    """Where mode coded puts these on a node with one V100, one with two, and one with a T4, without
    drawing lots.
    """
    return where(RandomizedGreedy(mode="coded", iterations=0)(a_snapshot(ARMIDA, jobs, KINDS)))


def cheap(job: str, **fields: Any) -> JobView:
    """A job that is cheapest on one V100, of whatever node, and has time."""
    return a_job(job, "ConvNet", remaining_steps=10.0, due_s=1e6, tardiness_weight=1.0, **fields)


def test_as_coded_a_closed_node_with_the_most_gpus_is_opened_and_then_shared() -> None:
    assert shared(cheap("a")) == {"a": ("armida-06", 1)}
    assert shared(cheap("a"), cheap("b")) == {"a": ("armida-06", 1), "b": ("armida-06", 1)}
    assert shared(cheap("a"), cheap("b"), cheap("c"))["c"] == ("armida-05", 1)


def test_as_coded_a_running_job_stays_where_it_is_though_another_node_of_its_type_would_do() -> (
    None
):
    assert shared(cheap("a", running=on("armida-05", "gpu0"))) == {"a": ("armida-05", 1)}
    assert shared(cheap("a", running=on("armida-06", "gpu1"))) == {"a": ("armida-06", 1)}


def test_as_coded_nodes_of_one_type_whose_power_differs_are_not_alike() -> None:
    thrifty = a_node("thrifty", "V100", 1, power_w=(10.0, 20.0))
    plan = RandomizedGreedy(mode="coded", iterations=0)(
        a_snapshot([*ARMIDA, thrifty], [cheap("a")], KINDS)
    )
    assert where(plan) == {"a": ("thrifty", 1)}


def test_a_job_without_due_date_keeps_running_beside_one_that_has_time() -> None:
    jobs = [
        a_job("a", gpus_max=2, due_s=1e5, tardiness_weight=1.0),
        a_job("b", running=on("n1", "gpu0")),
    ]
    assert where(RandomizedGreedy()(a_snapshot([a_node("n1", gpus=2)], jobs))) == {
        "a": ("n1", 1),
        "b": ("n1", 1),
    }


def test_a_running_job_stays_where_it_is_when_moving_gains_nothing() -> None:
    nodes = [a_node(f"n{i}", gpus=2) for i in range(4)]
    jobs = [a_job(f"j{i}", running=on(f"n{i}", "gpu1"), restart_cost_s=30.0) for i in range(4)]
    plan = RandomizedGreedy()(a_snapshot(nodes, jobs))
    assert {p.job: (p.ranks[0].node, p.ranks[0].devices) for p in plan.placements} == {
        f"j{i}": (f"n{i}", ("gpu1",)) for i in range(4)
    }


def test_a_running_job_moves_to_meet_its_due_date() -> None:
    kinds = [a_kind("k", {("T4", 1): 0.1, ("V100", 1): 1.0})]
    jobs = [
        a_job(
            "a", running=on("n2", "gpu0"), due_s=1500.0, tardiness_weight=1.0, restart_cost_s=30.0
        )
    ]
    plan = RandomizedGreedy()(
        a_snapshot([a_node("n1", "V100", 1), a_node("n2", "T4", 1)], jobs, kinds)
    )
    assert [(p.ranks[0].node, p.predicted_run_s) for p in plan.placements] == [("n1", 130.0)]


def test_an_urgent_job_takes_the_place_of_one_that_can_wait() -> None:
    jobs = [
        a_job("a", running=on("n1", "gpu0"), due_s=1e6, tardiness_weight=1.0),
        a_job("b", due_s=1100.0, tardiness_weight=1.0),
    ]
    plan = RandomizedGreedy()(a_snapshot([a_node("n1", gpus=1)], jobs))
    assert where(plan) == {"b": ("n1", 1)}
    assert [(w.job, w.code, w.jobs) for w in plan.waiting] == [("a", WaitCode.POSTPONED, ("b",))]


VARIANTS = (
    RandomizedGreedy(),
    RandomizedGreedy(objective="first_end", hysteresis=0.0),
    RandomizedGreedy(mode="coded"),
)
every_variant = pytest.mark.parametrize("policy", VARIANTS, ids=["whole", "first_end", "coded"])


@every_variant
@relaxed
@given(snapshot=snapshots())
def test_the_randomised_runs_never_do_worse_than_the_deterministic_one(
    policy: RandomizedGreedy, snapshot: Snapshot
) -> None:
    problem = build(snapshot, charged=policy.mode == "paper")
    alone = replace(policy, iterations=0)
    assert (
        policy.f.value(problem, policy.solve(problem))
        <= alone.f.value(problem, alone.solve(problem)) * (1 + 1e-9) + 1e-9
    )


@relaxed
@given(snapshot=snapshots(), rho=st.sampled_from([0.0, 1.0, 1e9]))
def test_unbounded_due_dates_and_capacities_never_make_a_number_that_is_none(
    snapshot: Snapshot, rho: float
) -> None:
    plan = RandomizedGreedy(rho=rho, iterations=20)(snapshot)
    assert plan.objective is not None
    assert isfinite(plan.objective)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, -5])
def test_any_seed_makes_a_decision_that_repeats(seed: int) -> None:
    snapshot = a_snapshot(
        jobs=[a_job(f"j{i}", due_s=1100.0 + i, tardiness_weight=1.0) for i in range(9)], seed=seed
    )
    assert RandomizedGreedy()(snapshot) == RandomizedGreedy()(snapshot)


def test_the_objective_of_nothing_is_nothing() -> None:
    problem = build(a_snapshot())
    assert Objective(rho=100.0).value(problem, Solution.empty(problem)) == 0.0


def test_a_hysteresis_beyond_one_is_refused() -> None:
    with pytest.raises(PolicyParameterError, match="hysteresis: must be <= 1"):
        make("randomized_greedy", {"hysteresis": 1.5})


UNCOMPILED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from experiments.bench.clusters import a_cluster
from policies.contract import plan_json
from policies.andreas.randomized_greedy import RandomizedGreedy
from dataclasses import replace
import numba
assert numba.config.DISABLE_JIT
for mode in ("paper", "coded"):
    for cap in (None, 4000.0):
        snapshot = replace(a_cluster(6, 60, seed=3), power_cap_w=cap)
        print(plan_json.digest(RandomizedGreedy(mode=mode, iterations=40, polish=25)(snapshot)))
"""


def test_the_kernel_decides_alike_compiled_and_uncompiled() -> None:
    from experiments.bench.clusters import a_cluster

    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", UNCOMPILED, root],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = []
    for mode in ("paper", "coded"):
        for cap in (None, 4000.0):
            snapshot = replace(a_cluster(6, 60, seed=3), power_cap_w=cap)
            expected.append(
                plan_json.digest(RandomizedGreedy(mode=mode, iterations=40, polish=25)(snapshot))
            )
    assert ran.stdout.split() == expected


def carried_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The next round's snapshot when this plan was carried out and no step was done meanwhile:
    other seed, same queue.
    """
    places = {p.job: p.ranks[0] for p in plan.placements}
    jobs = [
        replace(j, running=on(places[j.id].node, *places[j.id].devices) if j.id in places else ())
        for j in snapshot.jobs
    ]
    moved = a_snapshot(
        [replace(n, devices=tuple(replace(d, held=()) for d in n.devices)) for n in snapshot.nodes],
        jobs,
        KINDS,
    )
    return replace(moved, seed=snapshot.seed + 1)


@pytest.mark.parametrize("iterations", [0, 1000])
def test_a_job_that_was_just_launched_stays_as_pressing_as_it_was(iterations: int) -> None:
    """Else it gives way to a waiting one of its kind, that one to it in the next round, and so on
    as fast as jobs stop.
    """
    shared = {
        "remaining_steps": 20.0,
        "due_s": -500.0,
        "tardiness_weight": 0.0003,
        "restart_cost_s": 30.0,
        "total_steps": 40.0,
    }
    nodes = [a_node("n1", "V100", 4)]
    late = [a_job(f"j{i}", "LSTM-big", arrival_s=float(i), **shared) for i in range(12)]
    snapshot = a_snapshot(nodes, late, KINDS)
    policy = RandomizedGreedy(iterations=iterations)
    first = policy(snapshot)
    assert where(policy(carried_out(snapshot, first))) == where(first)


@pytest.mark.parametrize("seed", range(8))
def test_an_overloaded_cluster_whose_jobs_are_all_late_soon_stops_pre_empting(seed: int) -> None:
    """A job that was just launched must not give way to the one it was preferred to: the rounds
    would never end.
    """
    kinds = list(EPOCH_S)
    shared = {"tardiness_weight": 0.0003, "restart_cost_s": 30.0, "gpus_max": 2}
    late = [
        a_job(f"j{i}", kinds[(i + seed) % 4], remaining_steps=20.0 + i, due_s=-500.0 * i, **shared)
        for i in range(12)
    ]
    snapshot = replace(a_snapshot(ARMIDA, late, KINDS), seed=seed)
    policy = RandomizedGreedy()
    decided = []
    for _ in range(6):
        plan = policy(snapshot)
        decided.append(where(plan))
        snapshot = carried_out(snapshot, plan)
    assert decided[-1] == decided[-2] == decided[-3]


@pytest.mark.parametrize("mode", ["paper", "coded", "default"])
def test_without_prices_jobs_are_placed_all_the_same(mode: str) -> None:
    """Warnings are errors here: a job that can never run on a type takes infinite time, which costs
    nothing there.
    """
    kind = a_kind("k", {("V100", 1): 0.1})
    plan = RandomizedGreedy(mode=mode)(
        a_snapshot(kinds=[kind], jobs=[a_job("j1"), a_job("j2")], energy=())
    )
    assert {p.job for p in plan.placements} == {"j1", "j2"}
