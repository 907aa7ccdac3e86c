"""The paper's measures on outcomes worked out by hand: rho, GPU hours, costs, ideal shares, static
partitions, estimates.
"""

from typing import Any

import numpy as np
import pytest

from controlplane.simulation.workloads.base import Workload, jobs_of
from controlplane.simulation.world.outcome import Stays
from experiments.reproduce.gavel.allocations import partition
from experiments.reproduce.gavel.estimated import told_of
from experiments.reproduce.gavel.figures_of import (
    gpu_hours,
    isolated_s,
    jct_figures,
    rho_figures,
)
from experiments.reproduce.gavel.ideal import completions_s
from experiments.reproduce.gavel.scenarios import nodes, snapshot
from experiments.reproduce.gavel.simulated import SLOS, cost_workload
from policies.contract.snapshot import KindView, PairThroughput, Source, Throughput
from policies.gavel.allocation.observe import GroupingOptions, observe
from tests.builders_outcomes import an_outcome
from tests.builders_reproduced import a_data_folder, tables

GPUS = {"V100": 1, "K80": 1}


def a_kind(name: str = "k", v100: float = 3.0, k80: float = 1.0) -> KindView:
    rates = tuple(
        Throughput(t, 1, rate, Source.MEASURED) for t, rate in (("V100", v100), ("K80", k80))
    )
    return KindView(name, name, rates)


def a_workload(arrival_s: list[float], steps: list[float], **columns: Any) -> Workload:
    ids = [f"J{i}" for i in range(len(steps))]
    given = {"gpus_min": 1, "gpus_max": 1, **columns}
    jobs = jobs_of(
        ids,
        ["k"] * len(steps),
        arrival_s=np.array(arrival_s),
        remaining_steps=np.array(steps),
        **given,
    )
    return Workload("by hand", jobs, (a_kind(),))


def test_a_job_alone_in_the_cluster_would_have_run_at_the_mean_of_all_speeds() -> None:
    outcome = an_outcome(arrival_s=np.array([0.0]), completion_s=np.array([300.0]))
    assert isolated_s(outcome, a_workload([0.0], [600.0]), GPUS) == pytest.approx([300.0])
    assert rho_figures(outcome, a_workload([0.0], [600.0]), GPUS, np.array([True]))[
        "rho"
    ] == pytest.approx(1.0)


def test_with_four_jobs_on_two_gpus_each_has_half_of_its_time_until_others_end() -> None:
    """Four are there until 100 s, then one: half of 2 steps/s for 100 s, all of it for the 100
    steps that are left of 200.
    """
    outcome = an_outcome(
        arrival_s=np.zeros(4), completion_s=np.array([100.0, 100.0, 100.0, 1000.0])
    )
    found = isolated_s(outcome, a_workload([0.0] * 4, [100.0, 50.0, 200.0, 200.0]), GPUS)
    assert found == pytest.approx([100.0, 50.0, 150.0, 150.0])


def test_completion_times_are_of_the_jobs_that_count_and_by_priority() -> None:
    outcome = an_outcome(
        arrival_s=np.zeros(4), completion_s=np.array([3600.0, 7200.0, np.nan, 36000.0])
    )
    workload = a_workload([0.0] * 4, [1.0] * 4, weight=np.array([1.0, 5.0, 1.0, 1.0]))
    found = jct_figures(outcome, workload.jobs.columns, np.array([True, True, True, False]))
    assert (found["jct_h"], found["jct_high_h"], found["jct_low_h"], found["unfinished"]) == (
        1.5,
        2.0,
        1.0,
        1,
    )
    assert (found["jct_quantiles_h"][0], found["jct_quantiles_h"][-1]) == (1.0, 2.0)


def test_the_time_of_a_gpu_that_two_share_is_paid_for_once() -> None:
    stays = Stays(
        np.array([0, 1, 2]), np.array([0, 0, 1]), (("gpu0", "gpu1"), ("gpu1",), ("gpu0",)),
        np.array([0.0, 1800.0, 0.0]), np.array([3600.0, 7200.0, 3600.0]),
    )  # fmt: skip
    hours, shared_h = gpu_hours(an_outcome(stays=stays), {"n1": "V100", "n2": "K80"})
    assert hours == {"V100": pytest.approx(3.0), "K80": pytest.approx(1.0)}
    assert shared_h == pytest.approx(0.5)


def test_ideal_shares_end_two_like_jobs_together_and_give_the_last_the_fastest_gpu() -> None:
    """Two jobs at (3 + 1) / 2 steps/s each; one that comes at 100 s takes part from then on."""
    assert completions_s(a_workload([0.0, 0.0], [200.0, 200.0]), nodes(GPUS)) == pytest.approx(
        [100.0, 100.0]
    )
    ends_s = completions_s(a_workload([0.0, 100.0], [300.0, 300.0]), nodes(GPUS))
    assert ends_s == pytest.approx([100.0, 200.0])


def test_a_static_partition_gives_every_job_its_part_of_every_type_and_loses_the_rest() -> None:
    jobs = jobs_of(
        ["a", "b", "c"],
        ["k"] * 3,
        arrival_s=0.0,
        remaining_steps=1.0,
        gpus_min=1,
        gpus_max=1,
        team=["x", "y", "y"],
    )
    made = snapshot(nodes({"V100": 2, "K80": 2}), (a_kind(),), jobs)
    problem = observe(made, GroupingOptions(teams=True, jobs=True)).problem
    shares = partition(problem, [1.0, 1.0])
    by_type = dict(zip((c.gpu_type for c in problem.columns), shares.alone.T.tolist(), strict=True))
    assert by_type["V100"] == pytest.approx([0.5, 0.5, 0.5])
    assert shares.alone.sum(axis=1) == pytest.approx([1.0, 1.0, 1.0])
    assert shares.throughput(problem) == pytest.approx([2.0, 2.0, 2.0])


def test_the_cost_workload_is_half_of_each_model_with_the_papers_durations_and_slos(
    tmp_path: Any,
) -> None:
    data = a_data_folder(tmp_path)
    workload = cost_workload({"throughputs": data.tables(), "jobs": 40, "gap_s": 100.0}, 3)
    assert [
        sum(k.startswith(m) for k in workload.jobs.columns.kinds) for m in ("ResNet-50", "A3C")
    ] == [20, 20]
    rates = {
        name: tables()["v100"][f"('{name}', 1)"]["null"]
        for name in set(workload.jobs.columns.kinds)
    }
    for job in workload.jobs:
        days = job.total_steps / rates[job.kind] / 86_400.0
        assert min(abs(days - d) for d in (0.5, 1.0, 2.0, 4.0, 8.0)) < 0.01
        slo = (job.due_s - job.arrival_s) / 86_400.0 / days
        assert min(abs(slo - s) for s in SLOS) < 0.01


def test_estimates_keep_what_was_measured_and_stand_for_the_rest() -> None:
    names, rng = [f"k{i}" for i in range(8)], np.random.default_rng(1)
    keeps = rng.uniform(0.4, 0.9, 8)
    kinds = tuple(
        KindView(
            name, name, (Throughput("V100", 1, 2.0, Source.MEASURED),),
            tuple(
                PairThroughput(q, "V100", 2.0 * keeps[i], 2.0 * keeps[j], Source.MEASURED)
                for j, q in enumerate(names)
            ),
        )
        for i, name in enumerate(names)
    )  # fmt: skip
    told = told_of(kinds, 0.5, 1)
    assert [k.throughputs for k in told] == [k.throughputs for k in kinds]
    truth = {(k.id, p.other): p.steps_per_s for k in kinds for p in k.pairs}
    found = {(k.id, p.other): p for k in told for p in k.pairs}
    measured = [p for p in found.values() if p.source is Source.MEASURED]
    assert 0 < len(measured) < len(found)
    assert all(
        p.steps_per_s == pytest.approx(truth[key])
        for key, p in found.items()
        if p.source is Source.MEASURED
    )
    assert told_of(kinds, 0.5, 1) == told
