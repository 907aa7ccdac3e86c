"""Rounds of share policies on clusters that are odd: no nodes, two ranks on one, fewer slots."""

from dataclasses import replace

import pytest

from policies.contract.snapshot import (
    JobView,
    PairThroughput,
    RankPlacement,
    Running,
    Snapshot,
    Source,
)
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot

SHARE_POLICIES = ("max_min_fairness", "max_throughput", "makespan", "hierarchical", "fifo_shares")


def running(*ranks: RankPlacement) -> tuple[Running, ...]:
    return (Running(0, ranks, 0.0),)


@pytest.mark.parametrize("name", SHARE_POLICIES)
def test_without_any_node_all_jobs_wait_also_those_that_ran(name: str) -> None:
    lost = a_job("lost", "k", running=running(RankPlacement("gone", ("gpu0",))))
    snapshot = a_snapshot([], [lost, a_job("new", "k")], [a_kind("k")])
    plan = registry.make(name)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert {w.job for w in plan.waiting} == {"lost", "new"}


@pytest.mark.parametrize("kinds", [("k", "other"), ("other", "k")])
@pytest.mark.parametrize("name", SHARE_POLICIES)
def test_a_gang_may_take_the_place_of_a_job_with_two_ranks_on_one_node(
    name: str, kinds: tuple[str, str]
) -> None:
    kind = a_kind("k", {("V100", g): float(g) for g in (1, 2, 4)})
    nodes = [a_node("n1", "V100", 4), a_node("n2", "V100", 2), a_node("n3", "V100", 2)]
    two_ranks = running(RankPlacement("n1", ("gpu0",)), RankPlacement("n1", ("gpu1",)))
    one_rank = running(RankPlacement("n1", ("gpu2", "gpu3")))
    jobs = [
        a_job("s", kinds[0], gpus_min=2, gpus_max=2, running=two_ranks),
        a_job("t", kinds[1], gpus_min=2, gpus_max=2, running=one_rank),
        a_job("big", "k", gpus_min=4, gpus_max=4),
    ]
    snapshot = a_snapshot(nodes, jobs, [kind, replace(kind, id="other")])
    plan = registry.make(name)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert len(plan.placements) >= 2


@pytest.mark.parametrize("name", ["max_min_fairness", "max_throughput", "makespan"])
def test_an_idle_gpu_goes_to_a_job_that_runs_there_though_others_of_its_fastest_type_do_not(
    name: str,
) -> None:
    fast_only, both = {("V100", 1): 2.0}, {("V100", 1): 2.0, ("T4", 1): 1.0}
    jobs = [a_job("c", "A"), a_job("a", "A"), a_job("b", "B", weight=0.0)]
    snapshot = a_snapshot(
        [a_node("n1", "V100", 1), a_node("n2", "T4", 1)],
        jobs,
        [a_kind("A", fast_only), a_kind("B", both)],
    )
    plan = registry.make(name)(snapshot)
    assert {p.job: p.ranks[0].node for p in plan.placements}.get("b") == "n2"


def sharing(jobs: list[JobView], slots: int) -> Snapshot:
    pairs = (PairThroughput("k", "V100", 0.8, 0.8, Source.MEASURED),)
    node = a_node("n1", "V100", devices=(a_device("gpu0", slots=slots),))
    return a_snapshot([node], jobs, [replace(a_kind("k", {("V100", 1): 1.0}), pairs=pairs)])


def test_a_pair_does_not_go_on_where_the_device_has_no_longer_two_slots() -> None:
    half = running(RankPlacement("n1", ("gpu0",), 0.5))
    jobs = [a_job(name, "k", running=half, may_share=True) for name in "ab"]
    policy = registry.make("max_min_fairness", {"form": "sharing"})
    before = policy(sharing(jobs, slots=2))
    assert len(before.placements) == 2
    snapshot = replace(sharing(jobs, slots=1), memory=before.memory, now_s=1050.0)
    after = policy(snapshot)
    assert validate_plan(after, snapshot) == ()
    assert len(after.placements) == 1
