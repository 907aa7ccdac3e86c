"""Gavel's rounds where two jobs share a device: turns of pairs, and who is left alone."""

from typing import Any

import pytest

from policies.contract.snapshot import PairThroughput, Snapshot, Source
from policies.contract.validation import validate_plan
from policies.gavel.allocation.observe import GroupingOptions
from tests.builders_policies import a_device, a_job, a_node, a_snapshot
from tests.builders_rounds import GivenShares, after
from tests.policies.gavel.rounds.test_rounds import ROUND_S, kinds, parts, run_rounds


def sharing(*jobs: Any) -> Snapshot:
    """Jobs that may share a V100, a and b unless others are given; kinds of the same names lose a
    quarter beside each other.
    """
    beside = PairThroughput("b", "V100", 3.0, 3.0, Source.MEASURED)
    known = [*kinds("a", pairs=(beside,)), *kinds("b")]
    given = jobs or tuple(a_job(kind, kind, may_share=True) for kind in "ab")
    return a_snapshot([a_node("v", "V100", devices=(a_device(slots=2),))], given, known)


PAIRED = GroupingOptions(pairs=True)


def test_two_jobs_share_a_device_half_and_half_and_go_on_so() -> None:
    snapshot, policy = sharing(), GivenShares({"a+b": {"V100": 1.0}}, PAIRED)
    plan = policy(snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert [(p.job, p.ranks[0].devices, p.ranks[0].share) for p in plan.placements] == [
        ("a", ("gpu0",), 0.5),
        ("b", ("gpu0",), 0.5),
    ]
    assert [p.predicted_run_s for p in plan.placements] == pytest.approx([100.0 / 3.0] * 2)
    later = after(snapshot, plan, ROUND_S)
    assert [p.ranks for p in policy(later).placements] == [
        job.running[0].ranks for job in later.jobs
    ]
    assert plan.shares == {"a": {"V100": 1.0}, "b": {"V100": 1.0}}


def test_time_alone_and_time_beside_others_come_near_their_shares() -> None:
    jobs = [
        *(a_job(f"a{i}", "a", may_share=True) for i in range(2)),
        a_job("b", "b", may_share=True),
    ]
    snapshot = sharing(*jobs)
    plans = run_rounds(
        GivenShares({"a": {"V100": 0.4}, "a+b": {"V100": 0.6}}, PAIRED), snapshot, 40
    )
    alone = [plan for plan in plans if len(plan.placements) == 1]
    assert len(alone) / len(plans) == pytest.approx(0.4, abs=0.05)
    assert {p.job for plan in alone for p in plan.placements} == {"a0", "a1"}
    assert parts(plans, snapshot)["b", "V100"] == pytest.approx(0.3, abs=0.03)


def test_who_is_left_alone_on_a_device_goes_on_there_untouched() -> None:
    snapshot, policy = sharing(), GivenShares({"a": {"V100": 1.0}, "a+b": {"V100": 1.0}}, PAIRED)
    paired = GivenShares({"a+b": {"V100": 1.0}}, PAIRED)(snapshot)
    for elapsed_s in (100.0, ROUND_S):
        left = after(snapshot, paired, elapsed_s, gone=("b",))
        plan = policy(left)
        assert validate_plan(plan, left) == ()
        assert plan.placements[0].ranks is left.jobs[0].running[0].ranks


def test_a_waiting_job_joins_one_that_is_left_alone_on_a_device() -> None:
    snapshot, policy = sharing(), GivenShares({"a+b": {"V100": 1.0}}, PAIRED)
    left = after(
        snapshot, policy(snapshot), 100.0, gone=("b",), new=(a_job("b2", "b", may_share=True),)
    )
    plan = policy(left)
    assert validate_plan(plan, left) == ()
    assert [(p.job, p.ranks[0].share) for p in plan.placements] == [("a", 0.5), ("b2", 0.5)]
    assert plan.placements[0].ranks is left.jobs[0].running[0].ranks
