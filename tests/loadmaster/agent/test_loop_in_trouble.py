"""The agent's loop where something is missing: room, memory, a server that understands."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.journal import Journal
from loadmaster.agent.runtimes.base import PROGRESS, Exit, LaunchError, RunId
from loadmaster.agent.server.client import Duplicate, Unauthorized, WrongProtocol
from loadmaster.protocol import ReasonClass, StopReason
from tests.builders_agent import VirtualWorld, a_spec
from tests.fake_runtime import Script


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path, lease_s=10.0, heartbeat_s=2.0)


def test_a_machine_that_cannot_prepare_rejects_the_offer_with_its_reason(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, lambda spec: Script(cannot_start="no room"))
    held = world.server.offer(a_spec(steps=2))
    world.pass_time(5)
    assert held.states == ["rejected"]
    assert (held.reports[-1].reason_class, held.reports[-1].reason) == (
        ReasonClass.NODE,
        "no room",
    )
    assert world.agent.is_idle


def test_a_guard_that_cannot_be_started_fails_the_assignment(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: RunId, lease_until_s: float) -> None:
        raise LaunchError("no more processes")

    monkeypatch.setattr(world.runtime, "start", fail)
    held = world.server.offer(a_spec())
    world.pass_time(4)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.NODE)
    assert "no more processes" in held.reports[-1].reason


def test_a_full_disk_takes_no_new_work_and_says_so(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(journal: Journal, raw: bytes, durable: bool) -> None:
        raise OSError("No space left on device")

    world.pass_time(1)
    held = world.server.offer(a_spec())
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", no_room)
        world.pass_time(10)
        assert world.runtime.launches == []
        assert held.states == ["rejected"]
        assert "No space left" in held.reports[-1].reason
        assert world.server.beats[-1].healthy is False
    later = world.server.offer(a_spec("a2", steps=2))
    world.pass_time(30)
    assert later.states[-1] == "succeeded"
    assert world.server.beats[-1].healthy is True


def test_a_node_calls_itself_healthy_again_once_there_is_room(world: VirtualWorld) -> None:
    world.pass_time(1)
    world.server.offer(a_spec(steps=1000))
    world.pass_time(4)

    def no_room(journal: Journal, raw: bytes, durable: bool) -> None:
        raise OSError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_write", no_room)
        world.server.stop("a1", StopReason.CANCEL)
        world.pass_time(6)
        assert world.server.beats[-1].healthy is False
    world.pass_time(6)
    assert world.server.held["a1"].states[-1] == "cancelled"
    assert world.server.beats[-1].healthy is True


@pytest.mark.parametrize("call", ["accept", "state", "heartbeat", "session", "metrics", "logs"])
def test_a_refusal_nobody_foresaw_does_not_end_the_agent(tmp_path: Path, call: str) -> None:
    world = VirtualWorld(tmp_path, lambda spec: Script(stdout=b"hello"))
    world.server.faults[call] = [(404, b"<html>")]
    world.server.offer(a_spec(steps=3))
    world.pass_time(20)
    assert world.agent.is_idle
    assert world.server.beats


def test_an_action_that_fails_for_want_of_room_is_done_later(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(run: RunId, order: object) -> None:
        raise OSError("No space left on device")

    held = world.server.offer(a_spec(steps=1000))
    world.pass_time(4)
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "stop", no_room)
        world.server.stop("a1", StopReason.CANCEL)
        world.pass_time(5)
        assert held.states == ["running"]
    world.pass_time(5)
    assert held.states[-1] == "cancelled"


def test_output_that_cannot_be_shipped_holds_the_end_up_only_for_a_moment(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, lambda spec: Script(stdout=b"hello"))
    held = world.server.offer(a_spec(steps=2))
    world.server.faults["logs"] = [(503, b"")] * 1000
    world.pass_time(8)
    assert held.states[-1] == "succeeded"
    assert not world.agent.is_idle
    world.server.faults["logs"] = []
    world.pass_time(20)
    assert held.logs["stdout"] == b"hello"
    assert world.agent.is_idle


def test_a_job_over_its_memory_is_stopped(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, lambda spec: Script(memory_gb=3.0))
    held = world.server.offer(a_spec(steps=1000, memory_gb=2.0))
    world.pass_time(10)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.OOM)


def test_a_copy_of_the_state_folder_elsewhere_ends_the_agent(world: VirtualWorld) -> None:
    world.pass_time(1)
    duplicate = b'{"error": {"code": "duplicate", "detail": "a copy has the session"}}'
    world.server.faults["heartbeat"] = [(409, b'{"error": {"code": "stale_epoch"}}')]
    world.server.faults["session"] = [(409, duplicate)]
    with pytest.raises(Duplicate, match="a copy has the session"):
        world.pass_time(30)


@pytest.mark.parametrize(("status", "error"), [(401, Unauthorized), (426, WrongProtocol)])
def test_what_no_repetition_cures_ends_the_agent(
    world: VirtualWorld, status: int, error: type[Exception]
) -> None:
    world.pass_time(1)
    world.server.faults["heartbeat"] = [(status, b"")] * 50
    with pytest.raises(error):
        world.pass_time(10)


def test_a_report_the_server_refuses_is_dropped_and_the_agent_goes_on(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=3))
    world.server.faults["state"] = [(409, b'{"error": {"code": "illegal_move", "detail": ""}}')]
    world.pass_time(8)
    assert held.states == ["succeeded"]
    assert world.agent.is_idle


@pytest.mark.parametrize("reason", ["rank \ud800 fell", "rank \0 fell"])
def test_a_reason_of_a_job_that_no_journal_or_server_takes_is_told_with_question_marks(
    world: VirtualWorld, reason: str
) -> None:
    held, other = world.server.offer(a_spec()), world.server.offer(a_spec("a2", devices=()))
    world.pass_time(2)
    says(world, {"event": "fell", "reason": reason})
    world.runtime.plays[RunId("a1", 1)].exit = Exit(world.clock.now_s, exit_code=1)
    world.agent.tick()
    world.restart()
    world.pass_time(20)
    assert (held.states[-1], held.reports[-1].reason) == ("failed", "rank ? fell")
    assert other.states[-1] == "succeeded"


@pytest.mark.parametrize("event", [[], {}, 1])
def test_a_report_of_progress_whose_event_is_no_text_is_ignored(
    world: VirtualWorld, event: Any
) -> None:
    held = world.server.offer(a_spec(steps=3))
    world.pass_time(2)
    says(world, {"event": event})
    world.pass_time(20)
    assert held.states[-1] == "succeeded"
    assert world.agent.is_idle


def says(world: VirtualWorld, line: dict[str, Any]) -> None:
    """Let the job a1 write a line of progress."""
    streams = world.runtime.plays[RunId("a1", 1)].streams
    streams[PROGRESS] = streams.get(PROGRESS, b"") + json.dumps(line).encode() + b"\n"


def test_a_stray_that_cannot_be_removed_costs_little_and_keeps_nothing(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def fail(run: RunId) -> None:
        tries.append(world.clock.boot_s())
        raise PermissionError("the folder is another's")

    held = world.server.offer(a_spec(steps=2))
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "remove", fail)
        world.pass_time(600, step_s=2)
        assert held.states[-1] == "succeeded"
        assert world.agent.is_idle
        assert world.runtime.list()
        assert 2 < len(tries) < 30
    world.pass_time(3600, step_s=10)
    assert not world.runtime.list()
