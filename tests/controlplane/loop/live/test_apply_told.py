"""Applying a plan tells jobs why they wait: where that has changed, by batches, and only while the
round has its lock.
"""

from datetime import datetime
from typing import Any

import pytest
from django.db.models import F

from clusters.events import request_reschedule
from clusters.models import Cluster, Node, Reason
from controlplane.loop.live import record, world
from controlplane.loop.live.apply import Prepared, apply_plan
from controlplane.loop.rounds import Applied
from jobs.models import Dependency, Job
from policies.contract.plan import Expected, Plan, PlanStatus, WaitCode, Waiting
from tests.builders import a_job
from tests.builders_live import (
    a_round,
    a_round_of_waiting_events,
    placing,
)

pytestmark = pytest.mark.django_db


def test_jobs_are_told_why_they_wait_and_only_where_that_has_changed(
    cluster: Cluster, node: Node
) -> None:
    waits = a_job(cluster, name="waits", labels=["ib"])
    same = a_job(cluster, name="same", waiting_code="postponed")
    reasons = (
        Waiting(str(waits.pk), WaitCode.LABEL_UNAVAILABLE, missing=("ib",), expected=Expected(5.0)),
        Waiting(str(same.pk), WaitCode.POSTPONED),
    )
    a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, waiting=reasons))
    waits.refresh_from_db()
    same.refresh_from_db()
    assert (waits.waiting_code, waits.waiting_detail) == ("label_unavailable", {"missing": ["ib"]})
    assert (same.waiting_code, same.waiting_detail) == ("postponed", {})


def test_a_false_reason_is_replaced_by_a_true_one(cluster: Cluster, node: Node) -> None:
    waits = a_job(cluster, labels=["ib"])
    reason = Waiting(str(waits.pk), WaitCode.NO_CAPACITY, jobs=("x",))
    a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, waiting=(reason,)))
    waits.refresh_from_db()
    assert (waits.waiting_code, waits.waiting_detail) == ("label_unavailable", {"missing": ["ib"]})


def test_another_reason_with_the_same_expected_start_is_written(
    cluster: Cluster, node: Node
) -> None:
    waits = a_job(cluster)
    for labels, code in ((["ib"], "label_unavailable"), (["ssd"], "label_unavailable")):
        Job.objects.filter(pk=waits.pk).update(labels=labels)
        reason = Waiting(str(waits.pk), WaitCode.NO_CAPACITY, expected=Expected(2e9))
        a_round(
            cluster, lambda *_, reason=reason: Plan("told", PlanStatus.HEURISTIC, waiting=(reason,))
        )
        waits.refresh_from_db()
        assert (waits.waiting_code, waits.waiting_detail["missing"]) == (code, labels)


def test_a_dependency_is_told_with_its_condition(cluster: Cluster, node: Node) -> None:
    held, waits = a_job(cluster, state="held"), a_job(cluster)
    Dependency.objects.create(job=waits, on=held, condition="afternotok")
    a_round(cluster, placing())
    waits.refresh_from_db()
    conditions = {str(held.pk): "afternotok"}
    assert waits.waiting_detail == {"jobs": [str(held.pk)], "conditions": conditions}


def test_a_job_that_waits_for_capacity_keeps_what_it_asks_for(cluster: Cluster, node: Node) -> None:
    first = a_job(cluster, name="first")
    waits = a_job(cluster, gpus_min=2, gpus_max=2, allowed_types=["V100"])
    a_round(cluster, placing(first=(node, node.devices.first())))
    waits.refresh_from_db()
    assert waits.waiting_code == "no_capacity"
    assert waits.waiting_detail["needs"] == ["several", "types"]
    assert waits.waiting_detail["jobs"] == [str(first.pk)]


def test_thousands_are_told_by_batches_of_which_none_is_in_the_transaction_that_applies(
    cluster: Cluster, node: Node
) -> None:
    for number in range(7):
        a_job(cluster, name=f"job {number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "BATCH", 3)
        patch.setattr(world, "apply_plan", _finds_all_told)
        a_round(cluster, placing())
    assert set(Job.objects.values_list("waiting_code", flat=True)) == {"postponed"}


def _finds_all_told(prepared: Prepared, now: datetime) -> Applied:
    of_cluster = Job.objects.filter(cluster=prepared.observed.cluster)
    assert not of_cluster.exclude(waiting_code="postponed").exists()
    return apply_plan(prepared, now)


def test_a_round_that_has_lost_its_lock_tells_nobody(cluster: Cluster, node: Node) -> None:
    waits = a_job(cluster)

    def overtaken(*given: Any) -> Plan:
        Cluster.objects.filter(pk=cluster.pk).update(round_number=F("round_number") + 1)
        return placing()(*given)

    request_reschedule(cluster, Reason.OPERATOR)
    assert a_round_of_waiting_events(cluster, overtaken) is None
    waits.refresh_from_db()
    assert waits.waiting_code == ""


def test_a_job_blocked_by_a_dependency_is_told_so(cluster: Cluster, node: Node) -> None:
    held, blocked = a_job(cluster, state="held"), a_job(cluster)
    blocked.dependencies.add(held)
    a_round(cluster, placing())
    blocked.refresh_from_db()
    assert (blocked.waiting_code, blocked.waiting_detail) == (
        "dependency",
        {"jobs": [str(held.pk)]},
    )


def test_a_job_that_has_ended_meanwhile_is_given_no_reason(cluster: Cluster) -> None:
    ended = a_job(cluster, state="completed")
    record._note('["no_capacity", {}]', [ended.pk])
    ended.refresh_from_db()
    assert ended.waiting_code == ""
