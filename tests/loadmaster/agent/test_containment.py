"""A failure of one run is logged once, and ends neither the agent nor another run."""

import errno
import json
import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent import containment
from loadmaster.agent.containment import Containment
from loadmaster.agent.runtimes import folders
from loadmaster.agent.runtimes.base import Launch, RunId, RunState
from loadmaster.agent.runtimes.docker import DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.docker.port import Container
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.client import Unauthorized
from loadmaster.files import write_json
from loadmaster.protocol import StopReason
from tests.builders_agent import VirtualWorld, a_spec, until
from tests.builders_docker_played import PlayedEngine
from tests.fake_runtime import Script

RUN, OTHER = RunId("a1", 1), RunId("a2", 1)


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path, lambda spec: Script(stdout=b"hello"), lease_s=10.0)


def failing(
    monkeypatch: pytest.MonkeyPatch, on: object, name: str, error: Exception | None = None
) -> None:
    """Let a call fail for the run a1."""
    call: Callable[..., Any] = getattr(on, name)

    def one_fails(run: RunId, *given: Any, **named: Any) -> Any:
        if run == RUN:
            raise error or RuntimeError("unforeseen")
        return call(run, *given, **named)

    monkeypatch.setattr(on, name, one_fails)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Errors about the run a1."""
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    return [text for record in records if RUN.name in (text := record.getMessage())]


@pytest.mark.parametrize(
    "call", ["poll", "start", "renew", "usage", "size", "read", "write_note", "read_note"]
)
def test_a_call_that_fails_for_one_run_leaves_the_others_alone(
    world: VirtualWorld, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = world.server.offer(a_spec())
    other = world.server.offer(a_spec("a2", devices=("emulated-n1-1",), steps=30))
    with monkeypatch.context() as patch:
        failing(patch, world.runtime, call)
        world.pass_time(40)
        assert other.states[-1] == "succeeded"
    world.pass_time(80)
    assert held.reports
    assert world.runtime.launches.count(RUN) <= 1
    assert world.agent.is_idle


def test_a_run_that_cannot_be_looked_at_is_neither_started_nor_ended(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps its lease, and is stopped if the server says so."""
    held = world.server.offer(a_spec(steps=1000))
    world.pass_time(2)
    with monkeypatch.context() as patch:
        failing(patch, world.runtime, "poll", OSError(errno.EIO, "the disk fails"))
        world.pass_time(30)
        assert (held.states, world.runtime.launches) == (["running"], [RUN])
        assert world.runtime.plays[RUN].lease_until_s > world.clock.now_s
        assert len([text for text in told(caplog) if "looking at it" in text]) == 1
        world.server.stop("a1", StopReason.CANCEL)
        world.pass_time(5)
        assert held.states[-1] == "stopping"
    world.pass_time(20)
    assert held.states[-1] == "cancelled"


def test_an_end_is_told_although_its_output_cannot_be_read(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = world.server.offer(a_spec(steps=3))
    world.pass_time(2)
    failing(monkeypatch, world.agent._shipper, "ship")
    world.pass_time(20)
    assert held.states[-1] == "succeeded"
    assert len(told(caplog)) == 1


def test_failures_are_told_once_of_a_kind_and_not_remembered_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(containment, "REMEMBERED", 2)
    tried = Containment(Unauthorized)
    for error in (OSError("a"), OSError("b"), ValueError("c"), KeyError("d"), OSError("e")):
        with tried(RUN, "a look"):
            raise error
    assert [text[-1] for text in told(caplog)] == ["a", "c", "'", "e"]
    with pytest.raises(Unauthorized), tried(RUN, "a look"):
        raise Unauthorized(401, "token", "no")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_cannot_be_read_for_a_while_loses_nothing_and_keeps_no_other(
    world: VirtualWorld, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, words = world.runtime.size, {"stdout": b"hello", "stderr": b"sorry"}
    held = world.server.offer(a_spec(steps=3))

    def one_fails(run: RunId, name: str) -> int:
        if name == stream:
            raise OSError(errno.EIO, "the disk fails")
        return size(run, name)

    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "size", one_fails)
        world.pass_time(2)
        world.runtime.plays[RUN].streams["stderr"] = b"sorry"
        world.pass_time(6)
        assert {name: held.logs[name] for name in words} == {**words, stream: b""}
    world.pass_time(20)
    assert held.states[-1] == "succeeded"
    assert {name: held.logs[name] for name in words} == words


def test_an_offer_that_cannot_be_looked_at_is_rejected_with_the_reason(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(launch: Launch) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(world.runtime, "objection", fail)
    held = world.server.offer(a_spec())
    world.pass_time(5)
    assert held.states == ["rejected"]
    assert "stale file handle" in (held.reports[-1].reason or "")


def test_an_offer_that_fails_unforeseen_is_asked_for_less_and_less_often(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def fail(launch: Launch) -> None:
        asked.append(world.clock.now_s)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(world.runtime, "objection", fail)
    world.server.offer(a_spec())
    world.pass_time(20)
    assert 1 < len(asked) < 12


def cannot_be_read(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let no stream be opened."""

    def fail(path: Path) -> int:
        raise OSError(number, "cannot be read", str(path))

    monkeypatch.setattr(folders, "open_plain", fail)


class TestFiles:
    """Files that a job has made unreadable, or wrote as it liked."""

    @pytest.fixture
    def runtime(self, tmp_path: Path) -> ProcessRuntime:
        runtime = ProcessRuntime(tmp_path / "runs")
        spec = a_spec()
        runtime.prepare(Launch(RUN, spec, {}, 1.0, "boot"))
        return runtime

    @pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
    def test_a_stream_that_is_not_there_or_that_its_job_closed_counts_as_empty(
        self, runtime: ProcessRuntime, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cannot_be_read(monkeypatch, number)
        assert runtime.read(RUN, "stdout", 0, 10) == b""
        assert runtime.size(RUN, "progress") == 0

    @pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
    def test_a_stream_that_cannot_be_read_just_now_is_not_taken_for_empty(
        self, runtime: ProcessRuntime, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cannot_be_read(monkeypatch, number)
        with pytest.raises(OSError, match="cannot be read"):
            runtime.size(RUN, "stdout")

    def test_an_agent_with_more_rights_than_a_job_reads_a_named_file_only_if_it_is_the_users(
        self, runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, theirs = tmp_path / "own", Path("/etc/passwd")
        own.write_text("ours")
        if os.getuid() == 0:
            for path in (own, runtime.folder(RUN) / "work"):
                os.chown(path, 4242, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 4243)
        for path, said in ((own, b"ours"), (theirs, b"")):
            write_json(runtime.folder(RUN) / folders.OUTPUTS, {"stdout": str(path)})
            assert runtime.read(RUN, "stdout", 0, 10) == said

    @pytest.mark.parametrize("word", [{"ended_at_s": 1e999}, {"exit_code": "x"}, {}])
    def test_an_end_that_makes_no_sense_is_none(
        self, runtime: ProcessRuntime, word: dict[str, Any]
    ) -> None:
        (runtime.folder(RUN) / "exit.json").write_text(json.dumps({"started": True, **word}))
        assert runtime.poll(RUN).state is RunState.PREPARED

    def test_a_lease_that_is_no_number_is_none(self, runtime: ProcessRuntime) -> None:
        (runtime.folder(RUN) / "lease.json").write_text('{"deadline_s": "late"}')
        (runtime.folder(RUN) / "guard.pid").write_text("{}")
        runtime._guards[RUN] = 1
        assert runtime._status(RUN, is_guarded=True).lease_until_s is None

    def test_a_note_that_is_no_text_is_none(self, runtime: ProcessRuntime) -> None:
        (runtime.folder(RUN) / "shipping.json").write_bytes(b"\xff")
        assert runtime.read_note(RUN) == ""


class TestContainers:
    """The thread that watches containers."""

    def test_one_container_that_fails_leaves_the_others_guarded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = PlayedEngine()
        with closing(DockerRuntime(tmp_path / "runs", engine, "me", DockerOptions())) as runtime:
            failing(monkeypatch, runtime, "_trim")
            monkeypatch.setattr(runtime, "_latest_end_s", lambda run: 0.0)
            running = Container("running", {"loadmaster.owner": "me"})
            engine.made |= {run.name: running for run in (RUN, OTHER)}
            until(lambda: engine.made[OTHER.name].has_ended)
            engine.made[OTHER.name] = replace(running)
            until(lambda: engine.made[OTHER.name].has_ended)
        assert len(told(caplog)) == 1

    def test_a_look_that_fails_unforeseen_is_not_the_last_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loadmaster.agent.runtimes.docker.watch.LOOK_AGAIN_S", 0.05)
        engine = PlayedEngine()
        with closing(DockerRuntime(tmp_path / "runs", engine, "me", DockerOptions())) as runtime:
            looks: list[str] = []

            def fail(owner: str) -> None:
                looks.append(owner)
                raise RuntimeError("unforeseen")

            with monkeypatch.context() as patch:
                patch.setattr(engine, "runs", fail)
                until(lambda: len(looks) > 1)
            engine.made[RUN.name] = Container("running", {"loadmaster.owner": "me"})
            until(lambda: RUN in runtime.list())
