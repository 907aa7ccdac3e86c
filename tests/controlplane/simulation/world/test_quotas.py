"""Cores of a simulated job change while it runs, and with them its speed."""

from math import inf

import pytest

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import PriceInterval, RankPlacement, Snapshot
from tests.builders_policies import a_job, a_kind, a_node

CORES = 4.0
NODE = a_node("n1", "V100", 1, cores=8.0, changes_quotas=True)
KIND = a_kind("k", {("V100", 1): 1.0})
ENERGY = (PriceInterval(0.0, inf, 0.2, 1.5),)
ROUND_S = 10.0


class Halving:
    """A policy that gives its job all cores, and half of them from a time on."""

    def __init__(self, from_s: float, to_s: float = inf) -> None:
        self.from_s = from_s
        self.to_s = to_s

    def __call__(self, snapshot: Snapshot) -> Plan:
        quota = CORES / 2 if self.from_s <= snapshot.now_s < self.to_s else None
        seat = RankPlacement("n1", ("gpu0",), cpu_quota=quota)
        placements = [Placement(job.id, (seat,)) for job in snapshot.jobs]
        return Plan("halving", PlanStatus.HEURISTIC, tuple(placements))


def ended_s(policy: Halving) -> float:
    """End of a job of 100 steps at a step per second, in rounds of ten seconds."""
    scenario = Scenario((NODE,), (KIND,), ENERGY, round_s=ROUND_S)
    simulation = Simulation(scenario, [a_job("a", cores=CORES)], policy).run()
    (job,) = simulation.state.jobs.values()
    assert len(job.launches) == 1, "a quota stops nothing"
    assert job.completed_s is not None
    return job.completed_s


def test_a_job_with_half_of_its_cores_is_half_as_fast_from_then_on() -> None:
    assert ended_s(Halving(from_s=inf)) == pytest.approx(100.0)
    assert ended_s(Halving(from_s=40.0)) == pytest.approx(40.0 + 2 * 60.0)


def test_a_job_that_has_its_cores_back_is_as_fast_as_before() -> None:
    assert ended_s(Halving(from_s=40.0, to_s=60.0)) == pytest.approx(110.0)


def test_a_job_that_starts_under_a_quota_is_slower_at_once() -> None:
    assert ended_s(Halving(from_s=0.0)) == pytest.approx(200.0)
