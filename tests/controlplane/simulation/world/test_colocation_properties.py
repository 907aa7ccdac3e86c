"""What must hold in any scenario in which jobs share GPUs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.run import Simulation
from policies.contract.snapshot import (
    JobView,
    Snapshot,
)
from policies.contract.validation import validate_plan
from policies.host.registry import make
from tests.builders_shared_worlds import (
    launches_of,
    shared_scenarios,
    steps_by_integral,
)
from tests.controlplane.simulation.world.test_colocation import outcome_under


@settings(deadline=None, max_examples=25)
@given(shared_scenarios(), st.sampled_from(["fifo", "edf", "max_min_fairness"]))
def test_room_for_two_makes_no_difference_to_policies_that_do_not_use_it(
    made: tuple[Scenario, list[JobView]], name: str
) -> None:
    scenario, jobs = made
    # All GPUs alike: where only some have room for two, best fit leaves those to jobs that share.
    wide, one = (
        outcome_under(
            make(name),
            replace(
                scenario,
                nodes=tuple(
                    replace(n, devices=tuple(replace(d, slots=slots) for d in n.devices))
                    for n in scenario.nodes
                ),
            ),
            jobs,
        )
        for slots in (2, 1)
    )
    for column in ("first_start_s", "completion_s", "busy_s", "gpu_s", "launches"):
        np.testing.assert_array_equal(getattr(wide, column), getattr(one, column))
    assert wide.energy_kwh == pytest.approx(one.energy_kwh, rel=1e-12)
    if len(wide.job_kwh):
        assert wide.job_kwh.sum() == pytest.approx(wide.energy_kwh)


SHARING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gandiva", {}),
    ("gandiva", {"rotate": False}),
    ("max_min_fairness", {"form": "sharing"}),
)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(shared_scenarios(), st.sampled_from(SHARING))
def test_whatever_is_shared_no_rule_is_broken_and_steps_are_the_integral_of_the_rates(
    made: tuple[Scenario, list[JobView]], choice: tuple[str, dict[str, Any]]
) -> None:
    scenario, jobs = made
    policy = make(*choice)

    def watched(snapshot: Snapshot) -> Any:
        _holds_are_within_slots(snapshot)
        plan = policy(snapshot)
        assert validate_plan(plan, snapshot) == ()
        return plan

    simulation = Simulation(scenario, jobs, watched).run()
    able = [
        job
        for job in simulation.state.jobs.values()
        if job.view.id not in simulation.state.unplaceable
    ]
    assert all(job.completed_s is not None for job in able), "everybody who can run comes to an end"
    _steps_are_integrals(simulation, scenario)
    _all_energy_is_somebodys(simulation)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(shared_scenarios(), st.sampled_from(SHARING), st.sampled_from([0.0, 7.0]))
def test_stops_that_take_time_and_nodes_that_fail_leave_nobody_behind(
    made: tuple[Scenario, list[JobView]], choice: tuple[str, dict[str, Any]], stop_s: float
) -> None:
    scenario, jobs = made
    policy = make(*choice)
    switches = Switches(
        node_failures_per_day=300.0,
        node_repair_s=60.0,
        job_failure_probability=0.2,
        checkpoint_every_s=20.0,
    )

    def watched(snapshot: Snapshot) -> Any:
        _holds_are_within_slots(snapshot)
        return policy(snapshot)

    simulation = Simulation(
        replace(scenario, stop_s=stop_s), jobs, watched, switches=switches
    ).run()
    able = [
        job
        for job in simulation.state.jobs.values()
        if job.view.id not in simulation.state.unplaceable
    ]
    assert all(job.completed_s is not None for job in able)
    for job in able:
        assert [n.start_steps for n in job.launches[1:]] == [
            n.end_steps for n in job.launches[:-1]
        ], "nothing is lost or won between"
        assert all((n.end_steps or 0) >= n.start_steps for n in job.launches)
    _all_energy_is_somebodys(simulation)


def _holds_are_within_slots(snapshot: Snapshot) -> None:
    for device in (d for n in snapshot.nodes for d in n.devices):
        assert len(device.held) <= device.slots
        assert sum(hold.share for hold in device.held) <= 1.0 + 1e-9


def _steps_are_integrals(simulation: Simulation, scenario: Scenario) -> None:
    seen: set[str] = set()
    for launch in sorted(launches_of(simulation), key=lambda n: n.number):
        setup_s = scenario.launch_s + (scenario.restart_cost_s if launch.job in seen else 0.0)
        seen.add(launch.job)
        if len(launch.ranks) > 1:  # a gang over nodes, which shares nothing
            continue
        must = steps_by_integral(simulation, launch, setup_s)
        done = (launch.end_steps or 0) - launch.start_steps
        completed = launch.end_steps == simulation.state.jobs[launch.job].total_steps
        assert (
            done == pytest.approx(must, abs=1e-6)
            if completed
            else -1e-6 <= must - done < 1.0 + 1e-6
        )


def _all_energy_is_somebodys(simulation: Simulation) -> None:
    outcome = simulation.outcome("p", "w")
    if len(outcome.job_kwh):
        assert outcome.job_kwh.sum() == pytest.approx(outcome.energy_kwh)
        assert outcome.job_cost.sum() == pytest.approx(outcome.energy_cost)
    assert outcome.utilisation.gpus_in_use.max(initial=0) <= sum(
        len(n.devices) for n in simulation.scenario.nodes
    )
