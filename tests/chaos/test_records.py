"""The server's records show moves, shares and bills that should not be."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounting.models import EnergyEntry
from experiments.chaos.checks.records import (
    Event,
    check_bills,
    check_fences,
    check_moves,
    check_shares,
)
from jobs.models import Assignment, AssignmentEvent
from tests.builders import a_cluster, a_job, a_node

OFFERS: list[Event] = [("a", "", "offered"), ("b", "", "offered"), ("a", "offered", "accepted")]


def test_a_state_that_does_not_follow_from_the_one_before_is_wrong() -> None:
    assert check_moves(OFFERS).holds
    assert check_moves(OFFERS).checked == 3
    wrong = check_moves([*OFFERS, ("a", "offered", "running")]).wrong
    assert wrong == ("assignment a was accepted, not offered",)


def test_shares_of_a_device_are_given_to_others_once_their_holders_have_ended() -> None:
    halves = {name: [("d", 0.5)] for name in ("a", "b", "c")}
    assert check_shares(OFFERS, halves).holds
    third: Event = ("c", "", "offered")
    assert check_shares([*OFFERS, third], halves).wrong == ("1.5 of device d were given",)
    assert check_shares([*OFFERS, ("a", "accepted", "lost"), third], halves).holds
    assert check_shares(OFFERS, {"a": [("d", 1.0)], "b": [("d", 1.0)]}).wrong


def a_bill(cost: str, of_hours: str, **values: Any) -> None:
    cluster = a_cluster()
    job, node = a_job(cluster), a_node(cluster)
    now = timezone.now()
    assignment = Assignment.objects.create(
        job=job, node=node, fence=1, state="succeeded", accepted_at=now, ended_at=now,
        energy_cost=Decimal(cost),
    )  # fmt: skip
    EnergyEntry.objects.create(
        assignment=assignment, hour=datetime(2026, 1, 1, tzinfo=UTC), cluster=cluster, node=node,
        job=job, team=job.team, purpose="training", cost=Decimal(of_hours), **values,
    )  # fmt: skip


@pytest.mark.django_db
def test_a_bill_that_is_the_sum_of_its_hours_is_right() -> None:
    a_bill("1.5", "1.5")
    found = check_bills()
    assert (found.checked, found.wrong) == (1, ())


@pytest.mark.django_db
def test_a_negative_figure_and_a_bill_beyond_its_hours_are_wrong() -> None:
    a_bill("2.5", "1.5", rest_kwh=-0.1)
    assert [text.partition(": ")[2] for text in check_bills().wrong] == [
        "a negative figure",
        "its bill is not the sum of its hours",
    ]


@pytest.mark.django_db
def test_a_fence_that_was_taken_twice_is_wrong() -> None:
    cluster = a_cluster()
    job, node = a_job(cluster), a_node(cluster)
    taken = {"move": "accept", "from_state": "offered", "to_state": "accepted"}
    for fence, times in ((1, 1), (2, 2)):
        assignment = Assignment.objects.create(job=job, node=node, fence=fence, state="lost")
        for _ in range(times):
            AssignmentEvent.objects.create(assignment=assignment, **taken)
    found = check_fences()
    assert (found.checked, found.wrong) == (3, (f"job {job.pk}: fence 2 was taken 2 times",))
