"""The strict edge between JSON and dataclasses."""

from dataclasses import dataclass

import pytest

from loadmaster.protocol import (
    AssignmentState,
    Directive,
    DirectiveAction,
    Heartbeat,
    HeartbeatReply,
    KnownAssignment,
    LaunchSpec,
    Lease,
    StateReport,
    StopReason,
)
from loadmaster.wire import WireError, dumps, from_json, loads, to_json

LAUNCH = {
    "assignment": "a1",
    "job": "j1",
    "job_name": "digits",
    "fence": 3,
    "runtime": "process",
    "command": ["python", "train.py"],
    "devices": ["gpu-0"],
    "gpu_type": "V100",
}


def test_what_was_written_reads_back_equal() -> None:
    reply = HeartbeatReply(
        next_heartbeat_s=2.5,
        leases=(Lease("a1", 3, 8.0),),
        directives=(
            Directive("a1", 3, DirectiveAction.STOP, stop_reason=StopReason.PREEMPT, grace_s=30.0),
        ),
        cursor=7,
    )
    assert loads(HeartbeatReply, dumps(reply)) == reply


def test_fields_left_out_take_their_defaults() -> None:
    spec = from_json(LaunchSpec, LAUNCH)
    assert spec.command == ("python", "train.py")
    assert spec.environment == {}
    assert spec.steps_quota is None


def test_an_integer_passes_for_a_float_and_becomes_one() -> None:
    spec = from_json(LaunchSpec, {**LAUNCH, "grace_s": 5})
    assert isinstance(spec.grace_s, float)


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        ({"fence": "3"}, "fence", "must be an integer"),
        ({"fence": True}, "fence", "must be an integer"),
        ({"fence": 3.5}, "fence", "must be an integer"),
        ({"fence": 2**63}, "fence", "must be >= .* and <= 9.22337e\\+18"),
        ({"share": 10**400}, "share", "finite"),
        ({"share": float("nan")}, "share", "finite"),
        ({"share": False}, "share", "must be a finite number, not false"),
        ({"share": None}, "share", "must be a finite number, not null"),
        ({"job": 7}, "job", "must be a string"),
        ({"job": "a\x00b"}, "job", "NUL"),
        ({"job": "\ud800"}, "", "is no JSON"),
        ({"command": "python"}, "command", "must be an array"),
        ({"command": ["python", 3]}, "command[1]", "must be a string"),
        ({"environment": []}, "environment", "must be an object"),
        ({"environment": {"A": 1}}, "environment.A", "must be a string"),
        ({"environment": {"A\x00": "1"}}, "environment", "NUL"),
        ({"surprise": 1}, "surprise", "no such field; known are: assignment, job"),
    ],
)
def test_what_does_not_fit_is_refused_and_its_place_named(
    change: dict[str, object], path: str, problem: str
) -> None:
    with pytest.raises(WireError, match=problem) as caught:
        from_json(LaunchSpec, {**LAUNCH, **change})
    assert caught.value.path == path


def test_a_missing_field_is_named() -> None:
    with pytest.raises(WireError, match="fence: is missing"):
        from_json(LaunchSpec, {key: value for key, value in LAUNCH.items() if key != "fence"})


def test_the_path_leads_through_arrays() -> None:
    data = to_json(
        Heartbeat(
            epoch=1,
            seq=1,
            sent_at_s=0.0,
            assignments=(KnownAssignment("a", 1, AssignmentState.RUNNING),),
        )
    )
    data["assignments"][0]["state"] = "dancing"
    with pytest.raises(WireError, match="must be one of offered, accepted") as caught:
        from_json(Heartbeat, data)
    assert caught.value.path == "assignments[0].state"


@pytest.mark.parametrize("value", [None, [], "text", 3, True, object()])
def test_a_payload_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="payload: must be an object"):
        from_json(Heartbeat, value)


@pytest.mark.parametrize("text", [b"{", b"\xff", "", b"[" * 100_000, b'{"epoch": "\\ud800"}'])
def test_text_that_is_no_json_is_refused(text: bytes | str) -> None:
    with pytest.raises(WireError, match="is no JSON"):
        loads(Heartbeat, text)


def test_an_error_never_repeats_a_text_it_refuses() -> None:
    with pytest.raises(WireError) as caught:
        from_json(LaunchSpec, {**LAUNCH, "secrets": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_numbers_that_are_not_finite_are_not_written() -> None:
    report = StateReport(
        epoch=1, fence=1, seq=1, to=AssignmentState.RUNNING, observed_at_s=float("inf")
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(report)


def test_only_dataclass_instances_are_written() -> None:
    @dataclass
    class Thing:
        size: int

    with pytest.raises(TypeError, match="takes a dataclass instance"):
        to_json(Thing)
