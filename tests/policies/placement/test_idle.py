"""Idle GPUs beside waiting jobs, and why each is idle."""

from typing import Any

import pytest

from controlplane.loop.pages.idle import WORDS
from policies.contract.plan import Expected, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import NodeState, RankPlacement, Snapshot
from policies.placement.waiting.idle import IdleCode, idle_gpus
from tests.builders_policies import a_batch_job, a_job, a_node, a_snapshot


def found(
    snapshot: Snapshot, *waiting: Waiting, placed: tuple[Placement, ...] = ()
) -> list[tuple[str, int, str, float | None]]:
    plan = Plan("told", PlanStatus.HEURISTIC, placed, waiting)
    return [(i.code.value, i.gpus, i.job, i.start_s) for i in idle_gpus(plan, snapshot)]


def waits(job: str, code: WaitCode = WaitCode.NO_CAPACITY) -> Waiting:
    return Waiting(job, code)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], IdleCode]] = {
    "a policy that lets it wait": ({}, {}, IdleCode.LEFT_FREE),
    "a job of more GPUs": ({}, {"gpus_min": 3, "gpus_max": 3}, IdleCode.UNSUITABLE),
    "memory that others hold": ({"memory_gb": 32.0}, {"memory_gb": 20.0}, IdleCode.TOO_LITTLE),
    "GPUs that others hold": ({}, {"gpus_min": 2, "gpus_max": 2}, IdleCode.TOO_FEW_GPUS),
    "a type that it may not use": ({"gpu_type": "T4"}, {}, IdleCode.UNSUITABLE),
}


@pytest.mark.parametrize("case", CASES)
def test_an_idle_gpu_has_the_cause_of_the_job_that_is_nearest_to_a_start(case: str) -> None:
    node, job, code = CASES[case]
    jobs = [a_job("a", memory_gb=20.0), a_job("j", **{"allowed_types": ("V100",), **job})]
    snapshot = a_snapshot([a_node("n1", **node)], jobs)
    placed = (Placement("a", (RankPlacement("n1", ("gpu0",)),)),)
    assert found(snapshot, waits("j"), placed=placed) == [(code.value, 1, "j", None)]


def test_gpus_are_reserved_for_the_jobs_expected_on_their_node_first() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=4)], [a_job("j"), a_job("k")])
    later = Waiting("j", WaitCode.POSTPONED, expected=Expected(2000.0, None, ("n1",), 3))
    assert found(snapshot, later, waits("k")) == [
        ("reserved", 3, "j", 2000.0),
        ("left_free", 1, "j", None),
    ]


def test_jobs_that_need_no_gpu_make_none_idle() -> None:
    nodes = [a_node("n1", gpus=2, cores=4.0)]
    snapshot = a_snapshot(nodes, [a_batch_job("b"), a_job("j")])
    later = Waiting("b", WaitCode.NO_CAPACITY, expected=Expected(2000.0, None, ("n1",), 0))
    assert found(snapshot, later) == []
    assert found(snapshot, later, waits("j")) == [("left_free", 2, "j", None)]


def test_a_power_cap_is_named() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=1)], [a_job("j")], power_cap_w=100.0)
    assert found(snapshot, waits("j", WaitCode.POWER_CAP)) == [("power_cap", 1, "j", None)]


def test_a_job_that_is_measured_first_is_named() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=1)], [a_job("j")])
    assert found(snapshot, waits("j", WaitCode.AWAITING_PROFILE)) == [
        ("measured_first", 1, "j", None)
    ]


def test_no_gpu_counts_without_a_waiting_job_on_a_closed_node_or_beside_dependencies() -> None:
    snapshot = a_snapshot([a_node("n1")], [a_job("j")])
    closed = a_snapshot([a_node("n1", state=NodeState.CORDONED)], [a_job("j")])
    assert found(snapshot) == []
    assert found(closed, waits("j")) == []
    assert found(snapshot, waits("j", WaitCode.DEPENDENCY)) == []


def test_every_cause_has_words() -> None:
    assert set(WORDS) == {code.value for code in IdleCode}
