"""Leaving out work must change nothing: runs with and without shortcuts come to the same."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.world.observation.queue_window import queue_window
from controlplane.simulation.world.run import Simulation
from controlplane.simulation.world.shortcuts import may_hide_running
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.baselines.edf import Edf
from policies.baselines.fifo import Fifo
from policies.baselines.priority import Priority
from policies.batch.backfilling import Backfilling
from policies.contract.policy import Policy
from policies.contract.snapshot import JobColumns, JobView, PowerCapStep, PriceInterval
from tests.builders_policies import a_job, a_kind, a_node

POLICIES: tuple[Policy, ...] = (Fifo(), Edf(), Priority(by="weight"))
KINDS = (
    a_kind(
        "k", {("V100", 1): 1.0, ("V100", 2): 1.7, ("V100", 4): 3.0, ("T4", 1): 0.4, ("T4", 2): 0.7}
    ),
    a_kind("l", {("V100", 1): 0.5, ("V100", 2): 0.6, ("T4", 1): 0.5}),
)


def a_scenario(**fields: Any) -> Scenario:
    nodes = (
        a_node("n1", "V100", 2),
        a_node("n2", "V100", 4),
        a_node("n3", "T4", 2),
        a_node("n4", "V100", 2),
    )
    return Scenario(
        nodes,
        KINDS,
        (PriceInterval(0.0, 500.0, 0.2, 1.5), PriceInterval(500.0, inf, 0.1, 1.5)),
        **fields,
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[JobView]:
    """Up to thirty jobs that come in bursts, rigid and elastic, some with few types, with due dates
    from hopeless to none.
    """
    jobs, now_s = [], 0.0
    for i in range(draw(st.integers(1, 30))):
        now_s += draw(st.sampled_from([0.0, 0.0, 1.0, 7.5, 60.0, 400.0]))
        least = draw(st.sampled_from([1, 1, 1, 2, 4]))
        steps = float(draw(st.integers(1, 200)))
        jobs.append(
            a_job(
                f"j{i}",
                "k" if least == 4 else draw(st.sampled_from(["k", "l"])),
                arrival_s=now_s,
                remaining_steps=steps,
                total_steps=steps,
                gpus_min=least,
                gpus_max=max(least, draw(st.integers(1, 4))),
                due_s=draw(st.sampled_from([inf, now_s + 10.0, now_s + 150.0, now_s + 1000.0])),
                tardiness_weight=draw(st.sampled_from([0.0, 0.001, 0.01])),
                priority=draw(st.integers(0, 3)),
                allowed_types=draw(st.sampled_from([(), (), ("V100",)])),
            )
        )
    return jobs


def what_happened(simulation: Simulation) -> tuple[list[object], float]:
    journal = simulation.state.journal
    return list(
        zip(journal.row, journal.ranks, journal.start_s, journal.end_s, strict=True)
    ), simulation.state.meter.energy_cost


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@settings(max_examples=10, deadline=None)
@given(jobs=workloads())
def test_showing_the_queue_alone_and_leaving_out_idle_rounds_changes_no_assignment(
    policy: Policy, jobs: list[JobView]
) -> None:
    whole = Simulation(a_scenario(), jobs, policy, shortcuts=False).run()
    short = Simulation(a_scenario(), jobs, policy, shortcuts=True).run()
    assert short.state.shows_queue_only
    assert what_happened(short)[0] == what_happened(whole)[0]
    assert what_happened(short)[1] == pytest.approx(what_happened(whole)[1])
    assert short.round_count + short.rounds_skipped <= whole.round_count


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
@settings(max_examples=10, deadline=None)
@given(jobs=workloads())
def test_leaving_out_rounds_without_a_waiting_job_changes_no_assignment(
    backfill: str, jobs: list[JobView]
) -> None:
    policy = Backfilling(backfill=backfill)
    whole = Simulation(a_scenario(), jobs, policy, shortcuts=False).run()
    short = Simulation(a_scenario(), jobs, policy, shortcuts=True).run()
    assert not short.state.shows_queue_only
    assert what_happened(short) == what_happened(whole)


@settings(max_examples=10, deadline=None)
@given(jobs=workloads())
def test_shortcuts_change_nothing_while_nodes_and_jobs_fail(jobs: list[JobView]) -> None:
    switches = Switches(
        node_failures_per_day=300.0,
        node_repair_s=100.0,
        job_failure_probability=0.3,
        checkpoint_every_s=10.0,
        profiling_s=5.0,
    )
    whole = Simulation(a_scenario(), jobs, Fifo(), switches=switches).run()
    short = Simulation(a_scenario(), jobs, Fifo(), switches=switches, shortcuts=True).run()
    assert what_happened(short)[0] == what_happened(whole)[0]


def columns(**fields: Any) -> JobColumns:
    return JobColumns.of([a_job("a"), a_job("b", **fields)])


def test_what_runs_is_hidden_only_from_policies_that_decide_about_the_queue_alone() -> None:
    assert may_hide_running(a_scenario(), columns(), Fifo(), NO_SWITCHES)
    assert not may_hide_running(a_scenario(), columns(), RandomizedGreedy(), NO_SWITCHES)


@pytest.mark.parametrize(
    "fields", [{"power_cap_w": 1000.0}, {"power_caps": (PowerCapStep(0.0, 10.0, 500.0),)}]
)
def test_what_runs_is_shown_under_a_power_cap(fields: dict[str, Any]) -> None:
    assert not may_hide_running(a_scenario(**fields), columns(), Fifo(), NO_SWITCHES)


@pytest.mark.parametrize(
    "fields", [{"dependencies": ("a",)}, {"resources": (("fpga", 1.0),)}, {"cores": inf}]
)
def test_what_runs_is_shown_where_it_matters_to_those_that_wait(fields: dict[str, Any]) -> None:
    scenario = a_scenario()
    roomless = Scenario(
        tuple(a_node(n.id, n.gpu_type, len(n.devices), cores=8.0) for n in scenario.nodes),
        scenario.kinds,
    )
    assert not may_hide_running(roomless, columns(**fields), Fifo(), NO_SWITCHES)


def test_what_runs_is_shown_while_decisions_take_time() -> None:
    assert not may_hide_running(a_scenario(), columns(), Fifo(), Switches(decision_s=1.0))


def test_a_window_of_the_queue_keeps_the_oldest_the_most_urgent_and_moves_on() -> None:
    due_s = np.array([100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0])
    queue = list(range(10))
    assert list(queue_window(queue, 10, 1, due_s)) == queue
    seen = [set(queue_window(queue, 4, number, due_s)) for number in range(7)]
    assert all({0, 1, 9} <= s and len(s) == 4 for s in seen)
    assert set.union(*seen) == set(queue)


def test_rounds_that_are_gathered_come_no_sooner_than_that_after_the_last_one() -> None:
    jobs = [a_job(f"j{i}", arrival_s=3.0 * i) for i in range(20)]
    simulation = Simulation(a_scenario(gather_s=10.0), jobs, Fifo()).run()
    at_s = [r.snapshot.now_s for r in simulation.rounds]
    assert at_s[:3] == [0.0, 10.0, 20.0]
    assert np.diff(at_s).min() >= 10.0
    assert simulation.state.completed == 20


def test_a_round_sees_no_more_of_the_queue_than_it_may_and_everything_that_runs() -> None:
    jobs = [a_job(f"j{i}") for i in range(60)]
    simulation = Simulation(a_scenario(round_jobs=8), jobs, RandomizedGreedy(iterations=1)).run()
    shown = [
        (len(r.snapshot.jobs), sum(bool(j.running) for j in r.snapshot.jobs))
        for r in simulation.rounds
    ]
    assert max(seen - running for seen, running in shown) == 8
    assert max(running for _, running in shown) >= 8
    assert simulation.state.completed == 60
