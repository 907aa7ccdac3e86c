"""Columns that are made when they are asked for look like any other mapping, and shared ones show
what is the case.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.observation.snapshot_builder import LazyColumns
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import JobView, Snapshot
from policies.gavel.max_min_fairness import MaxMinFairness
from tests.builders_policies import a_job, a_kind, a_node


def counted() -> tuple[LazyColumns[tuple[str, ...]], list[str]]:
    """Columns a and b, and the names of those made so far."""
    made: list[str] = []

    def make(name: str) -> tuple[str, ...]:
        made.append(name)
        return (name,)

    return LazyColumns(("a", "b"), make), made


def test_a_column_is_made_once_and_only_when_it_is_asked_for() -> None:
    columns, made = counted()
    assert len(columns) == 2
    assert "a" in columns
    assert made == []
    assert columns["b"] is columns["b"]
    assert made == ["b"]


def test_whoever_asks_for_all_columns_gets_all_of_them() -> None:
    wanted = {"a": ("a",), "b": ("b",)}
    assert dict(counted()[0].items()) == wanted
    assert {**counted()[0]} == wanted
    assert dict(counted()[0]) == wanted
    assert list(counted()[0]) == ["a", "b"]
    assert list(counted()[0].values()) == [("a",), ("b",)]


def test_there_is_no_column_of_another_name() -> None:
    columns, made = counted()
    assert columns.get("c") is None
    assert columns.get("a") == ("a",)
    with pytest.raises(KeyError, match="c"):
        columns["c"]
    assert made == ["a"]


KIND = a_kind("k", {("V100", 1): 2.0})
stories = st.lists(st.tuples(st.integers(0, 40), st.integers(20, 200)), min_size=2, max_size=6)


def a_simulation(story: list[tuple[int, int]], policy: Policy) -> Simulation:
    """Of jobs that come at these times with these steps to do, more than there are devices, stopped
    and moved in every round.
    """
    jobs = [
        a_job(f"j{i}", arrival_s=float(at), remaining_steps=float(n), weight=1.0 + i)
        for i, (at, n) in enumerate(story)
    ]
    scenario = Scenario((a_node("n1", "V100", 2),), (KIND,), round_s=7.0)
    return Simulation(scenario, jobs, policy, switches=Switches(stop_s=1.5, launch_s=2.0))


@settings(max_examples=20, deadline=None)
@given(stories)
def test_a_snapshot_that_shares_columns_with_the_one_before_is_as_one_that_does_not(
    story: list[tuple[int, int]],
) -> None:
    shared, apart = list[tuple[JobView, ...]](), list[tuple[JobView, ...]]()
    policy = MaxMinFairness()

    def noting(snapshot: Snapshot) -> Plan:
        shared.append(tuple(snapshot.jobs))
        assert [snapshot.jobs.position[job.id] for job in snapshot.jobs] == list(
            range(len(snapshot.jobs))
        )
        return policy(snapshot)

    def forgetting(snapshot: Snapshot) -> Plan:
        apart.append(tuple(snapshot.jobs))
        forgetful.state.builder._last_rows = None  # what is shared from round to round
        return policy(snapshot)

    a_simulation(story, noting).run()
    forgetful = a_simulation(story, forgetting)
    forgetful.run()
    assert shared == apart


@settings(max_examples=20, deadline=None)
@given(stories)
def test_steps_by_column_are_those_of_the_launches(story: list[tuple[int, int]]) -> None:
    policy = MaxMinFairness()

    def looking(snapshot: Snapshot) -> Plan:
        state, now_s = simulation.state, snapshot.now_s
        done = state.table.steps_at(np.arange(state.arrived), now_s)
        for row in range(state.arrived):
            launch = state.launches.get(row)
            assert done[row] == (
                state.table.steps_done[row] if launch is None else launch.steps_at(now_s)
            )
        return policy(snapshot)

    simulation = a_simulation(story, looking)
    simulation.run()
    assert simulation.state.completed == len(story)
