"""Gangs that no node can hold in simulations: they run, are measured, billed and told apart."""

import numpy as np
import pytest

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from policies.contract.snapshot import JobColumns, Jobs, JobView
from policies.host import registry
from policies.placement.speed import Speeds
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot

KIND = a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.6})
NODES = (a_node("n1", "V100", 2), a_node("n2", "V100", 2))
ENERGY = a_snapshot().energy


def the_outcome(policy: str, *jobs: JobView, switches: Switches = NO_SWITCHES) -> Outcome:
    return simulate(
        Scenario(NODES, (KIND,), ENERGY),
        Workload("test", Jobs(JobColumns.of(jobs)), (KIND,)),
        registry.make(policy),
        name=policy,
        seed=1,
        switches=switches,
    )


@pytest.mark.parametrize("policy", [name for name in registry.BUILT_IN if name != "exact"])
def test_a_gang_over_nodes_runs_to_its_end(policy: str) -> None:
    outcome = the_outcome(policy, a_job("w", gpus_min=3, gpus_max=3), a_job("s"))
    assert outcome.unplaceable == ()
    assert outcome.unfinished == ()
    assert not np.isnan(outcome.completion_s).any()
    rate = Speeds((KIND,), NODES).alone("k", ("V100",), 3, spread=True)
    assert outcome.fastest_s[0] == pytest.approx(100.0 / rate)


def test_a_gang_larger_than_the_cluster_is_reported() -> None:
    (found,) = the_outcome("fifo", a_job("w", gpus_min=5, gpus_max=5)).unplaceable
    assert "needs 5 GPUs on one node, and the largest suitable node has 2" in found.reason


def test_an_unknown_gang_is_measured_by_its_first_run() -> None:
    jobs = [a_job(f"w{i}", gpus_min=3, gpus_max=3, arrival_s=300.0 * i) for i in range(3)]
    outcome = the_outcome("cost_search", *jobs, switches=Switches(first_run_steps=3))
    assert outcome.unfinished == ()
    assert not np.isnan(outcome.completion_s).any()
