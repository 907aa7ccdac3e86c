"""Waits of a simulation by the share of the cluster that jobs take."""

from typing import Any

import pytest

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.run import simulate
from experiments.waits_by_width import shares, waits_by_width
from policies.contract.snapshot import JobColumns, Jobs, KindView, Source, Throughput
from policies.host.registry import make
from tests.builders_policies import a_batch_job, a_cpu_node, a_node

SECONDS = KindView("batch", throughputs=(Throughput("", 0, 1.0, Source.DECLARED),))


def test_the_share_is_of_the_scarcest_resource() -> None:
    nodes = [a_node("n1", gpus=4, cores=8.0), a_cpu_node("c1", cores=8.0)]
    jobs = Jobs(
        JobColumns.of(
            [
                a_batch_job("cores", 4, cores=2.0),
                a_batch_job("gpus", 3, 1, cores=1.0),
                a_batch_job("large", 64, cores=1.0),
            ]
        )
    )
    assert shares(jobs, nodes).tolist() == [0.5, 0.75, 1.0]


def test_waits_of_wide_jobs_stand_apart_from_those_of_narrow_ones() -> None:
    lasting: dict[str, Any] = {
        "remaining_steps": 100.0,
        "total_steps": 100.0,
        "walltime_s": 100.0,
        "kind": "batch",
    }
    listed = [
        a_batch_job("wide", 8, cores=1.0, arrival_s=0.0, **lasting),
        a_batch_job("next", 8, cores=1.0, arrival_s=10.0, **lasting),
        a_batch_job("narrow", 2, cores=1.0, arrival_s=20.0, **lasting),
    ]
    scenario = Scenario((a_cpu_node("c1", cores=8.0),), (SECONDS,))
    workload = Workload("few", Jobs(JobColumns.of(listed)), (SECONDS,))
    outcome = simulate(scenario, workload, make("backfilling"), name="backfilling", seed=1)
    found = waits_by_width(outcome, workload.jobs, scenario.nodes)
    assert found["wider"] == {
        "jobs": 2,
        "mean_s": 45.0,
        "longest_s": 90.0,
        "by_area_s": pytest.approx(45.0),
    }
    assert found["up to 1/4"]["mean_s"] == 180.0
    assert found["up to 1/16"]["jobs"] == 0
    assert found["all"]["by_area_s"] == pytest.approx((90.0 * 1 + 180.0 * 0.25) / 2.25)
