"""A live snapshot simulated to the end of its queue."""

from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import kept
from controlplane.simulation import choices
from controlplane.simulation.ahead import CUT, UNKNOWN_SPEED, Ahead, run_ahead
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation, SimulationError
from policies.baselines.fifo import Fifo
from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import JobView, NodeState, PriceInterval, Snapshot
from policies.host.registry import make
from tests.builders_policies import a_job, a_kind, a_node, a_profile_run, a_snapshot, on
from tests.builders_snapshots import snapshots
from tests.policies.test_contract import FEW

KIND = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0})
NODE = a_node("n1", "V100", 1)
FIFO = Fifo()
FLAT = (PriceInterval(0.0, inf, 0.2, 1.5),)
NAMES = ("cost_search", "fifo", "edf", "priority", "randomized_greedy", "max_min_fairness", "allox")


def keep(snapshot: Snapshot) -> Plan:
    return kept(snapshot, "keep", "")


def ahead(*jobs: JobView, policy: Policy = FIFO, work: float = inf, **fields: Any) -> Ahead:
    given: dict[str, Any] = {"nodes": (NODE,), "kinds": (KIND,), "energy": FLAT, **fields}
    return run_ahead(a_snapshot(jobs=jobs, **given), policy, work=work)


def test_a_running_job_goes_on_and_a_waiting_one_follows() -> None:
    runs = a_job("a", remaining_steps=40.0, running=on("n1", "gpu0", since_s=900.0))
    found = ahead(runs, a_job("b", due_s=1050.0, tardiness_weight=2.0))
    first, second = found.jobs["a"], found.jobs["b"]
    assert (first.start_s, first.end_s, first.nodes, first.gpus) == (900.0, 1020.0, ("n1",), 1)
    assert (second.start_s, second.end_s, second.lateness_cost) == (1020.0, 1070.0, 40.0)
    kwh = NODE.power_w[1] * 70.0 / 3.6e6
    assert found.energy_kwh == pytest.approx(kwh)
    assert found.energy_cost == pytest.approx(kwh * 0.2 * 1.5)
    assert first.energy_cost == pytest.approx(found.energy_cost * 2 / 7)
    assert (found.mean_completion_s, found.worst_slowdown) == (1045.0, 1070.0 / 50.0)
    assert (found.lateness_cost, found.moves, found.is_cut) == (40.0, 0, False)


def test_jobs_submitted_by_a_clock_that_was_ahead_are_there_already() -> None:
    runs = a_job(
        "late", arrival_s=4600.0, remaining_steps=40.0, running=on("n1", "gpu0", since_s=900.0)
    )
    found = ahead(a_job("early"), runs)
    assert (found.jobs["late"].end_s, found.jobs["late"].nodes) == (1020.0, ("n1",))
    assert (found.jobs["early"].start_s, found.jobs["early"].end_s) == (1020.0, 1070.0)
    assert found.mean_completion_s > 0.0


def test_launches_take_the_set_up_of_the_kind_and_restarts_their_cost() -> None:
    kind = a_kind("k", {("V100", 1): 2.0}, setup_s=5.0)
    begun = a_job("a", remaining_steps=50.0, restart_cost_s=30.0)
    found = ahead(begun, a_job("b", restart_cost_s=30.0), kinds=(kind,))
    assert found.jobs["a"].end_s == 1000.0 + 30.0 + 25.0
    assert found.jobs["b"].end_s == 1055.0 + 5.0 + 50.0


def test_a_running_job_of_unknown_speed_keeps_its_device_and_is_named() -> None:
    runs = a_job("a", "new", running=on("n1", "gpu0"))
    found = ahead(runs, a_job("b"), kinds=(KIND, a_kind("new", {})))
    assert (found.jobs["a"].end_s, found.jobs["a"].why) == (None, UNKNOWN_SPEED)
    assert (found.jobs["b"].start_s, found.jobs["b"].end_s) == (None, None)
    assert found.jobs["b"].why


def test_a_waiting_job_of_unknown_speed_stops_no_other() -> None:
    found = ahead(a_job("a", "new"), a_job("b"), kinds=(KIND, a_kind("new", {})))
    assert "no speed of kind new is known" in found.jobs["a"].why
    assert found.jobs["b"].end_s == 1050.0


def test_a_budget_of_work_cuts_the_rest_and_says_so() -> None:
    found = ahead(*(a_job(f"j{i}") for i in range(5)), work=9)
    assert (found.is_cut, found.rounds) == (True, 2)
    assert [j.end_s for j in found.jobs.values()] == [1050.0, 1100.0, None, None, None]
    assert found.jobs["j4"].why == CUT


def test_time_slices_shorter_than_a_step_are_cut_and_do_not_last_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = a_kind("k", {("V100", 1): 1 / 3600})
    jobs = [a_job(name, remaining_steps=1.0) for name in "ab"]
    snapshot = a_snapshot((NODE,), jobs, (kind,), energy=FLAT, round_s=5.0)
    monkeypatch.setattr(choices, "BUDGET_S", 0.5)
    (found,) = choices.compare(snapshot, [choices.Choice("max_min_fairness", {}, 0.0)])
    assert isinstance(found, Ahead)
    assert found.is_cut


def test_a_draining_node_is_empty_in_time_and_a_profile_run_is_over() -> None:
    drained = a_node("n1", "V100", 1, state=NodeState.DRAINING, drain_until_s=1010.0)
    runs = a_job("a", running=on("n1", "gpu0", since_s=990.0))
    profiled = a_job("b", running=(a_profile_run("n2", "gpu0"),))
    found = ahead(runs, profiled, nodes=(drained, a_node("n2", "V100", 1)))
    assert (found.jobs["b"].start_s, found.jobs["b"].end_s) == (1000.0, 1050.0)
    assert found.jobs["a"].end_s == 1050.0 + 40.0


def test_an_empty_queue_has_nothing_ahead() -> None:
    found = ahead()
    assert (found.jobs, found.rounds, found.energy_cost) == ({}, 0, 0.0)


def test_a_policy_that_fails_ends_it() -> None:
    def broken(snapshot: Snapshot) -> Plan:
        raise ValueError("no idea")

    with pytest.raises(SimulationError, match="no idea"):
        ahead(a_job("a"), policy=broken)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(NAMES), snapshot=snapshots())
def test_every_job_ends_or_it_is_said_why_and_nothing_begins_in_the_past(
    name: str, snapshot: Snapshot
) -> None:
    found = run_ahead(snapshot, make(name, FEW.get(name, {})), work=400)
    runs = {job.id for job in snapshot.jobs if job.running}
    assert set(found.jobs) == set(snapshot.jobs.columns.ids)
    for job in found.jobs.values():
        assert (job.end_s is None) == bool(job.why)
        assert job.start_s is None or job.start_s >= snapshot.now_s or job.job in runs
        assert job.end_s is None or (job.start_s is not None and job.end_s >= snapshot.now_s)
    total = sum(job.energy_cost for job in found.jobs.values())
    assert total == pytest.approx(found.energy_cost, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30), st.integers(1, 2)), min_size=1),
    st.integers(91, 300),
    st.sampled_from(["fifo", "edf", "priority"]),
)
def test_from_any_moment_it_comes_to_what_the_simulation_comes_to(
    drawn: list[tuple[int, int, int]], at_s: int, name: str
) -> None:
    jobs = [
        a_job(
            f"j{i}", arrival_s=float(at), remaining_steps=6.0 * steps, total_steps=6.0 * steps,
            gpus_min=gpus, gpus_max=gpus, due_s=200.0, tardiness_weight=0.01 * (i + 1),
        )
        for i, (at, steps, gpus) in enumerate(drawn)
    ]  # fmt: skip
    nodes = (a_node("n1", "V100", 2), a_node("n2", "V100", 1))
    policy = make(name, {})
    simulation = Simulation(Scenario(nodes, (KIND,), FLAT), jobs, policy).run(float(at_s))
    simulation.engine.now_s = float(at_s)
    found = run_ahead(simulation.world.snapshot(), policy)
    simulation.run()
    ends = {job: now.completed_s for job, now in simulation.state.jobs.items()}
    for job in found.jobs.values():
        assert job.end_s == pytest.approx(ends[job.job], abs=1e-6)
