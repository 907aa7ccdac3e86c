"""Simulated rounds of ended stops carry out the plan that asked for the stops, so that a policy
that draws lots does not flap.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest

from controlplane.loop.changes import Start, key_of
from controlplane.loop.rounds import ENDED_STOP, RoundResult
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import PriceInterval, RankPlacement, Snapshot
from tests.builders_policies import a_job, a_kind, a_node

JOBS = [a_job("a"), a_job("b"), a_job("c", arrival_s=7.0), a_job("d", arrival_s=31.0)]


def by_lot(snapshot: Snapshot) -> Plan:
    """A policy that gives the only device to another job at every call."""
    able = list(snapshot.jobs) if snapshot.nodes[0].takes_training else []
    chosen = [able[snapshot.seed % len(able)].id] if able else []
    waiting = tuple(
        Waiting(job.id, WaitCode.POSTPONED) for job in snapshot.jobs if job.id not in chosen
    )
    return Plan(
        "by_lot",
        PlanStatus.HEURISTIC,
        tuple(Placement(job, (RankPlacement("n1", ("gpu0",)),)) for job in chosen),
        waiting,
    )


def a_run(stop_s: float = 2.0, switches: Switches = NO_SWITCHES) -> Simulation:
    scenario = Scenario(
        (a_node("n1", "V100", 1),),
        (a_kind("k", {("V100", 1): 2.0}),),
        (PriceInterval(0.0, inf, 0.2, 1.5),),
    )
    return Simulation(
        replace(scenario, stop_s=stop_s, round_s=10.0, seed=3), JOBS, by_lot, switches=switches
    ).run()


def asked_for_by_stops(rounds: Iterable[RoundResult]) -> list[RoundResult]:
    return [r for r in rounds if r.snapshot.trigger.reasons == (ENDED_STOP,)]


def test_a_policy_that_draws_lots_starts_whom_it_stopped_another_one_for() -> None:
    simulation = a_run()
    found = asked_for_by_stops(simulation.rounds)
    assert len(found) > 3, "the lots must have somebody stopped, or this shows nothing"
    for result in found:
        before = next(
            r for r in reversed(simulation.rounds) if r.snapshot.seed == result.snapshot.seed - 1
        )
        assert result.carried is not None
        assert result.plan.placements == before.plan.placements
        assert {key_of(c) for c in result.applied.changes if isinstance(c, Start)} == {
            r.key for r in before.applied.rejected
        }


def test_stops_that_take_no_time_need_no_round_of_their_own_and_change_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = a_run(stop_s=0.0)
    monkeypatch.setattr(
        "controlplane.simulation.world.run.stops_at_once", lambda scenario, switches: False
    )
    one_by_one = a_run(stop_s=0.0)
    assert len(asked_for_by_stops(one_by_one.rounds)) > 3, (
        "the lots must have somebody stopped, or this shows nothing"
    )
    assert asked_for_by_stops(at_once.rounds) == []
    assert not any(r.applied.rejected for r in at_once.rounds)
    assert at_once.state.jobs == one_by_one.state.jobs


@pytest.mark.parametrize("switches", [Switches(decision_s=1.0), Switches(decision_per_job_s=0.1)])
def test_where_rounds_take_time_stops_have_rounds_of_their_own(switches: Switches) -> None:
    assert asked_for_by_stops(a_run(stop_s=0.0, switches=switches).rounds)


def test_the_number_is_that_of_the_round_that_decided() -> None:
    simulation = a_run()
    numbers = {r.snapshot.seed - 3: r for r in simulation.rounds}
    for result in asked_for_by_stops(simulation.rounds):
        assert result.carried is not None
        decided = numbers[result.carried]
        assert decided.carried is None
        assert result.plan.message == f"carried out round {result.carried}'s plan"


def test_every_job_is_done_under_a_policy_that_draws_lots() -> None:
    assert all(job.completed_s is not None for job in a_run().state.jobs.values())


def test_lost_nodes_and_failed_launches_are_decided_anew() -> None:
    simulation = a_run(
        switches=Switches(
            job_failure_probability=0.5, node_failures_per_day=200.0, node_repair_s=20.0
        )
    )
    others = [
        r
        for r in simulation.rounds
        if set(r.snapshot.trigger.reasons) & {"failure", "node_lost", "node_joined"}
    ]
    assert others, "something must have failed"
    assert all(r.carried is None for r in others)
