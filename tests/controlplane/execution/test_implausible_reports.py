"""Nodes cannot lie without bound: what cannot be is dropped, counted and shown."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from clusters.models import Device, ImplausibleFigure, Node, NodeEvent
from clusters.services.devices import flush_samples, sync_devices
from controlplane.accounting.ledger import bill_until
from controlplane.operations.prometheus import StateCollector, exposition
from jobs.models import Assignment, UsagePoint
from loadmaster.protocol import AssignmentState, DeviceSample, KnownAssignment
from loadmaster.samples import MetricsBatch, UsageSample
from tests.builders import a_job, a_user
from tests.builders_agents import (
    a_device_report,
    a_heartbeat,
    a_node_with_agent,
    a_report,
    a_running_assignment,
    a_session_request,
    heartbeat,
)
from tests.builders_jobs import api

pytestmark = pytest.mark.django_db
PEAK_W = 200.0


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    cache.clear()


def use(at_s: float = 0.0, **values: Any) -> UsageSample:
    """A sample of a run so many seconds from now."""
    given = {"cores": 1.0, "memory_gb": 1.0, "gpu_power_w": 150.0, "power_source": "measured"}
    return UsageSample(timezone.now().timestamp() + at_s, **{**given, **values})


def measured(call: Any, assignment: Assignment, *usage: UsageSample, seq: int = 1) -> None:
    batch = MetricsBatch(epoch=1, fence=assignment.fence, seq=seq, usage=usage)
    assert call("post", f"assignments/{assignment.pk}/metrics", batch).status_code == 202


def counted(node: Node) -> dict[str, tuple[int, float]]:
    rows = ImplausibleFigure.objects.filter(node=node)
    return {row.name: (row.count, row.value) for row in rows}


def test_a_node_that_reports_nine_hundred_megawatts_is_not_billed_for_them(call: Any) -> None:
    node = a_node_with_agent(gpus=1)
    now = timezone.now()
    assignment = a_running_assignment(node)
    Assignment.objects.update(
        accepted_at=now - timedelta(minutes=10), running_at=now - timedelta(minutes=10)
    )
    measured(call, assignment, use(-300.0, gpu_power_w=9e8))
    assignment.refresh_from_db()
    assert UsagePoint.objects.get().gpu_power_w is None
    billed = bill_until(assignment, now)
    assert billed.energy_kwh <= (PEAK_W + 300.0) * 600 / 3.6e6 + 1e-9
    assert counted(node) == {"power_w": (1, 9e8)}


@pytest.mark.parametrize(
    ("gpus", "watts", "kept"),
    [(1, 300.0, True), (1, 301.0, False), (2, 600.0, True), (2, -1.0, False)],
)
def test_watts_are_bounded_by_the_peak_of_the_gpus_held(
    call: Any, gpus: int, watts: float, kept: bool
) -> None:
    node = a_node_with_agent(gpus=2)
    assignment = a_running_assignment(node, a_job(node.cluster, gpus_min=gpus, gpus_max=gpus))
    Assignment.objects.update(gpus=gpus)
    measured(call, assignment, use(gpu_power_w=watts))
    assert UsagePoint.objects.get().gpu_power_w == (watts if kept else None)
    assert counted(node) == ({} if kept else {"power_w": (1, watts)})


@pytest.mark.parametrize(
    ("wrong", "name", "sample_stays"),
    [
        ({"gpu_fraction": 1.5}, "gpu_fraction", True),
        ({"gpu_fraction": -0.1}, "gpu_fraction", True),
        ({"cores": 1e6}, "cores", False),
        ({"cores": -1.0}, "cores", False),
        ({"memory_gb": 1e6}, "memory_gb", False),
    ],
)
def test_use_that_cannot_be_is_dropped_and_the_other_samples_stay(
    call: Any, wrong: dict[str, float], name: str, sample_stays: bool
) -> None:
    node = a_node_with_agent()
    measured(call, a_running_assignment(node), use(-9.0), use(-6.0, **wrong), use(-3.0))
    assert UsagePoint.objects.count() == (3 if sample_stays else 2)
    assert counted(node) == {name: (1, *wrong.values())}


@pytest.mark.parametrize("at_s", [3600.0, 1e300, -1e11])
def test_times_in_the_future_become_the_servers(call: Any, at_s: float) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    measured(call, assignment, use(at_s))
    assert abs((UsagePoint.objects.get().at - timezone.now()).total_seconds()) < 30.0
    assert list(counted(node)) == ["time"]
    measured(call, assignment, use(5.0), seq=2)
    assert UsagePoint.objects.count() == 2, "and do not stop the samples that follow"


def test_an_end_in_the_future_is_observed_now_and_steps_no_launch_makes_are_dropped(
    call: Any,
) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    report = a_report(assignment, AssignmentState.SUCCEEDED, steps=2**62)
    report = replace(report, observed_at_s=4e9)
    assert call("put", f"assignments/{assignment.pk}/state", report).status_code == 200
    assignment.refresh_from_db()
    assert (assignment.state, assignment.steps_done) == ("succeeded", 0)
    observed_at = assignment.events.get(to_state="succeeded").observed_at
    assert observed_at is not None
    assert observed_at <= timezone.now()
    assert set(counted(node)) == {"steps", "time"}


def test_samples_of_devices_that_cannot_be_are_dropped_and_the_rest_is_kept() -> None:
    node = a_node_with_agent(gpus=1)
    uuid = node.devices.get().uuid
    sample = DeviceSample(uuid, True, 0.5, 1e9, 9e8, "measured", 4000.0)
    heartbeat(node.pk, a_heartbeat(devices=(sample,), disk_free_gb=1e12))
    heartbeat(node.pk, a_heartbeat(devices=(sample,), seq=2))
    flush_samples()
    device = node.devices.get()
    assert (device.gpu_fraction, device.power_w, device.memory_used_gb, device.temperature_c) == (
        0.5,
        None,
        None,
        None,
    )
    node.refresh_from_db()
    assert node.disk_free_gb is None
    assert counted(node) == {
        "memory_used_gb": (2, 1e9), "power_w": (2, 9e8), "temperature_c": (2, 4000.0),
        "disk_free_gb": (1, 1e12),
    }  # fmt: skip


def test_a_heartbeat_tells_of_no_more_devices_than_a_node_may_have() -> None:
    node = a_node_with_agent(gpus=1)
    samples = tuple(DeviceSample(f"GPU-{i}") for i in range(15_000))
    heartbeat(node.pk, a_heartbeat(devices=samples))
    assert counted(node) == {"devices": (1, 15_000.0)}


@pytest.mark.parametrize("call_of", ["heartbeat", "session"])
def test_more_launches_than_a_node_may_have_are_refused(call: Any, call_of: str) -> None:
    node = a_node_with_agent(gpus=1)
    known = tuple(KnownAssignment(f"x{i}", 1, AssignmentState.RUNNING) for i in range(4097))
    if call_of == "heartbeat":
        told: Any = a_heartbeat()
    else:
        told = a_session_request(node)
    path = f"nodes/{node.pk}/{call_of}"
    answer = call("post", path, replace(told, assignments=known))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "assignments")
    said = "assignments: a node may have 4096 launches, not 4097"
    assert answer.json()["error"]["detail"] == said
    assert call("post", path, replace(told, assignments=known[:-1])).status_code == 200


def test_a_session_with_fifteen_thousand_gpus_is_refused(call: Any) -> None:
    node = a_node_with_agent(gpus=1)
    devices = tuple(a_device_report(f"GPU-{i}") for i in range(15_000))
    answer = call("post", f"nodes/{node.pk}/session", a_session_request(node, devices=devices))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "devices")
    assert answer.json()["error"]["detail"] == "devices: a node may have 64 GPUs, not 15000"
    assert node.devices.count() == 1


def test_devices_of_new_names_at_every_session_do_not_pile_up() -> None:
    node = a_node_with_agent(gpus=1)
    held = a_running_assignment(node).slots.get().device
    for session in range(4):
        sync_devices(node, [a_device_report(f"GPU-{session}-{i}") for i in range(64)])
        assert node.devices.count() <= 64 + 1
    assert Device.objects.filter(pk=held.pk).exists(), "what is held stays"


def test_what_was_dropped_is_on_the_nodes_page_for_a_day_in_rest_and_in_the_metrics() -> None:
    node = a_node_with_agent(gpus=1)
    sample = DeviceSample(node.devices.get().uuid, power_w=9e8)
    heartbeat(node.pk, a_heartbeat(devices=(sample,)))
    page, user = Client(), a_user(operator=True)
    page.force_login(user)
    said = "Impossible figures of its agent are not counted: power_w (1×, last 900,000,000"
    assert said in page.get(reverse("nodes")).content.decode()
    (shown,) = api(user).get("/api/v1/nodes/").json()["results"][0]["implausible"]
    assert (shown["name"], shown["count"], shown["value"]) == ("power_w", 1, 9e8)
    line = f'loadmaster_implausible_total{{cluster="{node.cluster.name}",figure="power_w"}} 1.0'
    assert line in exposition([StateCollector()]).decode()
    ImplausibleFigure.objects.update(at=timezone.now() - timedelta(hours=25))
    assert "Impossible figures" not in page.get(reverse("nodes")).content.decode()
    assert line in exposition([StateCollector()]).decode(), "the counter does not fall"
    assert not NodeEvent.objects.filter(event="implausible").exists()


def test_a_stranger_sees_no_node_without_a_login() -> None:
    a_node_with_agent(gpus=1)
    assert api().get("/api/v1/nodes/").status_code == 401


def test_cores_that_no_machine_has_are_not_kept_as_withheld_by_a_quota(call: Any) -> None:
    node = a_node_with_agent(gpus=1)
    assignment = a_running_assignment(node)
    measured(call, assignment, use(throttled_cores=1e9, cores_limit=2.0))
    assert UsagePoint.objects.get().throttled_cores is None
    assert counted(node)["throttled_cores"] == (1, 1e9)
