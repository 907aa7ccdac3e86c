"""GPUs in trouble as the server hears of them: kept, told to people, and offered to no policy."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from clusters.models import Node, RescheduleEvent
from clusters.plausible import LONGEST_TROUBLE
from clusters.services.enrolment import issue_enrolment_token, register
from controlplane.execution.services.sessions import open_session
from controlplane.operations.prometheus import StateCollector, exposition
from jobs.submission.validation import JobInvalid, validate_job
from loadmaster.protocol import UNIDENTIFIED, DeviceSample, StopReason
from tests.builders import a_cluster, a_gpu_type, a_node, a_team, a_user
from tests.builders_agents import (
    a_device_report,
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_running_assignment,
    a_session_request,
)
from tests.builders_agents import heartbeat as beat_of
from tests.builders_jobs import job_fields
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db

MISMATCH = "Driver/library version mismatch"


@pytest.fixture
def node() -> Node:
    return a_node_with_agent(a_cluster(name="lab"), name="node-1", gpu_type="A100")


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


def beat(node: Node, *samples: DeviceSample, seq: int = 1, **values: Any) -> None:
    """A heartbeat of the node's agent with these samples."""
    beat_of(node.pk, a_heartbeat(seq=seq, devices=samples, **values), timezone.now())


def troubles(node: Node) -> dict[str, tuple[bool, str]]:
    """Health and trouble of the node's devices by uuid."""
    return {d.uuid: (d.healthy, d.trouble) for d in node.devices.all()}


def uuids(node: Node) -> list[str]:
    return sorted(node.devices.values_list("uuid", flat=True))


def test_a_gpu_that_breaks_is_kept_with_nvmls_words_and_an_event(node: Node) -> None:
    good, bad = uuids(node)
    RescheduleEvent.objects.all().delete()
    lost = DeviceSample(bad, healthy=False, trouble="GPU is lost")
    beat(node, DeviceSample(good), lost)
    assert troubles(node) == {good: (True, ""), bad: (False, "GPU is lost")}
    event = node.events.get(event="devices")
    assert event.data == {"healthy": {bad: False}, "trouble": {bad: "GPU is lost"}}
    assert RescheduleEvent.objects.count() == 1
    beat(node, DeviceSample(good), lost, seq=2)
    assert node.events.filter(event="devices").count() == 1


def test_a_gpu_that_recovers_is_healthy_again_without_words(node: Node) -> None:
    good, bad = uuids(node)
    beat(node, DeviceSample(good), DeviceSample(bad, healthy=False, trouble="GPU is lost"))
    beat(node, DeviceSample(good), DeviceSample(bad), seq=2)
    assert troubles(node) == {good: (True, ""), bad: (True, "")}
    assert node.events.filter(event="devices").count() == 2


def test_a_warning_is_kept_and_taken_back_without_an_event(node: Node) -> None:
    good, warm = uuids(node)
    RescheduleEvent.objects.all().delete()
    beat(node, DeviceSample(good), DeviceSample(warm, trouble="slowed down"))
    assert troubles(node)[warm] == (True, "slowed down")
    beat(node, DeviceSample(good), DeviceSample(warm), seq=2)
    assert troubles(node)[warm] == (True, "")
    assert not node.events.filter(event="devices").exists()
    assert not RescheduleEvent.objects.exists()


def test_long_words_with_control_characters_are_cut_and_cleaned(node: Node) -> None:
    bad = uuids(node)[1]
    beat(node, DeviceSample(bad, healthy=False, trouble="\x1b[31m" + "x" * 1000))
    kept = troubles(node)[bad][1]
    assert len(kept) == LONGEST_TROUBLE
    assert kept.startswith("?[31mxxx")


def test_a_session_without_gpus_for_a_mismatch_keeps_them_as_unhealthy(node: Node) -> None:
    request = a_session_request(node, devices=(), gpu_trouble=MISMATCH)
    open_session(node.pk, request)
    node.refresh_from_db()
    assert (node.type_name, node.gpu_trouble) == ("A100", MISMATCH)
    assert set(troubles(node).values()) == {(False, MISMATCH)}
    assert node.events.get(event="devices").data["trouble"] == dict.fromkeys(uuids(node), MISMATCH)


def test_a_broken_gpu_that_vanishes_has_the_newest_words(node: Node) -> None:
    bad = uuids(node)[1]
    beat(node, DeviceSample(bad, healthy=False, trouble="GPU is lost"))
    open_session(node.pk, a_session_request(node, devices=(), gpu_trouble=MISMATCH))
    assert troubles(node)[bad] == (False, MISMATCH)


def test_a_session_of_an_older_agent_without_gpus_has_no_type(node: Node) -> None:
    open_session(node.pk, a_session_request(node, devices=()))
    node.refresh_from_db()
    assert (node.type_name, node.gpu_trouble) == ("", "")
    assert set(troubles(node).values()) == {(False, "its agent no longer reports it")}


def test_a_heartbeat_tells_and_takes_back_what_is_wrong_with_nvml(node: Node) -> None:
    beat(node, gpu_trouble=MISMATCH)
    node.refresh_from_db()
    assert node.gpu_trouble == MISMATCH
    beat(node, seq=2)
    node.refresh_from_db()
    assert node.gpu_trouble == ""
    told = [event.data["trouble"] for event in node.events.filter(event="gpus")]
    assert told == [MISMATCH, ""]


def test_a_gpu_that_had_no_uuid_is_replaced_by_the_one_that_it_tells() -> None:
    a_gpu_type("V100")
    unknown = a_device_report(f"{UNIDENTIFIED}1", healthy=False, trouble="GPU is lost")
    words = a_registration(devices=(a_device_report("GPU-0"), unknown))
    register(issue_enrolment_token(a_cluster()), words)
    node = Node.objects.get()
    assert troubles(node)[f"{UNIDENTIFIED}1"] == (False, "GPU is lost")
    both = (a_device_report("GPU-0"), a_device_report("GPU-1"))
    open_session(node.pk, a_session_request(node, devices=both))
    assert troubles(node) == {"GPU-0": (True, ""), "GPU-1": (True, "")}


def test_the_next_round_takes_a_job_off_a_gpu_that_broke(node: Node) -> None:
    running = a_running_assignment(node, now=timezone.now())
    held = running.slots.get().device.uuid
    beat(node, DeviceSample(held, healthy=False, trouble="GPU is lost"))
    running.refresh_from_db()
    assert (running.state, running.desired) == ("running", "run")
    a_round(node.cluster)
    running.refresh_from_db()
    assert running.desired == StopReason.PREEMPT


class TestSubmission:
    """Words of a submission that needs unhealthy GPUs."""

    def test_names_the_unhealthy_gpu_and_its_node(self, node: Node, user: User) -> None:
        good, bad = uuids(node)
        beat(node, DeviceSample(good), DeviceSample(bad, healthy=False, trouble="GPU is lost"))
        fields = job_fields(allowed_types=["A100"], gpus=2)
        (warning,) = validate_job(user, fields).warnings
        assert "A100 on node-1 is unhealthy: GPU is lost" in warning
        assert validate_job(user, job_fields(allowed_types=["A100"], gpus=1)).warnings == ()

    def test_names_each_unhealthy_gpu_up_to_three(self, user: User) -> None:
        node = a_node(a_cluster(name="lab"), name="node-1", gpu_type="A100", gpus=5)
        node.devices.update(healthy=False, trouble="GPU is lost")
        (warning,) = validate_job(user, job_fields(allowed_types=["A100"])).warnings
        assert warning.count("A100 on node-1 is unhealthy: GPU is lost") == 3
        assert "and 2 more" in warning

    def test_names_a_node_whose_gpus_cannot_be_reached(self, user: User) -> None:
        cluster = a_cluster(name="lab")
        a_gpu_type("A100")
        a_node(cluster, name="node-1", gpus=0, gpu_trouble=MISMATCH)
        with pytest.raises(JobInvalid) as raised:
            validate_job(user, job_fields(allowed_types=["A100"]))
        (message,) = raised.value.fields["allowed_types"]
        assert f"GPUs of node-1 may be missing: {MISMATCH}" in message


class TestShown:
    """What people and monitoring see of unhealthy GPUs."""

    @pytest.fixture
    def bad(self, node: Node) -> str:
        bad = uuids(node)[1]
        node.devices.filter(uuid=bad).update(healthy=False, trouble="GPU is <lost>")
        Node.objects.filter(pk=node.pk).update(gpu_trouble=MISMATCH)
        return bad

    def test_on_the_card_of_the_node(self, client: Client, user: User, bad: str) -> None:
        client.force_login(user)
        page = client.get("/nodes/").content.decode()
        assert "unhealthy: GPU is &lt;lost&gt;" in page
        assert f"GPUs may be missing: {MISMATCH}" in page

    def test_in_rest(self, client: Client, user: User, bad: str) -> None:
        client.force_login(user)
        (found,) = client.get("/api/v1/nodes/").json()["results"]
        assert found["gpu_trouble"] == MISMATCH
        told = {d["uuid"]: (d["healthy"], d["trouble"]) for d in found["devices"]}
        assert told[bad] == (False, "GPU is <lost>")

    def test_in_the_metrics(self, bad: str) -> None:
        text = exposition([StateCollector()]).decode()
        assert 'loadmaster_gpus_unhealthy{cluster="lab"} 1.0' in text


def test_silence_is_no_reason_to_forget_a_trouble(node: Node) -> None:
    good, bad = uuids(node)
    beat(node, DeviceSample(bad, healthy=False, trouble="GPU is lost"))
    beat(node, DeviceSample(good), seq=2)
    assert troubles(node)[bad] == (False, "GPU is lost")
