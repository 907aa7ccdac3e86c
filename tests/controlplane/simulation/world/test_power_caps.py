"""Caps by hour over a whole simulation: at no moment is more drawn than may be, whatever the
policy.
"""

from collections import Counter

import pytest

from controlplane.simulation.world.run import Simulation
from policies.contract.plan import WaitCode
from policies.contract.snapshot import PowerCapStep
from policies.contract.validation import power_w
from policies.host import registry
from tests.builders_loop import a_scenario, table_v_jobs

CAPS = (
    PowerCapStep(0.0, 5000.0, 1100.0),
    PowerCapStep(5000.0, 7000.0, 600.0),
    PowerCapStep(9000.0, 12_000.0, 700.0),
)
FEW = {"randomized_greedy": {"iterations": 50}, "cost_search": {"moves": 20}}


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_no_more_is_drawn_than_the_cap_of_the_hour(name: str) -> None:
    simulation = Simulation(
        a_scenario(power_caps=CAPS, round_s=300.0),
        table_v_jobs(),
        registry.make(name, FEW.get(name)),
    ).run()
    jobs = simulation.state.jobs
    assert all(job.completed_s is not None for job in jobs.values())
    launches = [launch for job in jobs.values() for launch in job.launches]
    nodes = {n.id: n for n in simulation.scenario.nodes}
    for at_s in sorted(
        {t for launch in launches for t in (launch.start_s, launch.end_s)}
        | {c.from_s for c in CAPS}
    ):
        running = [launch for launch in launches if launch.start_s <= at_s < launch.end_s]
        in_use = Counter(
            seat.node for launch in running for seat in launch.ranks for _ in seat.devices
        )
        cap_w = min(
            (c.power_cap_w for c in CAPS if c.from_s <= at_s < c.to_s), default=float("inf")
        )
        assert power_w(nodes, in_use) <= cap_w


def test_a_job_that_no_cap_lets_start_is_waited_for_until_the_cap_ends() -> None:
    nothing = (PowerCapStep(0.0, 400 * 300.0, 0.0),)
    simulation = Simulation(
        a_scenario(power_caps=nothing, round_s=300.0), table_v_jobs()[:1], registry.make("fifo")
    ).run()
    (job,) = simulation.state.jobs.values()
    assert [launch.start_s for launch in job.launches] == [400 * 300.0]


def test_who_waits_for_watts_is_told_so_in_the_plan() -> None:
    simulation = Simulation(
        a_scenario(power_caps=CAPS, round_s=300.0), table_v_jobs(), registry.make("fifo")
    ).run()
    codes = {w.code for r in simulation.rounds for w in r.plan.waiting}
    assert WaitCode.POWER_CAP in codes
