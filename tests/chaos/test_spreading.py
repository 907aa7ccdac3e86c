"""The drill's own policy: a rank a node, and two jobs on a GPU if both may share it."""

from collections import Counter
from dataclasses import replace

from experiments.chaos.jobs.spreading import OneRankANode
from policies.contract.labels import apart_label
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from policies.contract.validation import validate_plan
from policies.contract.views import DeviceView, NodeView
from tests.builders_policies import a_device, a_job, a_node, a_snapshot

DEVICES = tuple(a_device(name, slots=2) for name in ("gpu0", "gpu1"))


def nodes(count: int, devices: tuple[DeviceView, ...] = DEVICES) -> tuple[NodeView, ...]:
    return tuple(a_node(f"n{number}", devices=devices) for number in range(count))


def decided(snapshot: Snapshot) -> Plan:
    plan = OneRankANode()(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return plan


def test_a_gang_has_each_rank_on_a_node_of_its_own() -> None:
    gang = a_job("g", gpus_min=2, gpus_max=2)
    plan = decided(a_snapshot(nodes=nodes(2), jobs=(gang,)))
    assert {seat.node for seat in plan.placements[0].ranks} == {"n0", "n1"}
    assert not decided(a_snapshot(nodes=nodes(1), jobs=(gang,))).placements


def test_two_jobs_share_a_gpu_and_a_third_gets_another_one() -> None:
    jobs = [a_job(name, may_share=True) for name in "abc"]
    plan = decided(a_snapshot(nodes=nodes(1), jobs=(*jobs, a_job("alone"))))
    seats = {placed.job: placed.ranks[0] for placed in plan.placements}
    assert seats.keys() == {"a", "b", "c"}, "the one that shares with nobody waits"
    assert Counter(seat.devices for seat in seats.values()) == {("gpu0",): 2, ("gpu1",): 1}


def test_a_gpu_of_one_slot_is_shared_by_nobody() -> None:
    jobs = tuple(a_job(name, may_share=True) for name in "ab")
    plan = decided(a_snapshot(nodes=nodes(1, (a_device("gpu0"),)), jobs=jobs))
    assert len(plan.placements) <= 1


def test_a_node_that_a_job_should_avoid_does_not_spoil_the_plan() -> None:
    avoiding = a_job("a", labels=(apart_label("n0"),))
    two = tuple(replace(n, labels=(apart_label("n0"),) * (n.id == "n1")) for n in nodes(2))
    plan = decided(a_snapshot(nodes=two, jobs=(avoiding, a_job("b"))))
    assert {placed.job for placed in plan.placements} == {"a", "b"}
