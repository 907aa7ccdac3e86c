"""Batch jobs and jobs without GPUs in a live snapshot that is simulated to the end of its queue."""

from math import inf
from typing import Any

import pytest

from controlplane.simulation.ahead import (
    BEHIND_UNKNOWN,
    UNKNOWN_RUN_TIME,
    Ahead,
    run_ahead,
)
from policies.contract.snapshot import JobView, PriceInterval
from policies.host.registry import make
from tests.builders_policies import a_batch_job, a_cpu_node, a_job, a_kind, a_node, a_snapshot, on

FLAT = (PriceInterval(0.0, inf, 0.2, 1.0),)
NODES = (a_cpu_node("c1", cores=8.0), a_node("n1", "V100", 1, cores=2.0))
POLICIES = ("backfilling", "fifo", "edf", "priority", "cost_search", "max_min_fairness")


def ahead(*jobs: JobView, policy: str = "backfilling", **fields: Any) -> Ahead:
    """The rest of a queue from second 1000 on."""
    kinds = (a_kind("k", {("V100", 1): 2.0}), a_kind("batch"))
    given: dict[str, Any] = {"nodes": NODES, "kinds": kinds, "energy": FLAT, **fields}
    return run_ahead(a_snapshot(jobs=jobs, **given), make(policy), work=2_000)


def runs(job: str = "runs", since_s: float = 900.0, **fields: Any) -> JobView:
    return a_batch_job(job, cores=8.0, running=on("c1", since_s=since_s), **fields)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_job_waits_for_the_expected_end_of_the_one_that_runs(policy: str) -> None:
    found = ahead(
        runs(expected_run_s=300.0, expected_source="last_two"),
        a_batch_job("waits", cores=8.0, expected_run_s=50.0, arrival_s=950.0),
        a_job("trains", remaining_steps=100.0),
        policy=policy,
    )
    assert found.jobs["runs"].end_s == 1200.0
    waits = found.jobs["waits"]
    assert waits.start_s is not None
    assert 1200.0 <= waits.start_s <= 1500.0, "at the end, or at the next round"
    assert waits.end_s == waits.start_s + 50.0
    assert waits.nodes == ("c1",)
    assert found.jobs["trains"].end_s == 1050.0, "its speed is known as ever"


def test_a_job_without_gpus_runs_for_what_is_expected_of_it() -> None:
    job = a_job("plain", gpus_min=0, gpus_max=0, cores=1.0, kind="k", expected_run_s=70.0)
    found = ahead(job)
    assert (found.jobs["plain"].start_s, found.jobs["plain"].end_s) == (1000.0, 1070.0)


def test_the_walltime_ends_what_would_run_longer_and_counts_where_nothing_is_expected() -> None:
    found = ahead(
        a_batch_job("short", walltime_s=40.0, expected_run_s=500.0),
        a_batch_job("plain", walltime_s=90.0),
    )
    assert found.jobs["short"].end_s == 1040.0
    assert found.jobs["plain"].end_s == 1090.0


def test_a_job_that_outlived_what_was_expected_goes_on_for_a_part_of_it() -> None:
    found = ahead(runs(since_s=0.0, expected_run_s=500.0), a_batch_job("waits", cores=8.0))
    assert found.jobs["runs"].end_s == 1050.0
    assert found.jobs["waits"].start_s == 1050.0


def test_an_unknown_run_time_leaves_the_jobs_behind_it_without_a_start_and_says_why() -> None:
    found = ahead(
        runs(walltime_s=inf),
        a_batch_job("waits", cores=8.0, arrival_s=950.0),
        a_job("trains", remaining_steps=100.0),
    )
    assert (found.jobs["runs"].end_s, found.jobs["runs"].why) == (None, UNKNOWN_RUN_TIME)
    assert (found.jobs["waits"].start_s, found.jobs["waits"].why) == (None, BEHIND_UNKNOWN)
    assert found.jobs["trains"].end_s == 1050.0
    assert not found.is_cut


def test_a_waiting_job_of_unknown_run_time_has_a_start_and_no_end() -> None:
    found = ahead(a_batch_job("open", cores=8.0, walltime_s=inf))
    assert (found.jobs["open"].start_s, found.jobs["open"].end_s) == (1000.0, None)
    assert found.jobs["open"].why == UNKNOWN_RUN_TIME
