"""Backfilling by area: small jobs first, a limit on waiting, and no job that starves."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.batch.area import Areas
from policies.batch.area_backfilling import AreaBackfilling
from policies.batch.plan import BatchPlan
from policies.contract.plan import LAST_S, Plan
from policies.contract.snapshot import JobPhase, JobView, Snapshot
from tests.builders_policies import a_batch_job, a_cpu_node, a_job, a_node, a_snapshot, on, seated

NODES = (a_cpu_node("c1", cores=4.0), a_cpu_node("c2", cores=4.0, resources=(("mic", 2.0),)))


def planned(snapshot: Snapshot, **parameters: Any) -> Plan:
    return decide(snapshot, AreaBackfilling(**parameters))


def started(plan: Plan) -> set[str]:
    return {p.job for p in plan.placements}


def test_of_jobs_that_came_together_the_one_of_least_area_starts() -> None:
    jobs = [
        a_batch_job("large", cores=4.0, walltime_s=200.0),
        a_batch_job("long", cores=3.0, walltime_s=300.0),
        a_batch_job("small", cores=4.0, walltime_s=100.0),
    ]
    plan = planned(a_snapshot([a_cpu_node("c1", cores=4.0)], jobs))
    assert started(plan) == {"small"}
    (head, *_) = [w for w in plan.waiting if w.expected is not None]
    assert head.job == "large"


@pytest.mark.parametrize(
    ("pass_s", "pass_backlog", "first"), [(0.0, 0.0, "large"), (1000.0, 0.0, "small")]
)
def test_a_small_job_passes_a_large_one_that_came_shortly_before(
    pass_s: float, pass_backlog: float, first: str
) -> None:
    jobs = [
        a_batch_job("large", cores=4.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("small", cores=4.0, walltime_s=10.0, arrival_s=900.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=4.0)], jobs)
    assert started(planned(snapshot, pass_s=pass_s, pass_backlog=pass_backlog)) == {first}


def test_the_backlog_lengthens_both_times() -> None:
    jobs = [
        a_batch_job("large", cores=4.0, walltime_s=5000.0, arrival_s=0.0),
        a_batch_job("small", cores=4.0, walltime_s=10.0, arrival_s=900.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=4.0)], jobs)
    plain = {"pass_s": 0.0, "pass_backlog": 0.0, "limit_s": 0.0}
    assert started(planned(snapshot, **plain, limit_backlog=0.0)) == {"large"}
    passing = {**plain, "pass_backlog": 1.0}
    assert started(planned(snapshot, **passing, limit_backlog=0.0)) == {"large"}
    assert started(planned(snapshot, **passing, limit_backlog=1.0)) == {"small"}


def test_a_job_that_waited_too_long_is_first_whatever_its_priority() -> None:
    jobs = [
        a_batch_job("late", cores=4.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("dear", cores=4.0, walltime_s=10.0, arrival_s=900.0, priority=9),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=4.0)], jobs)
    assert started(planned(snapshot)) == {"dear"}
    assert started(planned(snapshot, limit_s=999.0, limit_backlog=0.0)) == {"late"}


def test_a_late_job_that_can_never_start_holds_nobody_up() -> None:
    jobs = [
        a_batch_job("never", cores=99.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("late", cores=4.0, walltime_s=900.0, arrival_s=1.0),
        a_batch_job("small", cores=4.0, walltime_s=10.0, arrival_s=900.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=4.0)], jobs)
    assert started(planned(snapshot, limit_s=500.0, limit_backlog=0.0)) == {"late"}


def test_a_training_job_waits_in_the_same_queue() -> None:
    jobs = [
        a_job("trains", remaining_steps=500.0, arrival_s=0.0),
        a_batch_job("small", gpus_per_unit=1, cores=1.0, walltime_s=10.0, arrival_s=1.0),
    ]
    snapshot = a_snapshot([a_node("n1", "V100", 1, cores=8.0)], jobs)
    assert started(planned(snapshot)) == {"small"}
    assert started(planned(snapshot, pass_s=0.0, pass_backlog=0.0)) == {"trains"}


def test_the_area_counts_the_resource_of_which_a_job_takes_most() -> None:
    jobs = [
        a_batch_job("cores", 2, cores=2.0, walltime_s=100.0),
        a_batch_job("mic", cores=1.0, walltime_s=100.0, resources=(("mic", 2.0),)),
        a_batch_job("endless", cores=1.0, walltime_s=inf),
        a_batch_job("runs", cores=4.0, walltime_s=200.0, running=on("c1", since_s=950.0)),
    ]
    snapshot = a_snapshot(NODES, jobs)
    areas = Areas(BatchPlan(snapshot, range(len(jobs)), ()))
    assert [areas.of(row) for row in range(3)] == [50.0, 100.0, LAST_S]
    assert areas.left_s() == pytest.approx(75.0)


def test_jobs_of_unknown_run_time_come_last_in_order_of_arrival() -> None:
    jobs = [
        a_batch_job("endless", cores=4.0, walltime_s=inf, arrival_s=0.0),
        a_batch_job("other", cores=4.0, walltime_s=inf, arrival_s=1.0),
        a_batch_job("known", cores=4.0, walltime_s=1e6, arrival_s=2.0),
    ]
    nodes = [a_cpu_node("c1", cores=4.0)]
    assert started(planned(a_snapshot(nodes, jobs))) == {"known"}
    assert started(planned(a_snapshot(nodes, jobs[:2]))) == {"endless"}


LIMIT_S, LONGEST_S, STEP_S = 200.0, 60, 10.0
STEPS = 2 + int((LIMIT_S + LONGEST_S) / STEP_S)
SHORT = st.tuples(st.integers(1, 4), st.integers(1, LONGEST_S), st.integers(-3, 10))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(SHORT, min_size=2, max_size=4), min_size=STEPS, max_size=STEPS))
def test_a_wide_job_starts_soon_after_the_limit_however_many_small_ones_come(
    stream: list[list[tuple[int, int, int]]],
) -> None:
    """Every job holds its units for its whole walltime, the worst that can be."""
    wide = a_batch_job("wide", 2, cores=4.0, walltime_s=600.0, arrival_s=0.0, priority=-10)
    waiting: dict[str, JobView] = {"wide": wide}
    running: dict[str, JobView] = {}
    for i, jobs in enumerate(stream):
        now_s = STEP_S * i
        running = {
            name: job
            for name, job in running.items()
            if job.running[0].since_s + job.walltime_s > now_s
        }
        for n, (cores, wall_s, priority) in enumerate(jobs):
            name = f"s{i}-{n}"
            waiting[name] = a_batch_job(
                name,
                cores=float(cores),
                walltime_s=float(wall_s),
                arrival_s=now_s,
                priority=priority,
            )
        snapshot = a_snapshot(NODES, [*waiting.values(), *running.values()], now_s=now_s)
        plan = planned(snapshot, limit_s=LIMIT_S, limit_backlog=0.0, pass_backlog=0.0)
        for placed in plan.placements:
            if placed.job in waiting:
                held = seated(*placed.ranks, since_s=now_s)
                running[placed.job] = replace(
                    waiting.pop(placed.job), running=held, phase=JobPhase.RUNNING
                )
        if "wide" in running:
            return
    raise AssertionError("the wide job starved")
