"""Batch jobs and nodes without GPUs in the simulated world."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import RoundResult
from controlplane.simulation.cluster.meter import Meter
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.nodes import lose_node
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    RankPlacement,
    Snapshot,
    Source,
    Throughput,
)
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_policies import a_batch_job, a_cpu_node, a_job, a_kind, a_node

SECONDS = KindView("batch", throughputs=(Throughput("", 0, 1.0, Source.DECLARED),))
TRAINS = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0})


def lasting(job: str, run_s: float, **fields: Any) -> JobView:
    """A batch job that runs so many seconds: a step for each."""
    steps = {"remaining_steps": run_s, "total_steps": run_s}
    return a_batch_job(job, **{"arrival_s": 0.0, "walltime_s": 2 * run_s, **steps, **fields})


def simulated(
    nodes: list[NodeView], jobs: list[JobView], policy: str = "fifo", **fields: Any
) -> Simulation:
    scenario = Scenario(
        tuple(nodes), (TRAINS, SECONDS), (PriceInterval(0.0, 1e9, 0.2, 1.5),), **fields
    )
    return Simulation(scenario, jobs, registry.make(policy, {}), shortcuts=True).run()


def spans(simulation: Simulation) -> dict[str, list[tuple[float, float]]]:
    jobs = simulation.state.jobs.values()
    return {j.view.id: [(launch.start_s, launch.end_s) for launch in j.launches] for j in jobs}


def test_batch_jobs_run_their_real_time_on_free_cores_one_after_the_other() -> None:
    jobs = [lasting("a", 100.0, cores=4.0), lasting("b", 50.0, cores=4.0, arrival_s=1.0)]
    jobs += [lasting("c", 30.0, cores=4.0, arrival_s=2.0)]
    simulation = simulated([a_cpu_node(cores=8.0)], jobs)
    assert spans(simulation) == {"a": [(0.0, 100.0)], "b": [(1.0, 51.0)], "c": [(51.0, 81.0)]}


def test_a_round_is_held_when_no_gpu_is_free_but_cores_are() -> None:
    nodes = [a_node("n1", "V100", 1), a_cpu_node("c1")]
    jobs = [a_job("trains"), lasting("b", 10.0, arrival_s=5.0)]
    found = spans(simulated(nodes, jobs))
    assert found == {"trains": [(0.0, 50.0)], "b": [(5.0, 15.0)]}


def test_no_policy_is_told_how_long_a_batch_job_really_runs() -> None:
    rounds: list[RoundResult] = simulated([a_cpu_node()], [lasting("a", 100.0)]).rounds
    (job,) = rounds[0].snapshot.jobs
    assert (job.remaining_steps, job.walltime_s) == (1.0, 200.0)


def test_a_node_without_gpus_takes_its_base_power_while_it_works() -> None:
    jobs = [lasting("a", 3600.0, cores=1.0), lasting("b", 3600.0, cores=3.0)]
    simulation = simulated([a_cpu_node(cores=8.0, power_w=(200.0,))], jobs)
    assert simulation.state.meter.energy_kwh == pytest.approx(0.2)


def test_energy_is_split_by_cores_beside_gpus_and_adds_up() -> None:
    node = a_node("n1", "V100", 2, cores=8.0)
    scenario = Scenario((node,), (TRAINS, SECONDS), (PriceInterval(0.0, 1e9, 0.2, 1.5),))
    jobs = [
        a_job("trains", total_steps=7200.0, remaining_steps=7200.0),
        lasting("b", 3600.0, cores=2.0),
    ]
    simulation = Simulation(scenario, jobs, registry.make("fifo", {}), splits_energy=True).run()
    outcome = simulation.outcome("fifo", "two")
    trains, batch = outcome.job_kwh.tolist()
    assert batch == pytest.approx(node.power_w[0] / 1000 * 2 / 8)
    assert trains + batch == pytest.approx(outcome.energy_kwh)


def test_nodes_are_metered_in_the_order_of_the_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats depend on their order, and equal runs must have equal results."""
    nodes = [a_cpu_node(f"c{i}", cores=1.0) for i in range(8)]
    metered: list[str] = []

    def use(self: Meter, now_s: float, node: str, devices: int, *, works: bool) -> None:
        metered.append(node)

    monkeypatch.setattr(Meter, "use", use)
    simulation = simulated(nodes, [lasting("a", 10.0, units=8)])
    seats = [seat.node for seat in simulation.state.journal.ranks[0]]
    assert len(seats) == 8
    assert metered == [*seats, *seats]


def test_units_are_spread_over_nodes_and_too_many_are_reported() -> None:
    nodes = [a_cpu_node("c1", cores=16.0), a_cpu_node("c2", cores=8.0)]
    jobs = [lasting("fits", 10.0, units=3, cores=8.0), lasting("never", 10.0, units=4, cores=8.0)]
    simulation = simulated(nodes, jobs)
    assert list(spans(simulation)) == ["fits", "never"]
    assert spans(simulation)["fits"] == [(0.0, 10.0)]
    assert list(simulation.state.unplaceable) == ["never"]


def test_a_lost_node_begins_its_batch_jobs_again() -> None:
    scenario = Scenario((a_cpu_node("c1"), a_cpu_node("c2")), (SECONDS,), ())
    simulation = Simulation(
        scenario, [lasting("a", 100.0)], registry.make("fifo", {}),
        switches=Switches(checkpoint_every_s=10.0),
    )  # fmt: skip
    simulation.engine.at(50.0, lambda: lose_node(simulation.state, "c1"))
    assert spans(simulation.run()) == {"a": [(0.0, 50.0), (50.0, 150.0)]}


@dataclass(frozen=True)
class NewestFirst:
    """Runs the newest job alone, on a device that is free; the others wait."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        if not snapshot.jobs:
            return Plan("newest", PlanStatus.HEURISTIC)
        newest, *others = sorted(snapshot.jobs, key=lambda job: -job.arrival_s)
        (node,) = snapshot.nodes
        free = next(d.id for d in node.devices if not d.held or d.held[0].job == newest.id)
        placed = Placement(newest.id, (RankPlacement(node.id, (free,)),))
        waiting = tuple(Waiting(job.id, WaitCode.POSTPONED) for job in others)
        return Plan("newest", PlanStatus.HEURISTIC, (placed,), waiting)


@pytest.mark.parametrize(("old", "new"), [(True, False), (False, True), (False, False)])
def test_an_exclusive_job_is_alone_also_while_the_one_before_it_stops(old: bool, new: bool) -> None:
    steps: dict[str, Any] = {"total_steps": 200.0, "remaining_steps": 200.0}
    jobs = [
        a_job("old", arrival_s=0.0, exclusive=old, **steps),
        a_job("new", arrival_s=10.0, exclusive=new, **steps),
    ]
    scenario = Scenario((a_node("n1", "V100", 2),), (TRAINS,), (), stop_s=7.0)
    found = spans(Simulation(scenario, jobs, NewestFirst()).run())
    assert found["new"][0][0] == (17.0 if old or new else 10.0)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "batch", "wide"]), st.integers(0, 40), st.integers(1, 60)
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["fifo", "edf", "cost_search", "max_min_fairness", "gandiva"]),
    st.sampled_from([0.0, 7.0]),
)
def test_in_a_mixed_stream_every_plan_keeps_the_rules_and_every_job_ends_once(
    asked: list[tuple[str, int, int]], policy: str, stop_s: float
) -> None:
    nodes = [a_node("n1", "V100", 2, cores=8.0), a_cpu_node("c1", cores=4.0)]
    jobs = []
    for i, (sort, arrival, seconds) in enumerate(asked):
        at_s, run_s = float(arrival), float(seconds)
        if sort == "train":
            steps: dict[str, Any] = {"total_steps": run_s, "remaining_steps": run_s}
            jobs.append(a_job(f"j{i}", arrival_s=at_s, cores=1.0, **steps))
        else:
            units = 3 if sort == "wide" else 1
            jobs.append(lasting(f"b{i}", run_s, units=units, arrival_s=at_s, cores=2.0))
    simulation = simulated(nodes, jobs, policy, stop_s=stop_s)
    for held in simulation.rounds:
        assert validate_plan(held.plan, held.snapshot) == ()
    ended = [j.completed_s for j in simulation.state.jobs.values()]
    assert None not in ended
    batch = [j for j in simulation.state.jobs.values() if j.view.batch]
    assert all(len(j.launches) == 1 for j in batch)
