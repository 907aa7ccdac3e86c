"""What the agent writes to stderr: text or JSON, with ids, without secrets."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.agent import logs, start
from loadmaster.agent.cli import agent_app
from loadmaster.agent.logs import Lines, LogContext
from loadmaster.protocol import StopReason
from tests.builders_agent import VirtualWorld, a_spec

SECRET = "s3cr3t-value-0123456789"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> LogContext:
    fresh = LogContext()
    for module in ("logs", "loop", "executor", "start"):
        monkeypatch.setattr(f"loadmaster.agent.{module}.log_context", fresh)
    return fresh


@pytest.fixture
def said(known: LogContext) -> Iterator[io.StringIO]:
    """Every line of the agent's loggers, at DEBUG, as JSON."""
    stream, logger = io.StringIO(), logging.getLogger("loadmaster.agent")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines("json", known))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def events(said: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.getvalue().splitlines()]


def a_line(known: LogContext, form: str, message: str, *args: object, **more: Any) -> str:
    record = logging.LogRecord(
        "loadmaster.agent.loop", logging.WARNING, "", 1, message, args, more.get("exc_info")
    )
    return Lines(form, known).format(record)


def test_a_line_of_json_names_node_assignment_fence_and_job(known: LogContext) -> None:
    known.node = "n-1"
    known.take(a_spec("a1", job="j-1"))
    event = json.loads(a_line(known, "json", "%s failed: %s", "state lm-a1-3", "503"))
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "warning", "logger": "loadmaster.agent.loop", "event": "state lm-a1-3 failed: 503",
        "node": "n-1", "assignment": "a1", "fence": 3, "job": "j-1",
    }  # fmt: skip
    known.forget("a1")
    assert "job" not in json.loads(a_line(known, "json", "lm-a1-3 is started"))
    assert "assignment" not in json.loads(a_line(known, "json", "heartbeat failed"))


@pytest.mark.parametrize("form", logs.FORMATS)
def test_secrets_of_launches_tokens_and_tracebacks_are_masked(known: LogContext, form: str) -> None:
    known.hide("the node's token", "")
    known.take(a_spec("a1", secrets={"KEY": SECRET}))
    try:
        raise ValueError(f"bad value {SECRET}")
    except ValueError:
        line = a_line(
            known,
            form,
            "lm-a1-1: %s",
            f"{SECRET}, the node's token, Bearer abcdefgh12345",
            exc_info=sys.exc_info(),
        )
    assert "ValueError" in line
    for secret in (SECRET, "the node's token", "abcdefgh12345"):
        assert secret not in line


def test_what_a_server_says_stays_within_its_line(known: LogContext) -> None:
    for form in ("console", "json"):
        line = a_line(known, form, "refused: %s", "no\n2026-01-01 INFO forged\x1b[2J")
        assert "\n" not in line
        assert "\x1b" not in line


def test_an_agent_names_the_job_of_what_it_does(tmp_path: Path, said: io.StringIO) -> None:
    world = VirtualWorld(tmp_path)
    world.server.offer(a_spec("a1", job="j-1", steps=100, secrets={"KEY": SECRET}))
    world.pass_time(5.0)
    started = next(event for event in events(said) if event["event"].endswith("is started"))
    assert (started["assignment"], started["fence"], started["job"]) == ("a1", 1, "j-1")
    assert SECRET not in said.getvalue()
    said.truncate(0)
    said.seek(0)
    world.restart()
    world.server.stop("a1", StopReason.PREEMPT)
    world.pass_time(5.0)
    assert {event.get("job") for event in events(said) if event.get("assignment") == "a1"} == {
        "j-1"
    }


def test_the_format_comes_from_option_or_environment_and_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms: list[str] = []
    monkeypatch.setattr("loadmaster.agent.cli.serve", lambda settings: 0)
    monkeypatch.setattr(
        "loadmaster.agent.cli.logs.set_up", lambda form, *, verbose: forms.append(form)
    )
    run = CliRunner().invoke
    server = ["--server", "http://127.0.0.1:9"]
    assert run(agent_app, [*server, "--log-format", "json"]).exit_code == 0
    assert run(agent_app, server, env={"LOADMASTER_LOG_FORMAT": "json"}).exit_code == 0
    assert run(agent_app, server).exit_code == 0
    assert forms == ["json", "json", "console"]
    refused = run(agent_app, [*server, "--log-format", "xml"])
    assert refused.exit_code == start.EXIT_CONFIG
    assert "--log-format: must be one of console, json" in refused.output
