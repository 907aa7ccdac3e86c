"""Heartbeats on a virtual clock: what they renew, bring back, and cost."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from clusters.intervals import intervals
from clusters.models import Node, RescheduleEvent
from clusters.models.nodes import State
from clusters.services import devices
from clusters.services.devices import flush_samples
from clusters.services.nodes import node_cordon
from controlplane.execution.services import heartbeats
from controlplane.execution.services.heartbeats import NO_ROOM
from controlplane.execution.services.sessions import open_session
from controlplane.web.storage.turns import Rank, rank
from jobs.models import Assignment
from jobs.selectors import names_in_waiting
from jobs.wording.explanation import reason_for_waiting
from loadmaster.protocol import AssignmentState, DeviceSample, KnownAssignment
from loadmaster.wire import dumps
from tests.builders import a_cluster, a_job
from tests.builders_agents import (
    CLOCK,
    LONG_AGO,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    a_session_request,
    heartbeat,
    reconcile_clusters,
)

pytestmark = pytest.mark.django_db


def _at(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


def test_a_heartbeat_is_written_before_what_is_not_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    node, seen = a_node_with_agent(now=_at(0)), list[Rank]()
    lock = heartbeats._lock_nodes

    def locked(*args: Any, **more: Any) -> Any:
        seen.append(rank())
        return lock(*args, **more)

    monkeypatch.setattr(heartbeats, "_lock_nodes", locked)
    heartbeat(node.pk, a_heartbeat(), _at(20))
    assert seen == [Rank.URGENT]
    assert rank() is Rank.USUAL


def test_a_heartbeat_renews_the_session_and_each_lease_it_lists() -> None:
    node = a_node_with_agent(now=_at(0), gpus=2)
    listed, left_out = (a_running_assignment(node, now=_at(0)) for _ in range(2))
    reply = heartbeat(node.pk, a_heartbeat(listed), _at(20))
    assert [(lease.id, lease.fence, lease.ttl_s) for lease in reply.leases] == [
        (str(listed.pk), listed.fence, 60.0)
    ]
    assert reply.next_heartbeat_s == 10.0
    assert Assignment.objects.get(pk=listed.pk).lease_expires_at == _at(80)
    assert Assignment.objects.get(pk=left_out.pk).lease_expires_at == _at(60)
    node.refresh_from_db()
    assert (node.session_expires_at, node.last_seen_at) == (_at(80), _at(20))


def test_a_heartbeat_overtaken_by_a_newer_one_renews_nothing() -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    heartbeat(node.pk, a_heartbeat(assignment, seq=5), _at(10))
    late = heartbeat(node.pk, a_heartbeat(assignment, seq=4), _at(30))
    assert late.leases == ()
    assert Assignment.objects.get().lease_expires_at == _at(70)


def test_what_the_agent_says_is_over_gets_no_lease() -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    assignment.state = AssignmentState.SUCCEEDED
    assert heartbeat(node.pk, a_heartbeat(assignment), _at(10)).leases == ()


def test_a_job_that_is_kept_on_disconnect_has_ten_minutes() -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, a_job(node.cluster, on_disconnect="keep"), now=_at(0))
    (lease,) = heartbeat(node.pk, a_heartbeat(assignment), _at(10)).leases
    assert lease.ttl_s == 600.0
    reconcile_clusters(_at(600))
    assert Assignment.objects.get().state == AssignmentState.RUNNING
    reconcile_clusters(_at(611 + 40))
    reconcile_clusters(_at(611 + 41))
    assert Assignment.objects.get().state == AssignmentState.LOST


@pytest.mark.parametrize(
    "said", [AssignmentState.PREPARING, AssignmentState.RUNNING, AssignmentState.STOPPING]
)
def test_what_was_unknown_comes_back_in_the_state_its_agent_reports(said: AssignmentState) -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    reconcile_clusters(_at(61))
    assert Assignment.objects.get().state == AssignmentState.UNKNOWN
    assignment.state = said
    reply = heartbeat(node.pk, a_heartbeat(assignment), _at(70))
    assert Assignment.objects.get().state == said
    assert len(reply.leases) == 1
    reconcile_clusters(_at(120))
    assert Assignment.objects.get().state == said


def test_a_lost_node_comes_back_as_it_was_and_wakes_the_optimiser() -> None:
    node = a_node_with_agent(now=_at(0))
    cordoned = node_cordon(a_node_with_agent(node.cluster, token="another's", now=_at(0)))
    reconcile_clusters(_at(101))
    assert set(Node.objects.values_list("state", flat=True)) == {State.LOST}
    RescheduleEvent.objects.all().delete()
    for lost in (node, cordoned):
        heartbeat(lost.pk, a_heartbeat(), _at(110))
    node.refresh_from_db()
    cordoned.refresh_from_db()
    assert (node.state, cordoned.state) == (State.READY, State.CORDONED)
    assert [e.event for e in node.events.all()][-2:] == ["lost", "back"]
    assert set(RescheduleEvent.objects.values_list("reason", "node")) == {
        ("node_joined", node.pk),
        ("node_joined", cordoned.pk),
    }


def test_a_silent_node_that_is_heard_again_before_it_is_lost_wakes_the_optimiser_once() -> None:
    node = a_node_with_agent(now=_at(0))
    heartbeat(node.pk, a_heartbeat(seq=1), _at(10))
    RescheduleEvent.objects.all().delete()
    heartbeat(node.pk, a_heartbeat(seq=2), _at(69))
    assert not RescheduleEvent.objects.exists(), "it was never silent"
    reconcile_clusters(_at(69 + 61))
    heartbeat(node.pk, a_heartbeat(seq=3), _at(69 + 61))
    heartbeat(node.pk, a_heartbeat(seq=4), _at(69 + 62))
    assert list(RescheduleEvent.objects.values_list("cluster", "reason", "node")) == [
        (node.cluster_id, "node_joined", node.pk)
    ]


def test_a_session_after_silence_wakes_the_optimiser_and_one_that_supersedes_does_not() -> None:
    node = a_node_with_agent(now=_at(0))
    RescheduleEvent.objects.all().delete()
    open_session(node.pk, a_session_request(node), _at(59))
    assert not RescheduleEvent.objects.exists()
    reconcile_clusters(_at(59 + 61))
    open_session(node.pk, a_session_request(node), _at(59 + 61))
    assert list(RescheduleEvent.objects.values_list("reason", "node")) == [("node_joined", node.pk)]


def test_a_device_that_falls_ill_is_known_at_once() -> None:
    node = a_node_with_agent(now=_at(0), gpus=2)
    well, ill = node.devices.order_by("uuid")
    heartbeat(
        node.pk,
        a_heartbeat(devices=(DeviceSample(well.uuid), DeviceSample(ill.uuid, healthy=False))),
        _at(1),
    )
    assert {d.uuid: d.healthy for d in node.devices.all()} == {well.uuid: True, ill.uuid: False}
    assert node.events.filter(event="devices").get().data == {"healthy": {ill.uuid: False}}
    heartbeat(node.pk, a_heartbeat(seq=2, devices=(DeviceSample(ill.uuid),)), _at(2))
    assert node.devices.filter(healthy=True).count() == 2


def test_a_machine_that_calls_itself_unhealthy_takes_no_work_until_it_is_well() -> None:
    node = a_node_with_agent(now=_at(0))
    heartbeat(node.pk, a_heartbeat(healthy=False), _at(1))
    assert Node.objects.get().state == State.CORDONED
    heartbeat(node.pk, a_heartbeat(seq=2), _at(2))
    assert Node.objects.get().state == State.READY


def test_a_node_with_too_little_room_takes_no_work_until_there_is_a_fifth_more(
    settings: Any,
) -> None:
    settings.NODE_LEAST_FREE_GB = 1.0
    node = a_node_with_agent(now=_at(0))
    rooms = [(1.0, State.READY), (0.9, State.CORDONED), (1.1, State.CORDONED), (1.3, State.READY)]
    for seq, (free_gb, state) in enumerate(rooms, 1):
        heartbeat(node.pk, a_heartbeat(seq=seq, disk_free_gb=free_gb), _at(seq))
        found = Node.objects.get()
        assert (found.state, found.disk_free_gb) == (state, free_gb)
        assert found.reason == (NO_ROOM if state == State.CORDONED else "")
    heartbeat(node.pk, a_heartbeat(seq=9, disk_free_gb=0.0), _at(9))
    assert Node.objects.get().state == State.CORDONED


def test_an_agent_of_an_older_version_that_does_not_tell_its_room_keeps_working() -> None:
    node = a_node_with_agent(now=_at(0))
    heartbeat(node.pk, a_heartbeat(), _at(1))
    found = Node.objects.get()
    assert (found.state, found.disk_free_gb) == (State.READY, None)
    assert b"disk_free_gb" not in dumps(a_heartbeat())
    assert b'"disk_free_gb":0.0' in dumps(a_heartbeat(disk_free_gb=0.0))


def test_a_job_that_waits_for_a_node_without_room_is_told_so() -> None:
    node = node_cordon(a_node_with_agent(now=_at(0)), "operator", NO_ROOM)
    job = a_job(node.cluster, waiting_detail={"nodes": [str(node.pk)]})
    names = names_in_waiting(job.user, [job])
    told = reason_for_waiting("queued", "nodes_unavailable", job.waiting_detail, names)
    assert told == f"Only {node} ({NO_ROOM}) could run it, but takes no new jobs now."


def test_an_operators_cordon_is_not_lifted_by_a_healthy_agent() -> None:
    node = node_cordon(a_node_with_agent(now=_at(0)), "operator", "a new fan")
    heartbeat(node.pk, a_heartbeat(), _at(1))
    assert Node.objects.get().state == State.CORDONED


def test_device_samples_are_written_when_they_are_flushed() -> None:
    node = a_node_with_agent(now=_at(0), gpus=1)
    device = node.devices.get()
    sample = DeviceSample(
        device.uuid, gpu_fraction=0.9, power_w=180.0, power_source="measured", temperature_c=61.0
    )
    heartbeat(node.pk, a_heartbeat(devices=(sample,)), _at(1))
    device.refresh_from_db()
    assert device.power_w is None
    assert flush_samples() == 1
    device = node.devices.get()
    assert (device.gpu_fraction, device.power_w, device.power_source, device.temperature_c) == (
        0.9,
        180.0,
        "measured",
        61.0,
    )
    assert flush_samples() == 0


def test_a_flush_that_took_long_is_followed_by_a_longer_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a large cluster's samples would be written all the time."""
    monkeypatch.setattr(devices, "PAUSE_FACTOR", 1e9)
    node = a_node_with_agent(now=_at(0), gpus=1)
    sample = DeviceSample(node.devices.get().uuid, power_w=180.0)
    heartbeat(node.pk, a_heartbeat(devices=(sample,)), _at(1))
    assert flush_samples() == 1
    heartbeat(node.pk, a_heartbeat(seq=2, devices=(sample,)), _at(11))
    assert flush_samples() == 0, "it rests"
    cache.delete(devices._FLUSHING)
    assert flush_samples() == 1, "and what came meanwhile is written after it"


def test_a_cache_that_is_away_stops_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise RedisConnectionError("away")

    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    monkeypatch.setattr(devices, "_backoff", devices.Backoff())
    monkeypatch.setattr(cache, "set", away)
    monkeypatch.setattr(cache, "get_many", away)
    assert len(heartbeat(node.pk, a_heartbeat(assignment), _at(1)).leases) == 1
    assert flush_samples() == 0


@pytest.mark.parametrize("error", [RedisTimeoutError("frozen"), OSError("no route")])
def test_a_cache_that_failed_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked: list[float] = []
    now_s = [100.0]

    def frozen(*_: Any, **__: Any) -> None:
        asked.append(now_s[0])
        raise error

    node = a_node_with_agent(now=_at(0), gpus=1)
    sample = DeviceSample(
        node.devices.get().uuid,
        gpu_fraction=0.9,
        power_w=180.0,
        power_source="measured",
        temperature_c=61.0,
    )
    monkeypatch.setattr(devices, "_backoff", devices.Backoff(lambda: now_s[0]))
    monkeypatch.setattr(cache, "incr", frozen)
    for seq, at_s in enumerate((100.0, 101.0, 159.0, 161.0), 1):
        now_s[0] = at_s
        heartbeat(node.pk, a_heartbeat(seq=seq, devices=(sample,)), _at(seq))
    assert asked == [100.0, 161.0]


@pytest.mark.parametrize("count", [1, 8])
def test_a_heartbeat_costs_the_same_queries_whatever_it_lists(count: int) -> None:
    node = a_node_with_agent(now=_at(0), gpus=8)
    held = [a_running_assignment(node, now=_at(0)) for _ in range(count)]
    with CaptureQueriesContext(
        connection,
    ) as queries:
        heartbeat(node.pk, a_heartbeat(*held), _at(1))
    assert len(queries) == 7, [q["sql"][:90] for q in queries]


def test_what_a_heartbeat_lists_is_read_as_often_for_eight_launches_as_for_one() -> None:
    class Listed(tuple[KnownAssignment, ...]):
        reads = 0

        def __iter__(self) -> Iterator[KnownAssignment]:
            Listed.reads += 1
            return super().__iter__()

    def reads(count: int) -> int:
        Listed.reads, node = 0, a_node_with_agent(now=_at(0), gpus=8)
        beat = a_heartbeat(*(a_running_assignment(node, now=_at(0)) for _ in range(count)))
        heartbeat(node.pk, replace(beat, assignments=Listed(beat.assignments)), _at(1))
        return Listed.reads

    assert reads(8) == reads(1) > 0


def test_many_nodes_stretch_heartbeats_and_leases() -> None:
    assert intervals(10.0, 60.0, 30.0, 10.0, nodes=100).heartbeat_s == 10.0
    assert intervals(10.0, 60.0, 30.0, 10.0, nodes=10_000).heartbeat_s == 10.0
    stretched = intervals(10.0, 60.0, 30.0, 10.0, nodes=50_000)
    assert (stretched.heartbeat_s, stretched.lease_s) == (50.0, 200.0)


def test_a_cluster_tells_its_agents_its_own_clockwork() -> None:
    node = a_node_with_agent(
        a_cluster(**{**CLOCK, "heartbeat_s": 2.0, "lease_s": 15.0}), now=_at(0)
    )
    assert heartbeat(node.pk, a_heartbeat(), _at(1)).next_heartbeat_s == 2.0
