"""A node whose machine is gone: an operator's token lets another machine take its place."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from clusters.agent_errors import AgentCallError
from clusters.models import EnrolmentToken, Node
from clusters.services.enrolment import issue_enrolment_token, register, sha256
from controlplane.audit.models import Entry
from controlplane.execution.services.sessions import open_session
from loadmaster.protocol import AssignmentState, ErrorCode
from tests.builders import a_cluster, a_node, a_user
from tests.builders_agents import (
    CLOCK,
    a_device_report,
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_running_assignment,
    a_session_request,
    heartbeat,
    reconcile_clusters,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    """A node whose machine is gone, with the former one's GPUs."""
    return a_node(a_cluster(name="lab", **CLOCK), name="agent-0", session_expires_at=None)


def new_machine(**values: Any) -> Any:
    return a_registration(machine_id="machine-new", hostname="other", **values)


def test_another_machine_takes_the_place_under_the_nodes_name(node: Node) -> None:
    token = issue_enrolment_token(node.cluster, node=node)
    registered = register(token, new_machine())
    assert registered.node_id == str(node.pk)
    found = Node.objects.get()
    assert (found.name, found.machine_id) == ("agent-0", "machine-new")
    assert found.token_sha256 == sha256(registered.node_token)
    event = found.events.get(event="taken_back")
    assert event.data["former_machine"] == node.machine_id


def test_gpus_of_the_former_machine_go_with_it(node: Node) -> None:
    register(issue_enrolment_token(node.cluster, node=node), new_machine())
    assert [device.uuid for device in node.devices.all()] == ["GPU-1"]


def test_a_name_in_use_names_the_token_that_takes_it_back(node: Node) -> None:
    token = issue_enrolment_token(node.cluster)
    with pytest.raises(AgentCallError, match="loadmaster enrol-token --node agent-0"):
        register(token, new_machine(name="agent-0"))


def test_a_node_whose_agent_lives_is_not_taken(node: Node) -> None:
    token = issue_enrolment_token(node.cluster, node=node)
    open_session(node.pk, a_session_request(node))
    with pytest.raises(AgentCallError, match="agent-0 has an agent that lives") as refusal:
        register(token, new_machine())
    assert refusal.value.code == ErrorCode.SESSION_LIVES
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)
    assert register(token, new_machine()).node_id == str(node.pk), "the token is not used up"


def test_a_machine_that_is_another_node_takes_no_place(node: Node) -> None:
    other = a_node(node.cluster, name="agent-1")
    token = issue_enrolment_token(node.cluster, node=node)
    with pytest.raises(AgentCallError, match="this machine is node agent-1 already"):
        register(token, a_registration(machine_id=other.machine_id))


def test_launches_of_the_former_machine_keep_their_gpus_until_their_leases_end() -> None:
    now = timezone.now()
    node = a_node_with_agent(a_cluster(name="lab", **CLOCK), now=now, name="agent-0")
    running = a_running_assignment(node, now=now)
    held = running.slots.get().device.uuid
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)

    # The new machine has its session, but neither the launch nor its GPU.
    register(issue_enrolment_token(node.cluster, node=node), new_machine())
    node.refresh_from_db()
    request = a_session_request(node, secret="new", devices=(a_device_report(),))
    session = open_session(node.pk, request, now)
    assert session.adopt == ()
    heartbeat(node.pk, a_heartbeat(epoch=session.epoch), now)
    running.refresh_from_db()
    assert running.state == AssignmentState.RUNNING
    assert node.devices.get(uuid=held).healthy is False

    # Once lease, grace and margin are over the launch is lost, and the GPU goes.
    for seconds in (61, 101):
        heartbeat(node.pk, a_heartbeat(epoch=session.epoch, seq=seconds), now + _s(seconds))
        reconcile_clusters(now + _s(seconds))
    running.refresh_from_db()
    assert running.state == AssignmentState.LOST
    open_session(node.pk, replace(request, former_epoch=session.epoch), now + _s(102))
    assert not node.devices.filter(uuid=held).exists()


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class TestOperators:
    """Ways in which operators, and they alone, make such a token."""

    def test_by_rest_with_a_row_of_the_audit(self, client: Client, node: Node) -> None:
        client.force_login(a_user("root", operator=True))
        body = {"cluster": "lab", "node": "agent-0"}
        answer = client.post("/api/v1/enrolment-tokens/", body, "application/json")
        assert answer.status_code == 201
        token = EnrolmentToken.objects.get()
        assert (token.node, token.sha256) == (node, sha256(answer.json()["token"]))
        entry = Entry.objects.get(action="enrolment.add")
        assert entry.thing == "for node agent-0 of lab"

    def test_a_node_that_is_not_there_is_named(self, client: Client, node: Node) -> None:
        client.force_login(a_user("root", operator=True))
        body = {"cluster": "lab", "node": "agent-9"}
        answer = client.post("/api/v1/enrolment-tokens/", body, "application/json")
        assert answer.status_code == 400
        assert "lab has no node 'agent-9'" in str(answer.json())

    def test_by_the_page_of_nodes(self, client: Client, node: Node) -> None:
        client.force_login(a_user("root", operator=True))
        page = client.get("/nodes/").content.decode()
        assert f'id="take-back-{node.pk}"' in page
        answer = client.post(f"/nodes/{node.pk}/take-back/", follow=True)
        assert "Enrolment token for the machine that replaces agent-0" in answer.content.decode()
        assert EnrolmentToken.objects.get().node == node

    def test_by_a_command_of_the_server(self, node: Node, capsys: Any) -> None:
        call_command("enrol_token", "lab", "--node", "agent-0")
        assert EnrolmentToken.objects.get().sha256 == sha256(capsys.readouterr().out.strip())
        with pytest.raises(CommandError, match="agent-9"):
            call_command("enrol_token", "lab", "--node", "agent-9")

    def test_a_stranger_gets_no_token(self, client: Client, node: Node) -> None:
        stranger: User = a_user("eve")
        client.force_login(stranger)
        assert client.post(f"/nodes/{node.pk}/take-back/").status_code == 403
        body = {"cluster": "lab", "node": "agent-0"}
        answer = client.post("/api/v1/enrolment-tokens/", body, "application/json")
        assert answer.status_code == 403
        assert f'id="take-back-{node.pk}"' not in client.get("/nodes/").content.decode()
        assert not EnrolmentToken.objects.exists()
