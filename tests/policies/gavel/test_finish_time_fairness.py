"""Finish-time fairness by the snapshot: who has waited has more, and what 1/n of the cluster was is
remembered.
"""

from dataclasses import replace

import pytest

from policies.contract.snapshot import JobView, Snapshot
from policies.gavel.finish_time_fairness import FinishTimeFairness
from tests.builders_colocation import after
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot

KINDS = [a_kind("k", {("V100", 1): 1.0})]
NEW = 1000.0


def one_gpu(*jobs: JobView) -> Snapshot:
    return a_snapshot([a_node(gpus=1)], jobs, KINDS)


def test_jobs_that_come_in_together_end_as_if_each_had_its_part_of_the_cluster() -> None:
    plan = FinishTimeFairness()(one_gpu(a_job("a", arrival_s=NEW), a_job("b", arrival_s=NEW)))
    assert plan.objective == pytest.approx(1.0, rel=1e-5)
    assert plan.shares == {job: {"V100": pytest.approx(0.5, abs=1e-5)} for job in "ab"}


def test_who_has_waited_has_more_so_that_both_end_as_much_later_than_alone() -> None:
    shares = FinishTimeFairness()(
        one_gpu(a_job("waited", arrival_s=900.0), a_job("new", arrival_s=NEW))
    ).shares
    waited, new = (shares[job]["V100"] for job in ("waited", "new"))
    assert waited > new + 0.1
    assert (100.0 + 100.0 / waited) / 200.0 == pytest.approx((100.0 / new) / 200.0, rel=1e-4)


def test_what_was_done_counts_at_the_part_of_the_cluster_that_there_was_then() -> None:
    alone = one_gpu(a_job("a", arrival_s=NEW, remaining_steps=1000.0, total_steps=1000.0))
    plan = FinishTimeFairness()(alone)
    later = after(alone, plan, 300.0, more=[a_job("b", arrival_s=NEW + 300.0)])
    done = [replace(job, remaining_steps=700.0) if job.id == "a" else job for job in later.jobs]
    later = a_snapshot(later.nodes, done, KINDS, now_s=later.now_s, memory=later.memory)
    found = FinishTimeFairness()(later)
    assert found.memory["notes"]["isolated"]["a"] == pytest.approx(
        [300.0, 700.0, 0.5]
    )  # alone, 300 steps took 300 s
    forgotten = FinishTimeFairness()(replace(later, memory={}))
    assert forgotten.memory["notes"]["isolated"]["a"] == pytest.approx(
        [600.0, 700.0, 0.5]
    )  # beside another they would take 600 s
    rho = (300.0 + 700.0 / found.shares["a"]["V100"]) / (300.0 + 700.0 / 0.5)
    assert rho == pytest.approx(found.objective, rel=1e-4)


def test_what_others_remember_is_not_taken_for_its_own() -> None:
    snapshot = one_gpu(a_job("a", arrival_s=NEW))
    other = FinishTimeFairness(fill=False)(snapshot).memory
    foreign = {**other, "notes": {"isolated": {"a": [9e9, 100.0, 1.0]}}}
    assert FinishTimeFairness()(replace(snapshot, memory=foreign)).memory["notes"]["isolated"][
        "a"
    ] == [0.0, 100.0, 1.0]


def test_jobs_that_are_gone_are_forgotten() -> None:
    snapshot = one_gpu(a_job("a"), a_job("b"))
    later = after(snapshot, FinishTimeFairness()(snapshot), 300.0, without=("a",))
    assert list(FinishTimeFairness()(later).memory["notes"]["isolated"]) == ["b"]
