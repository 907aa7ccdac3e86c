"""How many jobs may share a GPU: the agent offers a number, an operator's holds from then on."""

import pytest
from django.test import Client
from rest_framework.test import APIClient

from clusters.models import Cluster, Device, Node, RescheduleEvent
from clusters.services.nodes import NodeStateError, SlotsError, node_set_slots
from controlplane.execution.services.sessions import open_session
from controlplane.loop.live.live_assignments import LiveAssignments
from controlplane.loop.live.recheck import FreeCapacity
from jobs.models import AssignmentSlot
from loadmaster.protocol import MOST_SLOTS
from tests.builders import a_cluster, a_node, a_user
from tests.builders_admin import admin_path, change_form
from tests.builders_agents import a_device_report, a_node_with_agent, a_session_request, an_offer
from tests.builders_jobs import api

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(name="lab")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, name="volta", gpus=2)


@pytest.fixture
def operator() -> APIClient:
    return api(a_user("root", operator=True))


def slots_of(node: Node) -> list[int]:
    """The slots of its GPUs, in their order."""
    return list(node.devices.order_by("uuid").values_list("slots", flat=True))


def a_session(node: Node, slots: int) -> None:
    """Its agent has a new session, in which it offers so many slots."""
    reports = tuple(
        a_device_report(d.uuid, node.type_name, slots=slots) for d in node.devices.order_by("uuid")
    )
    open_session(node.pk, a_session_request(node, devices=reports))


def hold(node: Node, *slots: int) -> Device:
    """The first GPU of the node, held in these slots by as many jobs."""
    device = node.devices.order_by("uuid")[0]
    for slot in slots:
        assignment = an_offer(node)
        assignment.slots.all().delete()
        AssignmentSlot.objects.create(assignment=assignment, device=device, slot=slot, share=0.5)
    return device


def test_an_operators_number_outlasts_what_the_agent_offers() -> None:
    node = a_node_with_agent()
    a_session(node, 2)
    assert slots_of(node) == [2, 2]
    node_set_slots(node, 3, actor="grace")
    a_session(node, 1)
    assert slots_of(node) == [3, 3]


def test_what_the_agent_offers_is_never_below_what_is_held() -> None:
    node = a_node_with_agent()
    a_session(node, 2)
    hold(node, 0, 1)
    a_session(node, 1)
    assert slots_of(node) == [2, 1]


def test_a_changed_number_is_written_down_and_asks_for_a_round(node: Node) -> None:
    node_set_slots(node, 2, actor="grace")
    event = node.events.get(event="slots")
    assert (event.actor, event.data["to"], sorted(event.data["from"].values())) == (
        "grace",
        2,
        [1, 1],
    )
    assert RescheduleEvent.objects.get().reason == "operator"
    node_set_slots(node, 2)
    assert RescheduleEvent.objects.count() == 1


def test_one_gpu_alone_may_be_shared(node: Node) -> None:
    second = node.devices.order_by("uuid")[1]
    node_set_slots(node, 2, [second.uuid])
    assert slots_of(node) == [1, 2]
    assert list(node.devices.order_by("uuid").values_list("slots_set", flat=True)) == [False, True]


def test_a_number_below_what_is_held_is_refused_and_changes_nothing(node: Node) -> None:
    node_set_slots(node, 2)
    device = hold(node, 0, 1)
    with pytest.raises(
        NodeStateError,
        match=f"GPU {device.uuid} of node volta is held by 2 jobs, so it cannot have 1 slot now",
    ):
        node_set_slots(node, 1)
    assert slots_of(node) == [2, 2]


@pytest.mark.parametrize("slots", [0, MOST_SLOTS + 1])
def test_a_number_that_no_gpu_can_have_is_refused(node: Node, slots: int) -> None:
    with pytest.raises(SlotsError, match=f"not {slots}"):
        node_set_slots(node, slots)


def test_a_gpu_of_another_machine_is_refused_by_name(node: Node, cluster: Cluster) -> None:
    with pytest.raises(SlotsError, match="node volta has no GPU GPU-far-0"):
        node_set_slots(node, 2, [a_node(cluster, name="far").devices.order_by("uuid")[0].uuid])


def test_a_job_left_in_a_higher_slot_keeps_others_off(node: Node, cluster: Cluster) -> None:
    node_set_slots(node, 2)
    device = hold(node, 1)
    node_set_slots(node, 1)
    device.refresh_from_db()
    held = an_offer(node).created_at
    assert (
        FreeCapacity(LiveAssignments.of(cluster), {}, held, [str(node.pk)]).free_slot(device)
        is None
    )


def test_operators_set_it_by_rest(operator: APIClient, node: Node) -> None:
    path, one = f"/api/v1/nodes/{node.pk}/slots/", node.devices.order_by("uuid")[0].uuid
    answer = operator.post(path, {"slots": 2, "devices": [one]}, format="json")
    assert [d["slots"] for d in answer.json()["devices"]] == [2, 1]
    assert operator.post(path, {"slots": 2}, format="json").json()["devices"][1]["slots"] == 2
    for wrong in (
        {"slots": 0},
        {"slots": "many"},
        {},
        {"slots": 2, "devices": ["GPU-none"]},
        {"slots": MOST_SLOTS + 1},
    ):
        refusal = operator.post(path, wrong, format="json")
        assert refusal.status_code == 400, wrong
        assert set(refusal.json()["error"]["fields"]) == {
            "devices" if "devices" in wrong else "slots"
        }
    hold(node, 0, 1)
    refusal = operator.post(path, {"slots": 1}, format="json")
    assert (refusal.status_code, "held by 2 jobs" in refusal.json()["error"]["detail"]) == (
        409,
        True,
    )


def test_operators_set_it_on_the_page(client: Client, node: Node) -> None:
    client.force_login(a_user("grace", operator=True))
    path = f"/nodes/{node.pk}/slots/"
    assert (
        "Up to 2 jobs may now share each GPU of volta."
        in client.post(path, {"slots": "2"}, follow=True).content.decode()
    )
    assert "up to 2 jobs per GPU" in client.get("/nodes/").content.decode()
    for wrong in ("", "two", "0", "99999"):
        assert (
            "Nothing was changed. Jobs per GPU: must be"
            in client.post(path, {"slots": wrong}, follow=True).content.decode()
        )
    assert slots_of(node) == [2, 2]
    assert node.events.get().actor == "grace"


def test_operators_set_it_in_the_administration(client: Client, node: Node) -> None:
    client.force_login(a_user("grace", operator=True))
    device = hold(node)
    url = admin_path(Device, "change", device.pk)
    assert client.post(url, {**change_form(client, url), "slots": "2"}).status_code == 302
    device.refresh_from_db()
    assert (device.slots, device.slots_set, RescheduleEvent.objects.count()) == (2, True, 1)
    hold(node, 0, 1)
    answer = client.post(url, {**change_form(client, url), "slots": "1"})
    assert f"must be from 2 to {MOST_SLOTS}: 2 jobs hold it now" in str(
        answer.context["adminform"].form.errors
    )
