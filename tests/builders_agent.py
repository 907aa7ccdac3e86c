"""Builders of the agent's tests: a small server that keeps the protocol, specifications, and agents
in virtual or real time.
"""

import contextlib
import gzip
import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from loadmaster.agent.clock import SystemClock
from loadmaster.agent.executor import Parts
from loadmaster.agent.journal import Journal
from loadmaster.agent.loop import Agent, Timing
from loadmaster.agent.node.emulated import Emulation
from loadmaster.agent.node.machine import Devices, EmulatedDevices, Identity, boot_id
from loadmaster.agent.runtimes.base import Runtime
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.client import AgentClient
from loadmaster.protocol import (
    TIME_HEADER,
    AssignmentState,
    Directive,
    DirectiveAction,
    Directives,
    ErrorCode,
    Heartbeat,
    HeartbeatReply,
    Intervals,
    LaunchSpec,
    Lease,
    LogAccepted,
    Registered,
    Registration,
    Session,
    SessionRequest,
    StateAccepted,
    StateReport,
    StopReason,
)
from loadmaster.samples import MetricsBatch, ProgressSample
from loadmaster.wire import dumps, loads
from tests.fake_runtime import FakeRuntime, Script, VirtualClock

ENROLMENT_TOKEN = "enrol-me"
NODE_TOKEN = "node-token"
ENDED = {"succeeded", "failed", "cancelled", "preempted", "rejected", "lost"}
FAST = Timing(tick_s=0.02, ship_s=0.1, sample_s=0.2, flush_s=2.0, long_poll_s=0.2)


def a_spec(assignment: str = "a1", **changes: Any) -> LaunchSpec:
    """A training job of ten steps on the node's first emulated GPU."""
    spec = LaunchSpec(
        assignment=assignment,
        job="job-1",
        job_name="digits",
        fence=1,
        runtime="process",
        command=(sys.executable, "-c", "print('hello')"),
        devices=("emulated-n1-0",),
        gpu_type="V100",
        steps=10,
        grace_s=2.0,
        kind_name="digits",
    )
    return replace(spec, **changes)


def python(code: str) -> tuple[str, ...]:
    """A command that runs some Python."""
    return (sys.executable, "-c", code)


class ServerDown(httpx.ConnectError):
    """The fake server cannot be reached."""

    def __init__(self) -> None:
        super().__init__("the server is down")


@dataclass
class Held:
    """An assignment as the fake server knows it."""

    spec: LaunchSpec
    state: AssignmentState = AssignmentState.OFFERED
    desired: StopReason | None = None
    grace_s: float | None = None
    term_until_s: float | None = None
    term_told: bool = False
    reports: list[StateReport] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=lambda: {"stdout": b"", "stderr": b""})
    batches: list[MetricsBatch] = field(default_factory=list)

    @property
    def states(self) -> list[str]:
        return [report.to.value for report in self.reports]

    @property
    def progress(self) -> list[ProgressSample]:
        return [sample for batch in self.batches for sample in batch.progress]


class FakeServer:
    """Keeps the agent protocol in memory, strictly; `down` makes it unreachable, `faults` answer
    the next calls of a path.

    Use `transport()` in the same process, or `serving()` for an agent in a process of its own.
    """

    def __init__(
        self, lease_s: float = 10.0, heartbeat_s: float = 1.0, grace_s: float = 2.0
    ) -> None:
        self.intervals = Intervals(heartbeat_s, lease_s, grace_s, margin_s=1.0)
        self.epoch = 0
        self.secret = ""
        self.held: dict[str, Held] = {}
        self.sessions: list[SessionRequest] = []
        self.beats: list[Heartbeat] = []
        self.registrations: list[Registration] = []
        self.accepts: list[str] = []
        self.calls: list[str] = []
        self.faults: dict[str, list[tuple[int, bytes]]] = {}
        self.lost_answers: dict[str, int] = {}
        self.down = False
        self.grants = True
        self.clock_s: Callable[[], float] | None = None
        """What it says its clock is; None says nothing, as servers did before."""
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)

    def offer(self, spec: LaunchSpec) -> Held:
        """Put an assignment on offer."""
        with self._news:
            self.held[spec.assignment] = held = Held(spec)
            self._news.notify_all()
        return held

    def stop(self, assignment: str, reason: StopReason, grace_s: float | None = None) -> None:
        """Wish an assignment stopped."""
        with self._news:
            self.held[assignment].desired = reason
            self.held[assignment].grace_s = grace_s
            self._news.notify_all()

    def transport(self) -> httpx.MockTransport:
        """The server without a network."""

        def handle(request: httpx.Request) -> httpx.Response:
            if self.down:
                raise ServerDown
            path = request.url.raw_path.decode()
            status, body = self.answer(request.method, path, dict(request.headers), request.read())
            told = {} if self.clock_s is None else {TIME_HEADER: str(self.clock_s())}
            return httpx.Response(status, content=body, headers=told)

        return httpx.MockTransport(handle)

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """The server on a port of its own; its address."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fake.down:
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = fake.answer(self.command, self.path, headers, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(answer)

            def do_GET(self) -> None:
                self.handle_any()

            def do_POST(self) -> None:
                self.handle_any()

            def do_PUT(self) -> None:
                self.handle_any()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """One call's status and body."""
        address = urlsplit(target)
        path = address.path.removeprefix("/api/agent/v1/")
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        kind = path.rsplit("/", 1)[-1] if "/logs/" not in path else "logs"
        with self._lock:
            self.calls.append(kind)
            if self.faults.get(kind):
                return self.faults[kind].pop(0)
            answered = self._dispatch(method, path, query, headers, body)
            if self.lost_answers.get(kind):
                self.lost_answers[kind] -= 1
                return 502, b"the answer was lost"
            return answered

    def _dispatch(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        if headers.get("loadmaster-protocol") != "1":
            return _refusal(426, ErrorCode.PROTOCOL, "version 1 is spoken here")
        expected = ENROLMENT_TOKEN if path == "register" else NODE_TOKEN
        if headers.get("authorization") != f"Bearer {expected}":
            return _refusal(401, ErrorCode.TOKEN, "no such token")
        match [method, *path.split("/")]:
            case ["POST", "register"]:
                self.registrations.append(loads(Registration, body))
                return 200, dumps(Registered("n1", NODE_TOKEN, self.intervals))
            case ["POST", "nodes", "n1", "session"]:
                return self._session(loads(SessionRequest, body))
            case ["POST", "nodes", "n1", "heartbeat"]:
                return self._heartbeat(loads(Heartbeat, body))
            case ["GET", "nodes", "n1", "directives"]:
                return self._directives(float(query["wait"]))
            case ["PUT", "assignments", assignment, "accept"]:
                return self._accept(assignment, json.loads(body))
            case ["PUT", "assignments", assignment, "state"]:
                return self._state(assignment, loads(StateReport, body))
            case ["PUT" | "POST", "assignments", assignment, *_] if assignment not in self.held:
                return _refusal(409, ErrorCode.STALE_ASSIGNMENT, "not yours")
            case ["PUT", "assignments", assignment, "logs", stream]:
                return self._log(assignment, stream, query, headers, body)
            case ["POST", "assignments", assignment, "metrics"]:
                self.held[assignment].batches.append(loads(MetricsBatch, body))
                return 202, b""
        return 404, b""

    def _session(self, request: SessionRequest) -> tuple[int, bytes]:
        if self.secret and request.session_secret != self.secret:
            return _refusal(409, ErrorCode.SESSION_LIVES, "another machine")
        self.secret = request.session_secret
        self.epoch += 1
        self.sessions.append(request)
        known = {item.id: item for item in request.assignments}
        stop = tuple(
            name for name in known if name not in self.held or self.held[name].state.value in ENDED
        )
        return 200, dumps(
            Session(self.epoch, self.intervals, tuple(n for n in known if n not in stop), stop)
        )

    def _heartbeat(self, beat: Heartbeat) -> tuple[int, bytes]:
        if beat.epoch != self.epoch:
            return _refusal(409, ErrorCode.STALE_EPOCH, "open a new session")
        self.beats.append(beat)
        known = {(item.id, item.fence) for item in beat.assignments}
        renewed = [
            h
            for h in self.held.values()
            if (h.spec.assignment, h.spec.fence) in known and h.state.value not in ENDED
        ]
        leases = (
            tuple(Lease(h.spec.assignment, h.spec.fence, self.intervals.lease_s) for h in renewed)
            if self.grants
            else ()
        )
        return 200, dumps(
            HeartbeatReply(
                self.intervals.heartbeat_s, leases, self._wanted(), cursor=len(self.held)
            )
        )

    def _wanted(self) -> tuple[Directive, ...]:
        wanted = []
        for held in self.held.values():
            name, fence = held.spec.assignment, held.spec.fence
            if held.state.value in ENDED:
                continue
            if held.desired:
                wanted.append(
                    Directive(name, fence, DirectiveAction.STOP, held.desired, held.grace_s)
                )
            elif held.state is AssignmentState.OFFERED:
                wanted.append(Directive(name, fence, DirectiveAction.START))
            elif held.term_until_s is not None or held.term_told:
                wanted.append(
                    Directive(name, fence, DirectiveAction.UPDATE, term_until_s=held.term_until_s)
                )
        return tuple(wanted)

    def _directives(self, wait_s: float) -> tuple[int, bytes]:
        self._news.wait(wait_s)
        return 200, dumps(Directives(self._wanted(), 0))

    def _accept(self, assignment: str, request: dict[str, Any]) -> tuple[int, bytes]:
        held = self.held.get(assignment)
        if held is None or held.spec.fence != request["fence"] or held.state.value in ENDED:
            return _refusal(409, ErrorCode.STALE_ASSIGNMENT, "not on offer")
        self.accepts.append(assignment)
        held.state = AssignmentState.ACCEPTED
        return 200, dumps(held.spec)

    def _state(self, assignment: str, report: StateReport) -> tuple[int, bytes]:
        held = self.held.get(assignment)
        if report.epoch != self.epoch:
            return _refusal(409, ErrorCode.STALE_EPOCH, "open a new session")
        if held is None or held.spec.fence != report.fence:
            return _refusal(409, ErrorCode.STALE_ASSIGNMENT, "not yours")
        if not any(known.seq == report.seq for known in held.reports):
            held.reports.append(report)
            held.state = report.to
        return 200, dumps(StateAccepted(held.state))

    def _log(
        self,
        assignment: str,
        stream: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes,
    ) -> tuple[int, bytes]:
        logs = self.held[assignment].logs
        content = gzip.decompress(body)
        if hashlib.sha256(content).hexdigest() != headers["x-content-sha256"]:
            return _refusal(400, "digest", "torn")
        if int(query["offset"]) != len(logs[stream]):
            return _refusal(409, ErrorCode.OFFSET, "elsewhere", len(logs[stream]))
        logs[stream] += content
        return 200, dumps(LogAccepted(len(logs[stream])))


def _refusal(status: int, code: str, detail: str, expected: object = None) -> tuple[int, bytes]:
    return status, json.dumps(
        {"error": {"code": str(code), "detail": detail, "expected": expected}}
    ).encode()


def an_emulation(**changes: Any) -> Emulation:
    """Two emulated V100s."""
    return replace(
        Emulation("V100", 2, 16.0, idle_w=40.0, peak_w=250.0, step_s={"digits": {1: 0.05}}),
        **changes,
    )


def an_agent(
    server: FakeServer,
    state_dir: Path,
    *,
    runtime: Runtime | None = None,
    clock: VirtualClock | None = None,
    devices: Devices | None = None,
) -> Agent:
    """An agent of node n1 in this process, with real processes unless a runtime is given."""
    client = AgentClient("http://server", transport=server.transport())
    client.identify("n1", NODE_TOKEN)
    parts = Parts(
        client=client,
        journal=Journal(state_dir / "journal.jsonl"),
        runtime=runtime or ProcessRuntime(state_dir / "runs"),
        devices=devices or EmulatedDevices(an_emulation(), "n1"),
        identity=Identity("machine", boot_id(), "host"),
        state_dir=state_dir,
        checkpoints=state_dir / "checkpoints",
        clock=clock or SystemClock(),
    )
    return Agent(parts, timing=FAST, jitter=random.Random(1))


def until(holds: Callable[[], object], agent: Agent | None = None, within_s: float = 15.0) -> None:
    """Wait until something holds, ticking the agent meanwhile; AssertionError if it never does."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, "it never came about"
        if agent:
            agent.tick()
        time.sleep(0.02)


class VirtualWorld:
    """An agent, its fake runtime and the fake server on one virtual clock."""

    def __init__(
        self,
        state_dir: Path,
        script: Callable[[LaunchSpec], Script] = lambda spec: Script(),
        **server: float,
    ) -> None:
        self.clock = VirtualClock()
        self.server = FakeServer(**server)
        self.runtime = FakeRuntime(self.clock, script)
        self.state_dir = state_dir
        self.agent = self.restart(close=False)

    def restart(self, *, close: bool = True) -> Agent:
        """A new agent from the same journal and runtime, as after a kill."""
        if close:
            self.agent.close()
        self.agent = an_agent(self.server, self.state_dir, runtime=self.runtime, clock=self.clock)
        return self.agent

    def pass_time(self, seconds: float, step_s: float = 0.25) -> None:
        """Let time pass, ticking the agent."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.agent.tick()
            self.clock.advance(step_s)
        self.agent.tick()
