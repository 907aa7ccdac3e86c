"""How machines come in over HTTP, and how every call is refused that should be."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from clusters.models import EnrolmentToken, Node, NodeEvent
from clusters.models.nodes import Role
from clusters.services.enrolment import issue_enrolment_token, sha256
from tests.builders import a_cluster, a_gpu_type, a_node
from tests.builders_agents import (
    a_device_report,
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_session_request,
)
from tests.builders_asgi import SiteClient

pytestmark = pytest.mark.django_db


def test_a_machine_with_a_good_token_becomes_a_node(call: Any) -> None:
    cluster = a_cluster(heartbeat_s=2.0, lease_s=15.0)
    a_gpu_type("V100")
    answer = call(
        "post", "register", a_registration(), token=issue_enrolment_token(cluster, Role.BOTH)
    )
    assert answer.status_code == 201
    node = Node.objects.get(pk=answer.json()["node_id"])
    assert (node.name, node.role, node.type_name, node.cluster) == (
        "volta",
        "both",
        "V100",
        cluster,
    )
    assert [d.uuid for d in node.devices.all()] == ["GPU-1"]
    assert answer.json()["intervals"]["heartbeat_s"] == 2.0
    assert node.token_sha256 == sha256(answer.json()["node_token"])


def test_the_token_given_by_register_opens_a_session(call: Any) -> None:
    cluster = a_cluster()
    a_gpu_type("V100")
    given = call("post", "register", a_registration(), token=issue_enrolment_token(cluster)).json()
    node = Node.objects.get(pk=given["node_id"])
    answer = call(
        "post", f"nodes/{node.pk}/session", a_session_request(node), token=given["node_token"]
    )
    assert answer.status_code == 200
    assert answer.json()["epoch"] == 1


def test_an_enrolment_token_lets_in_one_machine(call: Any) -> None:
    token = issue_enrolment_token(a_cluster())
    a_gpu_type("V100")
    assert call("post", "register", a_registration(), token=token).status_code == 201
    answer = call(
        "post", "register", a_registration(machine_id="machine-2", hostname="pascal"), token=token
    )
    assert answer.status_code == 401
    assert "used up" in answer.json()["error"]["detail"]
    assert Node.objects.count() == 1


def test_a_lost_answer_of_register_may_be_asked_for_again_until_the_first_session(
    call: Any,
) -> None:
    token = issue_enrolment_token(a_cluster())
    a_gpu_type("V100")
    first = call("post", "register", a_registration(), token=token).json()
    second = call("post", "register", a_registration(), token=token).json()
    node = Node.objects.get(pk=first["node_id"])
    assert second["node_id"] == first["node_id"]
    assert (
        call(
            "post", f"nodes/{node.pk}/session", a_session_request(node), token=first["node_token"]
        ).status_code
        == 401
    )
    assert (
        call(
            "post", f"nodes/{node.pk}/session", a_session_request(node), token=second["node_token"]
        ).status_code
        == 200
    )
    assert call("post", "register", a_registration(), token=token).status_code == 401


def test_an_expired_token_does_not_repeat_its_answer(call: Any) -> None:
    token = issue_enrolment_token(a_cluster())
    a_gpu_type("V100")
    assert call("post", "register", a_registration(), token=token).status_code == 201
    EnrolmentToken.objects.update(expires_at=timezone.now())
    assert call("post", "register", a_registration(), token=token).status_code == 401


def test_one_machine_in_two_clusters_is_two_nodes(call: Any) -> None:
    a_gpu_type("V100")
    for name in ("one", "two"):
        token = issue_enrolment_token(a_cluster(name=name))
        assert call("post", "register", a_registration(), token=token).status_code == 201
    assert set(Node.objects.values_list("cluster__name", flat=True)) == {"one", "two"}


def test_an_expired_enrolment_token_lets_nobody_in(call: Any) -> None:
    token = issue_enrolment_token(a_cluster(), valid_s=-1.0)
    a_gpu_type("V100")
    answer = call("post", "register", a_registration(), token=token)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "token"
    assert answer["WWW-Authenticate"] == "Bearer"


def test_an_unknown_gpu_type_is_refused_naming_the_known_ones_and_the_token_stays_good(
    call: Any,
) -> None:
    token = issue_enrolment_token(a_cluster())
    a_gpu_type("V100")
    a_gpu_type("T4")
    answer = call(
        "post", "register", a_registration(devices=(a_device_report(gpu_type="H900"),)), token=token
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["field"] == "devices[0].gpu_type"
    assert "H900" in error["detail"]
    assert "T4, V100" in error["detail"]
    assert call("post", "register", a_registration(), token=token).status_code == 201


def test_a_machine_with_two_gpu_types_is_told_to_run_two_agents(call: Any) -> None:
    devices = (a_device_report("a", "V100"), a_device_report("b", "T4"))
    answer = call(
        "post",
        "register",
        a_registration(devices=devices),
        token=issue_enrolment_token(a_cluster()),
    )
    assert answer.status_code == 400
    assert "T4, V100; run one agent for each" in answer.json()["error"]["detail"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"devices": (a_device_report("a"), a_device_report("a"))}, "devices"),
        ({"devices": (a_device_report(slots=0),)}, "devices[0].slots"),
        ({"devices": (a_device_report(memory_gb=-1.0),)}, "devices[0].memory_gb"),
        ({"devices": tuple(a_device_report(f"g{i}") for i in range(65))}, "devices"),
        ({"devices": (a_device_report(memory_gb=5000.0),)}, "devices[0].memory_gb"),
        ({"features": tuple(f"f{i}" for i in range(65))}, "features"),
        ({"features": ("x" * 64,)}, "features[0]"),
        ({"cores": 5000.0}, "cores"),
        ({"machine_id": ""}, "machine_id"),
        ({"hostname": "x" * 101}, "hostname"),
        ({"cores": -1.0}, "cores"),
        ({"memory_gb": 1e300}, "memory_gb"),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused_by_field(
    call: Any, wrong: dict[str, Any], field: str
) -> None:
    a_gpu_type("V100")
    answer = call(
        "post", "register", a_registration(**wrong), token=issue_enrolment_token(a_cluster())
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == field
    assert not Node.objects.exists()


def test_a_known_machine_with_a_fresh_token_takes_its_node_over(call: Any) -> None:
    node = a_node_with_agent(token="old", machine_id="machine-1", role=Role.PROFILING)
    answer = call(
        "post",
        "register",
        a_registration(hostname="renamed"),
        token=issue_enrolment_token(node.cluster),
    )
    assert answer.json()["node_id"] == str(node.pk)
    assert call("post", f"nodes/{node.pk}/heartbeat", a_heartbeat(), token="old").status_code == 401
    node.refresh_from_db()
    assert (node.name, node.role) == ("renamed", Role.PROFILING)
    fresh = call(
        "post",
        f"nodes/{node.pk}/session",
        a_session_request(node, "new"),
        token=answer.json()["node_token"],
    )
    assert fresh.json()["epoch"] == 2


def test_a_name_another_machine_has_is_refused_with_the_remedy(call: Any) -> None:
    cluster = a_cluster()
    a_node(cluster, name="volta")
    answer = call("post", "register", a_registration(), token=issue_enrolment_token(cluster))
    assert answer.status_code == 409
    assert answer.json()["error"]["field"] == "name"


@pytest.mark.parametrize("version", ["2", "", "one"])
def test_another_version_of_the_protocol_is_refused_with_both_named(
    call: Any, version: str
) -> None:
    node = a_node_with_agent()
    answer = call("post", f"nodes/{node.pk}/heartbeat", a_heartbeat(), version=version)
    assert answer.status_code == 426
    error = answer.json()["error"]
    assert error["code"] == "protocol"
    assert "version 1" in error["detail"]
    assert (f"version {version}" if version else "none") in error["detail"]


def test_malformed_json_is_refused_naming_the_place(call: Any) -> None:
    node = a_node_with_agent()
    answer = call("post", f"nodes/{node.pk}/heartbeat", b'{"epoch": 1,')
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "body")
    answer = call(
        "post", f"nodes/{node.pk}/heartbeat", b'{"epoch": 1, "seq": "one", "sent_at_s": 0}'
    )
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "seq")


def test_a_body_of_10_mb_is_refused(call: Any) -> None:
    node = a_node_with_agent()
    answer = call("post", f"nodes/{node.pk}/heartbeat", b" " * 10_000_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"


@pytest.mark.parametrize("token", ["", "nobody's", "the token of the nod"])
def test_a_wrong_token_is_refused(call: Any, token: str) -> None:
    node = a_node_with_agent()
    answer = call("post", f"nodes/{node.pk}/heartbeat", a_heartbeat(), token=token)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "token"


def test_a_users_session_opens_nothing_of_the_agents(admin_user: User) -> None:
    node, browser = a_node_with_agent(), SiteClient()
    browser.force_login(admin_user)
    answer = browser.post(
        f"/api/agent/v1/nodes/{node.pk}/heartbeat", headers={"Loadmaster-Protocol": "1"}
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["session", "heartbeat"])
def test_a_token_is_refused_on_another_nodes_address(call: Any, path: str) -> None:
    node = a_node_with_agent()
    other = a_node_with_agent(node.cluster, token="the other's")
    words = a_session_request(other) if path == "session" else a_heartbeat()
    answer = call("post", f"nodes/{other.pk}/{path}", words)
    assert answer.status_code == 403
    other.refresh_from_db()
    assert other.epoch == 1


def test_a_stranger_waits_while_a_session_lives(call: Any) -> None:
    node = a_node_with_agent()
    answer = call("post", f"nodes/{node.pk}/session", a_session_request(node, "another secret"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_lives")
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)
    assert (
        call("post", f"nodes/{node.pk}/session", a_session_request(node, "another secret")).json()[
            "epoch"
        ]
        == 2
    )


def test_a_device_that_vanished_is_kept_as_unhealthy_and_a_new_one_is_added(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    kept, gone = node.devices.order_by("uuid")
    reports = (a_device_report(kept.uuid), a_device_report("GPU-new"))
    call("post", f"nodes/{node.pk}/session", a_session_request(node, devices=reports))
    assert {d.uuid: d.healthy for d in node.devices.all()} == {
        kept.uuid: True,
        gone.uuid: False,
        "GPU-new": True,
    }


def test_every_enrolment_and_session_is_in_the_nodes_history(call: Any) -> None:
    cluster = a_cluster()
    a_gpu_type("V100")
    given = call("post", "register", a_registration(), token=issue_enrolment_token(cluster)).json()
    node = Node.objects.get(pk=given["node_id"])
    call("post", f"nodes/{node.pk}/session", a_session_request(node), token=given["node_token"])
    assert [e.event for e in NodeEvent.objects.filter(node=node)] == ["enrolled", "session"]


def test_the_command_prints_a_token_that_is_stored_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = a_cluster()
    call_command("enrol_token", cluster.name, role="profiling")
    token = capsys.readouterr().out.strip()
    kept = EnrolmentToken.objects.get()
    assert (kept.sha256, kept.role, kept.cluster) == (sha256(token), "profiling", cluster)


@pytest.mark.parametrize("arguments", [("nowhere",), ("local", "--hours", "0")])
def test_the_command_says_what_is_wrong(arguments: tuple[str, ...]) -> None:
    a_cluster(name="local")
    with pytest.raises(CommandError, match=r"known: local|--hours"):
        call_command("enrol_token", *arguments)


def test_machines_of_different_names_join_one_cluster(call: Any) -> None:
    cluster = a_cluster()
    a_gpu_type("V100")
    for name in ("volta", "ampere"):
        words = a_registration(machine_id=name, hostname=name)
        answer = call("post", "register", words, token=issue_enrolment_token(cluster))
        assert answer.status_code == 201
    assert set(Node.objects.values_list("name", flat=True)) == {"volta", "ampere"}
