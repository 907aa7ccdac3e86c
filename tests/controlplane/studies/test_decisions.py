"""What a plan comes to where it puts two jobs on one GPU: their speeds beside each other, and watts
counted once.
"""

from math import inf

import pytest

from controlplane.studies.what_if.comparison import Figures, figures, stretches
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import PriceInterval, Running, Snapshot
from tests.builders_colocation import a_wide_node
from tests.builders_policies import a_job, a_snapshot
from tests.builders_shared_worlds import half_of, kinds_of_two

NOW_S = 1000.0
JOULES_PER_KWH = 3.6e6


def a_pair() -> tuple[Plan, Snapshot]:
    """Job a at half of its speed beside b, which keeps 0.8: 100 steps each."""
    energy = (PriceInterval(0.0, inf, 0.2, 1.5),)
    snapshot = a_snapshot(
        [a_wide_node()], [a_job("a", "a"), a_job("b", "b")], kinds_of_two(0.5, 0.8), energy=energy
    )
    plan = Plan(
        "told", PlanStatus.HEURISTIC, tuple(Placement(job, half_of("gpu0")) for job in "ab")
    )
    return plan, snapshot


def the_figures(plan: Plan, snapshot: Snapshot) -> Figures:
    return figures(plan, snapshot)


def test_the_end_of_a_job_is_expected_at_its_speed_beside_the_other() -> None:
    assert [s.to_s for s in stretches(*a_pair())] == [NOW_S + 200.0, NOW_S + 125.0]


def test_a_job_that_gets_the_gpu_it_shared_for_itself_is_expected_to_restart() -> None:
    shared = Running(0, half_of("gpu0"), since_s=0.0)
    job = a_job("a", "a", remaining_steps=50.0, restart_cost_s=7.0, running=(shared,))
    snapshot = a_snapshot([a_wide_node()], [job], kinds_of_two(0.5, 0.8))
    ends = {}
    for share in (0.5, 1.0):
        placement = Placement("a", half_of("gpu0", share=share))
        (stretch,) = stretches(Plan("p", PlanStatus.HEURISTIC, (placement,)), snapshot)
        ends[share] = stretch.to_s
    assert ends == {0.5: NOW_S + 50.0, 1.0: NOW_S + 50.0 + 7.0}


def test_a_plan_that_lets_jobs_wait_is_not_cheaper_than_one_that_runs_them() -> None:
    energy = (PriceInterval(0.0, inf, 0.2, 1.5),)
    jobs = [a_job("a", "a"), a_job("b", "b", due_s=1.0, tardiness_weight=0.01)]
    snapshot = a_snapshot([a_wide_node()], jobs, kinds_of_two(0.5, 0.8), energy=energy)
    alone = Plan("p", PlanStatus.HEURISTIC, (Placement("a", half_of("gpu0", share=1.0)),))
    idle, busy = (
        the_figures(Plan("p", PlanStatus.HEURISTIC), snapshot),
        the_figures(alone, snapshot),
    )
    assert busy.energy_cost > 0.0
    assert idle.energy_cost_waiting == pytest.approx(busy.energy_cost + busy.energy_cost_waiting)
    assert idle.cost == pytest.approx(busy.cost)


def test_a_shared_gpu_is_one_gpu_in_use_until_the_last_of_its_jobs_ends() -> None:
    plan, snapshot = a_pair()
    found, watts = the_figures(plan, snapshot), snapshot.nodes[0].power_w[1]
    assert (found.running, found.gpus, found.power_w) == (2, 1, watts)
    assert found.energy_cost == pytest.approx(watts * 200.0 / JOULES_PER_KWH * 0.2 * 1.5)
