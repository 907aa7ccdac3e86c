"""When a job is shown GPUs as faster than estimated, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import fmean

import pytest

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
from profiling.estimates import Config, Pool, estimate, leave_one_out
from profiling.exploration import (
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


@dataclass(frozen=True, slots=True)
class Spent:
    """Energy of eight kinds on four GPU types, in Wh."""

    profile_runs: float
    trials: float
    work: float


def spent(seed: int, *, step_s: float, min_run_s: float, explores: bool = True) -> Spent:
    """Energy of 25 jobs of half an hour of each kind, each on the type shown as cheapest.

    `trials`: what exploring launches draw above the best known. Every type has a free GPU; the
    first job of a kind runs on a V100. Kinds deviate from data sheets by SIGMA.
    """
    random, total = Random(seed), 0.0
    truth = {
        k: {t: f / 14.0 / step_s * exp(random.gauss(0, SIGMA)) for t, f in TFLOPS.items()}
        for k in map(str, range(8))
    }
    draw_wh = {t: (BASE_W + WATTS[t]) / 3600 for t in TFLOPS}
    runs = sum(20 / truth[k][t] * draw_wh[t] for k in truth for t in TFLOPS)
    known = {k: {("V100", 1): truth[k]["V100"]} for k in truth}
    tried, steps = 0.0, 1800.0 / step_s
    for turn in range(25):
        for k in truth:
            left = [
                replace(job, min_run_s=min_run_s, restart_cost_s=min_run_s / 10)
                for job in jobs_of(k, 25 - turn, steps)
            ]
            kind = as_estimated(k, known)
            errors = [log(e.estimated / e.measured) for e in leave_one_out(known, pool_of(known))]
            shown = explored(
                a_snapshot(left, kind), ids(left) if explores else set(), spread_of(errors)
            )
            rates = shown.kinds[-1].rates
            chosen = min(TFLOPS, key=lambda t: draw_wh[t] / rates[t, 1, False])
            cost = draw_wh[chosen] / truth[k][chosen]
            best = min(cost, *(draw_wh[t] / truth[k][t] for t, _ in known[k]))
            if shown.jobs.columns.kinds[0] != k:
                there = max(20.0, min_run_s * truth[k][chosen])
                tried += (cost - best) * there
                total += (cost - best) * there + best * steps
            else:
                total += cost * steps
            known[k][chosen, 1] = truth[k][chosen]
    return Spent(runs, tried, total)


def pool_of(known: Mapping[str, Mapping[Config, float]]) -> Pool:
    return Pool.of(TFLOPS, known)


def as_estimated(kind: str, known: Mapping[str, Mapping[Config, float]]) -> KindView:
    speeds = estimate(kind, known[kind], [(t, 1) for t in TFLOPS], pool_of(known))
    sources = {c: Source.MEASURED if c in known[kind] else Source.ESTIMATED for c in speeds}
    return a_kind(kind, **{c[0]: (speed, sources[c]) for c, speed in speeds.items()})


def test_trials_save_more_than_they_cost_and_cost_less_than_profile_runs() -> None:
    found = [spent(seed, step_s=1.0, min_run_s=40.0) for seed in range(5)]
    without = [spent(seed, step_s=1.0, min_run_s=40.0, explores=False) for seed in range(5)]
    assert sum(s.work for s in found) < sum(s.work for s in without)
    assert sum(s.trials for s in found) < sum(s.profile_runs for s in found) / 4
