"""When a job is shown GPUs as faster than estimated, and what that costs."""

from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean

import pytest

from experiments.bench.profiling import exploration
from policies.contract.assumed import without_assumed_times
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    RankPlacement,
    Running,
    SlotHold,
    Snapshot,
    Source,
    Throughput,
)
from profiling.exploration import (
    LEAST_RETURN,
    OPTIMISM,
    PRIOR_SIGMA,
    expected_saving,
    explored,
    reason_of,
    spread_of,
    trials,
)

SIGMA = 0.3
TFLOPS = {"K80": 4.0, "P100": 9.5, "T4": 8.0, "V100": 14.0}
WATTS = {"K80": 150.0, "P100": 250.0, "T4": 70.0, "V100": 300.0}
BASE_W = 100.0


def a_node(gpu_type: str, *, busy: bool = False) -> NodeView:
    held = (SlotHold("other"),) if busy else ()
    devices = (DeviceView("0", 16.0, held=held),)
    power_w = (BASE_W, BASE_W + WATTS[gpu_type])
    return NodeView(gpu_type.lower(), gpu_type, gpu_type, devices, power_w)


def a_kind(name: str = "k", **speeds: tuple[float, Source]) -> KindView:
    return KindView(name, name, tuple(Throughput(t, 1, s, src) for t, (s, src) in speeds.items()))


def a_snapshot(jobs: list[JobView], *kinds: KindView, busy: str = "") -> Snapshot:
    nodes = tuple(a_node(t, busy=t == busy) for t in TFLOPS)
    prices = (PriceInterval(0.0, 1e9, 0.3, 1.0),)
    columns = Jobs(JobColumns.of(jobs))
    return Snapshot("c", 0.0, 60.0, 1, nodes, kinds, columns, energy=prices)


KIND = a_kind(V100=(4.0, Source.MEASURED), T4=(1.5, Source.ESTIMATED))
"""A step costs 100 Ws on a V100, and about 113 Ws on a T4."""


def jobs_of(kind: str, count: int, steps: float = 1e5) -> list[JobView]:
    return [JobView(f"{kind}{n}", kind, float(n), steps, restart_cost_s=4.0) for n in range(count)]


def ids(jobs: list[JobView]) -> set[str]:
    return {job.id for job in jobs}


@pytest.mark.parametrize(("best", "estimated"), [(1.0, 1.1), (1.0, 2.0), (1.0, 0.7)])
def test_the_expected_saving_is_the_mean_of_what_draws_would_save(
    best: float, estimated: float
) -> None:
    random = Random(1)
    draws = [max(0.0, best - estimated * exp(random.gauss(0, SIGMA))) for _ in range(200_000)]
    assert expected_saving(best, estimated, SIGMA) == pytest.approx(fmean(draws), rel=0.03)


def test_without_an_error_there_is_nothing_to_gain() -> None:
    assert expected_saving(1.0, 1.1, 0.0) == 0.0
    assert spread_of([]) == PRIOR_SIGMA
    assert spread_of([0.01] * 1000) < 0.03


def test_the_oldest_job_of_a_kind_with_much_work_tries_what_may_be_cheaper() -> None:
    jobs = jobs_of("k", 5)
    after = explored(a_snapshot(jobs, KIND), ids(jobs), SIGMA)
    assert after.jobs.columns.kinds == ("k+T4:1", "k", "k", "k", "k")
    optimistic = {t.gpu_type: t for t in after.kinds[1].throughputs}
    assert optimistic["T4"].steps_per_s == pytest.approx(1.5 * exp(OPTIMISM * SIGMA))
    assert optimistic["V100"] == KIND.throughputs[0]
    assert after.kinds[0] is KIND
    assert "explores 1 x T4: a step may cost up to" in after.kinds[1].name


def test_a_kind_with_little_work_left_tries_nothing() -> None:
    jobs = jobs_of("k", 1, steps=50.0)
    snapshot = a_snapshot(jobs, KIND)
    assert explored(snapshot, ids(jobs), SIGMA) is snapshot


@pytest.mark.parametrize(
    "kind",
    [
        a_kind(V100=(4.0, Source.MEASURED), T4=(1.5, Source.MEASURED)),
        a_kind(V100=(4.0, Source.MEASURED), T4=(0.1, Source.ESTIMATED)),
        a_kind(V100=(4.0, Source.MEASURED), T4=(4.0, Source.ESTIMATED)),
        a_kind(V100=(4.0, Source.ASSUMED), T4=(1.5, Source.ASSUMED)),
        a_kind(V100=(4.0, Source.DECLARED), T4=(1.5, Source.DECLARED)),
        a_kind(V100=(4.0, Source.MEASURED), A100=(9.0, Source.ESTIMATED)),
        a_kind(),
    ],
    ids=["measured", "hopeless", "chosen anyway", "assumed", "declared", "no node", "unknown"],
)
def test_nothing_is_tried_without_need(kind: KindView) -> None:
    jobs = jobs_of("k", 5)
    assert not list(trials(a_snapshot(jobs, kind), ids(jobs), SIGMA))


def test_nothing_is_tried_that_a_job_may_not_use_or_that_is_taken() -> None:
    jobs = jobs_of("k", 5)
    picky = [replace(job, allowed_types=("V100",)) for job in jobs]
    assert not list(trials(a_snapshot(picky, KIND), ids(jobs), SIGMA))
    assert not list(trials(a_snapshot(jobs, KIND, busy="T4"), ids(jobs), SIGMA))
    assert not list(trials(a_snapshot(jobs, KIND), set(), SIGMA))


def test_one_job_at_a_time_tries() -> None:
    jobs = jobs_of("k", 5)
    jobs[0] = replace(jobs[0], running=(Running(0, (RankPlacement("t4", ("0",)),), 0.0),))
    assert not list(trials(a_snapshot(jobs, KIND), ids(jobs[1:]), SIGMA))


def test_the_launch_says_what_it_tries_and_no_run_time() -> None:
    jobs = jobs_of("k", 5)
    after = explored(a_snapshot(jobs, KIND), ids(jobs), SIGMA)
    there = Placement("k0", (RankPlacement("t4", ("0",)),), predicted_run_s=9.0)
    elsewhere = Placement("k0", (RankPlacement("v100", ("0",)),))
    assert reason_of(after, there).startswith("explores 1 x T4")
    assert reason_of(after, elsewhere) == ""
    assert reason_of(after, replace(there, job="k1")) == ""
    plan = without_assumed_times(Plan("p", PlanStatus.HEURISTIC, (there,)), after)
    assert plan.placements[0].predicted_run_s is None


def test_a_gain_that_hardly_pays_its_price_is_not_tried() -> None:
    tried = [
        list(trials(a_snapshot(jobs, KIND), ids(jobs), SIGMA))
        for jobs in (jobs_of("k", 1, steps) for steps in (1e2, 1e3, 1e4, 1e5))
    ]
    assert [len(found) for found in tried] == [0, 0, 0, 1]
    assert all(t.gain >= LEAST_RETURN * t.price for found in tried for t in found)


def test_exploring_saves_more_than_it_costs_and_costs_a_tenth_of_profile_runs() -> None:
    case = exploration.Case(step_s=1.0, restart_s=10.0)
    found = [exploration.spent(case, seed) for seed in (4, 6)]
    without = [exploration.spent(case, seed, explores=False) for seed in (4, 6)]
    assert sum(s.work for s in found) < sum(s.work for s in without)
    assert sum(s.exploring for s in found) < sum(s.profile_runs for s in found) / 10
