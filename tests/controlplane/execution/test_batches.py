"""Many heartbeats in one transaction, and rows written in bulk."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from clusters.agent_errors import AgentCallError
from clusters.models import Device, Node, RescheduleEvent
from controlplane.execution.protocol.heartbeat_batch import GroupCommit
from controlplane.execution.protocol.threads import OverloadedError
from controlplane.execution.services.heartbeats import Answered, Busy, Call, renew_all
from controlplane.web.storage.bulk import update_rows
from jobs.models import Assignment
from loadmaster.protocol import DeviceSample
from tests.builders import a_node
from tests.builders_agents import LONG_AGO, a_heartbeat, a_node_with_agent, a_running_assignment


def _fleet(count: int) -> list[Node]:
    first = a_node_with_agent(token="0", now=LONG_AGO)
    return [
        first,
        *(a_node_with_agent(first.cluster, token=str(n), now=LONG_AGO) for n in range(1, count)),
    ]


def _calls(nodes: Sequence[Node]) -> list[Call]:
    samples = [
        tuple(DeviceSample(d.uuid, power_w=100.0) for d in node.devices.all()) for node in nodes
    ]
    held = [a_running_assignment(node, now=LONG_AGO) for node in nodes]
    return [
        Call(n.pk, a_heartbeat(a, devices=s)) for n, a, s in zip(nodes, held, samples, strict=True)
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, 7])
def test_a_batch_costs_the_same_queries_whatever_its_size(count: int) -> None:
    calls = _calls(_fleet(count))
    now = LONG_AGO + timedelta(seconds=20)
    with CaptureQueriesContext(connection) as queries:
        outcomes = renew_all(calls, now)
    for outcome in outcomes:
        assert isinstance(outcome, Answered)
        assert len(outcome.reply.leases) == 1
    assert len(queries) == 7, [q["sql"][:90] for q in queries]
    assert set(Assignment.objects.values_list("lease_expires_at", flat=True)) == {
        now + timedelta(seconds=60)
    }
    assert set(Node.objects.values_list("last_seen_at", flat=True)) == {now}


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, 7])
def test_nodes_that_are_heard_again_after_an_outage_cost_one_query_more_whatever_their_number(
    count: int,
) -> None:
    calls = _calls(_fleet(count))
    Node.objects.update(session_expires_at=None)
    RescheduleEvent.objects.all().delete()
    with CaptureQueriesContext(connection) as queries:
        renew_all(calls, LONG_AGO + timedelta(seconds=60))
    assert len(queries) == 8, [q["sql"][:90] for q in queries]
    assert set(RescheduleEvent.objects.values_list("reason", "node")) == {
        ("node_joined", call.node) for call in calls
    }


@pytest.mark.django_db
def test_a_device_that_falls_ill_in_a_batch_is_its_own_nodes_alone() -> None:
    nodes = _fleet(3)
    ill = nodes[1].devices.order_by("uuid")[0]
    calls = [
        Call(node.pk, a_heartbeat(devices=(DeviceSample(ill.uuid, healthy=False),)))
        for node in nodes
    ]
    renew_all(calls)
    assert list(Device.objects.filter(healthy=False).values_list("uuid", flat=True)) == [ill.uuid]


@pytest.mark.django_db
def test_rows_that_no_longer_match_are_left_alone() -> None:
    first, second = a_node(_fleet(1)[0].cluster), a_node(_fleet(1)[0].cluster)
    written = update_rows(
        Node,
        ("id", "epoch"),
        ("rack", "link_gbps"),
        [(first.pk, 0, "a", 1.5), (second.pk.hex, 3, "b", 2.5)],
    )
    assert written == 1
    assert list(
        Node.objects.filter(pk__in=[first.pk, second.pk])
        .order_by("link_gbps")
        .values_list("pk", "rack", "link_gbps")
    ) == [
        (second.pk, "", 0.0),
        (first.pk, "a", 1.5),
    ]
    assert update_rows(Node, ("id",), ("rack",), []) == 0


@pytest.mark.django_db
def test_a_field_may_be_compared_and_swapped() -> None:
    first, second = _fleet(2)
    rows = [
        (first.pk, first.epoch, first.epoch + 1),
        (second.pk, second.epoch + 5, second.epoch + 6),
    ]
    assert update_rows(Node, ("id", "epoch"), ("epoch",), rows) == 1
    assert dict(Node.objects.values_list("pk", "epoch")) == {
        first.pk: first.epoch + 1,
        second.pk: second.epoch,
    }


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_rows_in_other_hands_keep_nobody_waiting() -> None:
    """The other hand is a second connection to the same database."""
    nodes = _fleet(3)
    calls = _calls(nodes)
    other = connection.copy()
    try:
        with transaction.atomic():
            other.set_autocommit(False)
            with other.cursor() as cursor:
                cursor.execute(
                    "SELECT 1 FROM clusters_node WHERE id = %s FOR UPDATE", [nodes[0].pk]
                )
                cursor.execute(
                    "SELECT 1 FROM jobs_assignment WHERE node_id = %s FOR UPDATE", [nodes[1].pk]
                )
            outcomes = renew_all(calls, wait=False)
    finally:
        other.rollback()
        other.close()
    assert [type(outcome) for outcome in outcomes] == [Busy, Busy, Answered]
    refused = renew_all([Call(nodes[0].pk, a_heartbeat(), "a stranger's")], wait=False)
    assert [isinstance(outcome, AgentCallError) and outcome.status for outcome in refused] == [401]


def _group_commit(batches: list[list[int]], **values: Any) -> GroupCommit[int, int]:
    async def double(questions: Sequence[int]) -> list[int]:
        batches.append(list(questions))
        await asyncio.sleep(0)
        if 13 in questions:
            raise ValueError("thirteen")
        return [question * 2 for question in questions]

    return GroupCommit(double, **{"pause_s": 0.0, "most": 3, "waiting": 10, **values})


def test_what_comes_in_together_is_answered_in_batches_of_at_most_so_many() -> None:
    batches: list[list[int]] = []

    async def ask() -> list[int]:
        commits = _group_commit(batches)
        return await asyncio.gather(*(commits.ask(n) for n in range(7)))

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8, 10, 12]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_whoever_asks_too_much_hears_it_at_once() -> None:
    async def ask() -> list[Any]:
        commits = _group_commit([], waiting=2)
        return await asyncio.gather(*(commits.ask(n) for n in range(4)), return_exceptions=True)

    answers = asyncio.run(ask())
    assert answers[:2] == [0, 2]
    assert [type(answer) for answer in answers[2:]] == [OverloadedError, OverloadedError]


def test_a_batch_that_fails_fails_for_all_in_it_and_for_nobody_else() -> None:
    async def ask() -> list[Any]:
        commits = _group_commit([])
        return await asyncio.gather(
            *(commits.ask(n) for n in (1, 13, 2, 3)), return_exceptions=True
        )

    answers = asyncio.run(ask())
    assert [type(answer) for answer in answers] == [ValueError, ValueError, ValueError, int]
