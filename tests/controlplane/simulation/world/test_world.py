"""The simulated cluster: jobs advance by their throughput, stops take two phases, energy is metered
per node.
"""

from math import inf

import pytest

from controlplane.loop.rounds import RejectCode
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation, SimulationError
from policies.baselines.edf import Edf
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import PolicyError
from policies.contract.snapshot import JobPhase, PriceInterval, RankPlacement, Snapshot
from tests.builders_policies import a_job, a_kind, a_node

NODE = a_node("n1", "V100", 1)
KIND = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0})


def a_scenario(gpus: int = 1, **fields: float) -> Scenario:
    node, step = a_node("n1", "V100", gpus), PriceInterval(0.0, inf, 0.2, 1.5)
    return Scenario((node,), (KIND,), (step,), **fields)  # type: ignore[arg-type]  # fields by name


def last_first(snapshot: Snapshot) -> Plan:
    """A policy that always gives the only device to the job that came last."""
    placed = tuple(
        Placement(job.id, (RankPlacement("n1", ("gpu0",)),)) for job in snapshot.jobs[-1:]
    )
    return Plan(
        "last_first",
        PlanStatus.HEURISTIC,
        placed,
        tuple(Waiting(j.id, WaitCode.POSTPONED) for j in snapshot.jobs[:-1]),
    )


def ends(simulation: Simulation) -> dict[str, float | None]:
    return {job.view.id: job.completed_s for job in simulation.state.jobs.values()}


def launches(simulation: Simulation, job: str) -> list[tuple[float, float, int, int | None]]:
    return [
        (n.start_s, n.end_s, n.start_steps, n.end_steps)
        for n in simulation.state.jobs[job].launches
    ]


def test_a_job_ends_when_its_steps_are_done() -> None:
    assert ends(Simulation(a_scenario(), [a_job("a", arrival_s=10.0)], Fifo()).run()) == {"a": 60.0}


def test_a_job_waits_for_the_device_and_starts_when_it_is_free() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=20.0)]
    simulation = Simulation(a_scenario(), jobs, Fifo()).run()
    assert ends(simulation) == {"a": 50.0, "b": 100.0}


def test_a_stopped_job_keeps_its_whole_steps_and_goes_on_from_there() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=10.3, remaining_steps=20.0, total_steps=20.0)]
    simulation = Simulation(a_scenario(), jobs, last_first).run()
    assert launches(simulation, "b") == [(10.3, 20.3, 0, 20)]
    assert launches(simulation, "a") == [(0.0, 10.3, 0, 20), (20.3, 60.3, 20, 100)]


def test_rounds_that_stop_a_running_job_are_counted() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=10.3, remaining_steps=20.0, total_steps=20.0)]
    assert Simulation(a_scenario(), jobs, last_first).run().rounds_changed == 1
    assert Simulation(a_scenario(), jobs, Fifo()).run().rounds_changed == 0


def test_a_stop_holds_its_devices_until_it_has_ended_and_defers_who_wants_them() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=10.0)]
    simulation = Simulation(a_scenario(stop_s=4.0), jobs, last_first).run(until_s=12.0)
    (rejected,) = simulation.rounds[-1].applied.rejected
    assert (rejected.key[0], rejected.code) == ("b", RejectCode.DEFERRED)
    shown = simulation.world.snapshot()
    assert [(j.phase, j.remaining_steps) for j in shown.jobs] == [
        (JobPhase.WAITING, 80.0),
        (JobPhase.WAITING, 100.0),
    ]
    assert shown.nodes[0].devices[0].held[0].job == "a"
    simulation.run()
    assert launches(simulation, "b")[0][0] == 14.0


def test_launching_and_restarting_take_the_scenarios_time() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=10.0, remaining_steps=20.0, total_steps=20.0)]
    simulation = Simulation(a_scenario(launch_s=1.0, restart_cost_s=5.0), jobs, last_first).run()
    assert ends(simulation) == {"b": 21.0, "a": 21.0 + 6.0 + (100 - 18) / 2.0}


def test_energy_is_metered_at_the_gpus_in_use_and_a_closed_node_costs_nothing() -> None:
    jobs = [a_job("a", arrival_s=100.0), a_job("b", arrival_s=125.0)]
    meter = Simulation(a_scenario(gpus=2), jobs, Fifo()).run().state.meter
    kwh = (25 * 530 + 25 * 700 + 25 * 530) / 3.6e6
    assert meter.energy_kwh == pytest.approx(kwh)
    assert meter.energy_cost == pytest.approx(kwh * 0.2 * 1.5)


def test_rounds_come_on_events_and_a_period_after_the_last_one() -> None:
    jobs = [a_job("a"), a_job("b", arrival_s=40.0)]
    simulation = Simulation(a_scenario(round_s=30.0), jobs, Edf()).run()
    assert [r.snapshot.now_s for r in simulation.rounds] == [0.0, 30.0, 40.0, 50.0, 80.0, 100.0]
    assert simulation.rounds[1].snapshot.trigger.reasons == ("periodic",)
    assert len({r.snapshot.seed for r in simulation.rounds}) == len(simulation.rounds)


def test_events_of_one_moment_are_answered_by_one_round() -> None:
    simulation = Simulation(a_scenario(gpus=2), [a_job("a"), a_job("b")], Fifo()).run()
    assert [r.snapshot.now_s for r in simulation.rounds] == [0.0, 50.0]


def test_a_job_that_is_not_done_is_late_for_ever_and_one_without_due_date_never() -> None:
    jobs = [a_job("a", due_s=45.0), a_job("b"), a_job("c", due_s=10.0)]
    simulation = Simulation(a_scenario(), jobs, Fifo()).run(until_s=60.0)
    assert [job.tardiness_s for job in simulation.state.jobs.values()] == [5.0, 0.0, inf]


def test_a_failed_round_ends_the_simulation() -> None:
    def policy(snapshot: Snapshot) -> Plan:
        raise PolicyError("no solution")

    with pytest.raises(SimulationError, match="no solution"):
        Simulation(a_scenario(), [a_job("a")], policy).run()


def test_a_launch_does_whole_steps_and_none_after_it_is_asked_to_stop() -> None:
    launch = Launch("a", (), start_s=0.0, start_steps=5, first_step_s=10.0, steps_per_s=0.5)
    assert [launch.steps_at(t) for t in (5.0, 11.9, 12.0, 15.0)] == [5, 5, 6, 7]
    launch.stop_wanted_s = 12.5
    assert launch.steps_at(100.0) == 6
