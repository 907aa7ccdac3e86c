"""A launch stays for its least run time, unless a priority or a due date requires its GPUs."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from policies.contract.snapshot import JobView, Snapshot
from policies.contract.views import waiting_cost
from policies.placement.from_snapshot import cluster_of, launches_that_stay
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

KINDS = [a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.6, ("T4", 1): 0.4})]


def young(name: str, *devices: str, since_s: float = 900.0, **fields: Any) -> JobView:
    """A job launched 100 s ago that is to run for 400 s."""
    running = on("v", *devices, since_s=since_s)
    return a_job(name, min_run_s=400.0, running=running, remaining_steps=5000.0, **fields)


def staying(*jobs: JobView, nodes: int = 1) -> set[str]:
    """Which launches stay on a node of two V100s (and idle T4s beside it)."""
    seats = [a_node("v", "V100", 2), *(a_node(f"t{i}", "T4", 1) for i in range(1, nodes))]
    return those_of(a_snapshot(seats, jobs, KINDS))


def those_of(snapshot: Snapshot) -> set[str]:
    rows = launches_that_stay(snapshot, {}, cluster_of(snapshot))
    return {snapshot.jobs[row].id for row in rows}


BOTH = young("a", "gpu0"), young("b", "gpu1", since_s=950.0)


def test_launches_stay_for_their_least_run_time_and_no_longer() -> None:
    assert staying(*BOTH, a_job("w")) == {"a", "b"}
    assert staying(young("a", "gpu0", since_s=600.0), a_job("w")) == set()


def test_without_a_least_run_time_only_a_launch_of_this_moment_stays() -> None:
    jobs = [replace(job, min_run_s=0.0) for job in BOTH]
    assert staying(*jobs) == set()
    assert staying(replace(jobs[0], running=on("v", "gpu0", since_s=1000.0)), jobs[1]) == {"a"}


def test_a_higher_priority_ends_the_youngest_launch_of_the_lowest_priority() -> None:
    assert staying(*BOTH, a_job("w", priority=1)) == {"a"}
    assert staying(BOTH[0], replace(BOTH[1], priority=1), a_job("w", priority=1)) == {"b"}
    assert staying(*BOTH, a_job("w", gpus_min=2, gpus_max=2, priority=1)) == set()
    assert staying(*BOTH, a_job("w", priority=-1)) == {"a", "b"}


def test_a_job_that_fits_elsewhere_ends_no_launch() -> None:
    assert staying(*BOTH, a_job("w", priority=1), nodes=2) == {"a", "b"}
    jobs = [a_job(f"w{i}", priority=1) for i in range(2)]
    assert staying(*BOTH, *jobs, nodes=2) == {"a"}
    assert staying(BOTH[0], young("old", "gpu1", since_s=0.0), jobs[0]) == {"a"}


@pytest.mark.parametrize(
    ("slack_s", "ends"), [(inf, False), (500.0, False), (380.0, True), (100.0, True), (99.0, False)]
)
def test_a_due_date_ends_a_launch_only_if_it_would_be_missed_by_waiting(
    slack_s: float, *, ends: bool
) -> None:
    """100 s of work on a V100: 300 s more are left of both least run times, or of the round."""
    waits = a_job("w", due_s=1000.0 + slack_s, tardiness_weight=1.0)
    assert staying(*BOTH, waits) == ({"a"} if ends else {"a", "b"})
    assert staying(*BOTH, replace(waits, due_s=inf, deadline_s=waits.due_s)) == (
        {"a"} if ends else {"a", "b"}
    )
    assert staying(*(replace(job, priority=1) for job in BOTH), waits) == {"a", "b"}


def test_idle_gpus_that_are_too_slow_for_the_due_date_do_not_help() -> None:
    waits = a_job("w", due_s=1200.0, tardiness_weight=1.0)
    assert staying(*BOTH, waits, nodes=2) == {"a"}
    assert staying(*BOTH, replace(waits, due_s=1260.0), nodes=2) == {"a", "b"}


def test_waiting_costs_by_team_and_priority_within_limits() -> None:
    assert waiting_cost(3.6) == pytest.approx(0.001)
    assert waiting_cost(3.6, 2.0, 3) == pytest.approx(0.016)
    assert waiting_cost(3.6, 1.0, 10**9) == waiting_cost(3.6, 1.0, 10) == pytest.approx(1.024)
    assert waiting_cost(3.6, 1.0, -(10**9)) == waiting_cost(3.6, 1.0, -10)
    assert waiting_cost(0.0, 5.0, 10) == 0.0
