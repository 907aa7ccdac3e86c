"""Jobs that no node can ever run are reported with the reason rather than waited for."""

from math import inf, isinf, isnan
from typing import Any

import numpy as np
import pytest

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome, Progress
from controlplane.simulation.world.run import FRUITLESS_ROUNDS, simulate
from policies.baselines.fifo import Fifo
from policies.contract.plan import Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    JobColumns,
    Jobs,
    JobView,
    KindView,
    NodeRole,
    PowerCapStep,
    PriceInterval,
    Snapshot,
    Source,
    Throughput,
)
from tests.builders_policies import a_job, a_kind, a_node

KIND = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0})
GLACIER = a_kind("glacier", {("V100", 1): 1e-8})
SCENARIO = Scenario(
    (a_node("n1", "V100", 2, cores=8.0, memory_gb=32.0), a_node("n2", "T4", 4)), (KIND, GLACIER)
)


def the_outcome(
    *jobs: JobView, policy: Policy | None = None, scenario: Scenario = SCENARIO
) -> Outcome:
    return simulate(
        scenario,
        Workload("test", Jobs(JobColumns.of(jobs)), (KIND,)),
        policy or Fifo(),
        name="p",
        seed=1,
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"gpus_min": 8, "gpus_max": 8},
            "needs 8 GPUs on one node, and the largest suitable node has 4",
        ),
        (
            {"gpus_min": 4, "gpus_max": 4},
            "no speed of kind k is known on 4 GPUs of T4 or V100",
        ),
        ({"allowed_types": ("H100",)}, "no node for training has GPUs of type H100"),
        ({"allowed_types": ("T4",)}, "no speed of kind k is known"),
        ({"labels": ("imagenet",)}, "no node that suits it has the label imagenet"),
        ({"allowed_types": ("V100",), "cores": 9.0}, "no node that suits it has 9 cores"),
        (
            {"labels": ("runtime:docker", "team:1")},
            "no node that suits it has the runtime docker, the right to serve its team",
        ),
        ({"resources": (("fpga", 1.0),)}, "no node that suits it has 1 fpga"),
        ({"kind": "unheard"}, "no speed of kind unheard is known"),
        ({"kind": "glacier"}, "where it is fastest it takes 1e+10 s, which is no run time"),
    ],
)
def test_a_job_that_fits_nowhere_is_reported_and_the_others_run(
    fields: dict[str, Any], reason: str
) -> None:
    outcome = the_outcome(
        a_job("a"), a_job("b", arrival_s=1.0, **fields), a_job("c", arrival_s=2.0)
    )
    (found,) = outcome.unplaceable
    assert (found.index, found.job) == (1, "b")
    assert reason in found.reason
    assert isnan(outcome.completion_s[1])
    assert isinf(outcome.fastest_s[1])
    assert not np.isnan(outcome.completion_s[[0, 2]]).any()


@pytest.mark.parametrize(
    "fields", [{"allowed_types": ("T4",)}, {"labels": ("imagenet",)}, {"may_mix": True}]
)
def test_a_gang_does_not_count_on_nodes_that_it_may_not_use(fields: dict[str, Any]) -> None:
    spread = (Throughput("V100", 2, 3.0, Source.MEASURED, spread=True),)
    gang = KindView("gang", throughputs=(*KIND.throughputs[:1], *spread))
    nodes = (
        a_node("n1", "V100", 1),
        a_node("n2", "V100", 1, role=NodeRole.PROFILING),
        a_node("n3", "T4", 1, labels=("imagenet",)),
    )
    job = a_job("a", "gang", gpus_min=2, gpus_max=2, **fields)
    outcome = the_outcome(job, scenario=Scenario(nodes, (gang,)))
    assert [u.job for u in outcome.unplaceable] == ["a"]


def test_a_job_that_needs_more_watts_than_there_ever_are_is_reported() -> None:
    capped = Scenario(SCENARIO.nodes, SCENARIO.kinds, power_caps=(PowerCapStep(-inf, inf, 500.0),))
    assert "500 W" in the_outcome(a_job("a"), scenario=capped).unplaceable[0].reason


def test_a_job_whose_dependency_can_never_run_is_reported_too() -> None:
    outcome = the_outcome(
        a_job("a", labels=("moon",)), a_job("b", arrival_s=1.0, dependencies=("a",))
    )
    assert [u.job for u in outcome.unplaceable] == ["a", "b"]
    assert "waits for a job that can never run" in outcome.unplaceable[1].reason


def never(snapshot: Snapshot) -> Plan:
    """A policy that lets everybody wait."""
    return Plan(
        "never",
        PlanStatus.HEURISTIC,
        (),
        tuple(Waiting(j.id, WaitCode.POSTPONED) for j in snapshot.jobs),
    )


def test_a_job_that_the_policy_never_starts_ends_the_run_all_the_same() -> None:
    outcome = the_outcome(a_job("a"), policy=never)
    assert [u.job for u in outcome.unfinished] == ["a"]
    assert "left it waiting" in outcome.unfinished[0].reason
    assert outcome.unplaceable == ()


def test_an_unfinished_job_costs_the_least_energy_and_tardiness_it_still_could() -> None:
    scenario = Scenario(
        (a_node("v", "V100", 2), a_node("t", "T4", 1)),
        (KIND,),
        (PriceInterval(0.0, inf, 0.2, 1.5),),
    )
    late = a_job(
        "a",
        total_steps=7200.0,
        remaining_steps=7200.0,
        gpus_max=2,
        due_s=60.0,
        tardiness_weight=0.01,
    )
    run, starved = (
        the_outcome(late, scenario=scenario),
        the_outcome(late, policy=never, scenario=scenario),
    )
    ended_s = FRUITLESS_ROUNDS * scenario.round_s - scenario.round_s
    one_gpu_w, two_gpus_w = scenario.nodes[0].power_w[1:]
    assert one_gpu_w / 2.0 > two_gpus_w / 3.0  # two GPUs cost less per step
    energy = two_gpus_w * 2400.0 / 3.6e6 * 0.2 * 1.5
    tardiness = 0.01 * (ended_s + 2400.0 - 60.0)
    assert starved.unfinished_cost == pytest.approx(energy + tardiness)
    assert starved.total_cost == starved.unfinished_cost > run.total_cost
    assert run.unfinished_cost == 0.0


def test_a_job_that_no_node_can_run_costs_nothing_whatever_the_policy() -> None:
    outcome = the_outcome(a_job("a", labels=("moon",), due_s=1.0, tardiness_weight=1.0))
    assert (outcome.unfinished, outcome.total_cost) == ((), 0.0)


def test_progress_ends_with_everything_done() -> None:
    seen: list[Progress] = []
    workload = Workload(
        "test", Jobs(JobColumns.of([a_job("a"), a_job("b", labels=("moon",))])), (KIND,)
    )
    simulate(SCENARIO, workload, Fifo(), name="p", seed=1, on_progress=seen.append)
    assert (seen[-1].arrived, seen[-1].completed, seen[-1].total) == (2, 2, 2)
