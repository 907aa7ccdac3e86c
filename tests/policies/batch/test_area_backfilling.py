"""Backfilling by area: small jobs first, wide ones soon, and no job that starves."""

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
from policies.contract.plan import Plan
from policies.contract.snapshot import JobPhase, JobView, Snapshot
from tests.builders_policies import a_batch_job, a_cpu_node, a_job, a_node, a_snapshot, on, seated

NODES = (a_cpu_node("c1", cores=4.0), a_cpu_node("c2", cores=4.0, resources=(("mic", 2.0),)))
NOW_S = 1000.0


def filling(cores: float) -> JobView:
    """A running job that keeps so many cores of the first node."""
    return a_batch_job("fills", cores=cores, walltime_s=9e5, running=on("c1", since_s=0.0))


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


def remembered(arrival_s: float, work_s: float, *, waited_s: float = 1000.0) -> dict[str, Any]:
    """Return a plan's memory: later jobs have used the cluster for `work_s` since an arrival."""
    return {
        "later_work": {
            "at_s": NOW_S,
            "arrival_s": [arrival_s],
            "since_s": [NOW_S - waited_s],
            "work_s": [work_s],
            "rate": [0.0],
        }
    }


def test_small_jobs_pass_a_job_until_its_patience_is_lost() -> None:
    jobs = [
        a_batch_job("large", cores=0.2, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("small", cores=0.2, walltime_s=10.0, arrival_s=900.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=8.0)], [filling(7.8), *jobs])
    patient = replace(snapshot, memory=remembered(0.0, 300.0))
    assert started(planned(patient, patience=0.5)) == {"fills", "small"}
    impatient = replace(snapshot, memory=remembered(0.0, 500.0))
    assert started(planned(impatient, patience=0.5)) == {"fills", "large"}


def test_a_wide_job_has_less_patience_than_a_narrow_one() -> None:
    jobs = [
        a_batch_job("wide", cores=2.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("small", cores=2.0, walltime_s=10.0, arrival_s=900.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=8.0)], [filling(6.0), *jobs])
    assert started(planned(snapshot)) == {"fills", "small"}
    after = replace(snapshot, memory=remembered(0.0, 10.0))
    assert started(planned(after)) == {"fills", "wide"}


def test_jobs_that_lost_their_patience_start_by_arrival() -> None:
    jobs = [
        a_batch_job("first", cores=4.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("second", cores=4.0, walltime_s=10.0, arrival_s=0.5),
    ]
    memory = remembered(0.5, 900.0)
    snapshot = replace(a_snapshot([a_cpu_node("c1", cores=4.0)], jobs), memory=memory)
    assert started(planned(snapshot)) == {"first"}


def test_a_higher_priority_goes_before_lost_patience() -> None:
    jobs = [
        a_batch_job("late", cores=4.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("dear", cores=4.0, walltime_s=10.0, arrival_s=900.0, priority=9),
    ]
    memory = remembered(0.0, 900.0)
    snapshot = replace(a_snapshot([a_cpu_node("c1", cores=4.0)], jobs), memory=memory)
    assert started(planned(snapshot)) == {"dear"}


def test_a_job_that_can_never_start_holds_nobody_up() -> None:
    jobs = [
        a_batch_job("never", cores=99.0, walltime_s=900.0, arrival_s=0.0),
        a_batch_job("late", cores=4.0, walltime_s=900.0, arrival_s=1.0),
        a_batch_job("small", cores=4.0, walltime_s=10.0, arrival_s=900.0),
    ]
    memory = remembered(1.0, 500.0)
    snapshot = replace(a_snapshot([a_cpu_node("c1", cores=4.0)], jobs), memory=memory)
    assert started(planned(snapshot)) == {"late"}


def test_a_training_job_waits_in_the_same_queue() -> None:
    jobs = [
        a_job("trains", remaining_steps=500.0, arrival_s=0.0),
        a_batch_job("small", gpus_per_unit=1, cores=1.0, walltime_s=10.0, arrival_s=1.0),
    ]
    snapshot = a_snapshot([a_node("n1", "V100", 1, cores=8.0)], jobs)
    assert started(planned(snapshot)) == {"small"}


def test_the_share_is_of_the_resource_of_which_a_job_takes_most() -> None:
    jobs = [
        a_batch_job("cores", 2, cores=2.0, walltime_s=100.0),
        a_batch_job("mic", cores=1.0, walltime_s=100.0, resources=(("mic", 2.0),)),
        a_batch_job("runs", cores=4.0, walltime_s=200.0, running=on("c1", since_s=950.0)),
    ]
    snapshot = a_snapshot(NODES, jobs)
    areas = Areas(BatchPlan(snapshot, range(len(jobs)), ()))
    assert areas.shares(range(len(jobs))).tolist() == [0.5, 1.0, 0.5]


def test_the_size_is_run_time_times_a_power_of_the_share() -> None:
    jobs = [
        a_batch_job("half", 2, cores=2.0, walltime_s=100.0),
        a_batch_job("endless", cores=1.0, walltime_s=inf),
    ]
    areas = Areas(BatchPlan(a_snapshot(NODES, jobs), range(len(jobs)), ()))
    assert areas.size_s(0) == pytest.approx(100.0 * 0.5**0.75)
    assert areas.size_s(1) == inf


def test_the_size_is_unknown_of_an_endless_job_that_takes_nothing() -> None:
    jobs = [a_batch_job("nothing", cores=0.0, walltime_s=inf)]
    areas = Areas(BatchPlan(a_snapshot(NODES, jobs), range(len(jobs)), ()))
    assert areas.size_s(0) == inf


def test_jobs_of_unknown_run_time_come_last_in_order_of_arrival() -> None:
    jobs = [
        a_batch_job("endless", cores=4.0, walltime_s=inf, arrival_s=0.0),
        a_batch_job("other", cores=4.0, walltime_s=inf, arrival_s=1.0),
        a_batch_job("known", cores=4.0, walltime_s=1e6, arrival_s=2.0),
    ]
    nodes = [a_cpu_node("c1", cores=4.0)]
    assert started(planned(a_snapshot(nodes, jobs))) == {"known"}
    assert started(planned(a_snapshot(nodes, jobs[:2]))) == {"endless"}


LONGEST_S, STEP_S = 60, 10.0
STEPS = 3 + 2 * LONGEST_S // int(STEP_S)
SHORT = st.tuples(st.integers(1, 4), st.integers(1, LONGEST_S))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(SHORT, min_size=2, max_size=4), min_size=STEPS, max_size=STEPS))
def test_a_wide_job_starts_however_many_small_ones_come(
    stream: list[list[tuple[int, int]]],
) -> None:
    """Every job holds its units for its whole walltime, the worst that can be."""
    wide = a_batch_job("wide", 2, cores=4.0, walltime_s=600.0, arrival_s=0.0)
    waiting: dict[str, JobView] = {"wide": wide}
    running: dict[str, JobView] = {}
    memory: dict[str, Any] = {}
    for i, jobs in enumerate(stream):
        now_s = STEP_S * i
        running = {
            name: job
            for name, job in running.items()
            if job.running[0].since_s + job.walltime_s > now_s
        }
        for n, (cores, wall_s) in enumerate(jobs):
            name = f"s{i}-{n}"
            waiting[name] = a_batch_job(
                name,
                cores=float(cores),
                walltime_s=float(wall_s),
                arrival_s=now_s,
            )
        jobs_now = [*waiting.values(), *running.values()]
        snapshot = replace(a_snapshot(NODES, jobs_now, now_s=now_s), memory=memory)
        plan = planned(snapshot)
        memory = dict(plan.memory)
        for placed in plan.placements:
            if placed.job in waiting:
                held = seated(*placed.ranks, since_s=now_s)
                running[placed.job] = replace(
                    waiting.pop(placed.job), running=held, phase=JobPhase.RUNNING
                )
        if "wide" in running:
            return
    raise AssertionError("the wide job starved")
