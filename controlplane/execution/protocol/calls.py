"""Calls of the agent protocol: each parses its request, calls one service, and answers."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from re import Match, Pattern
from typing import Any
from uuid import UUID

from django.conf import settings

from clusters.agent_errors import AgentCallError, check_launches, not_yours, unknown_token
from clusters.models import Node
from clusters.services.enrolment import check_enrolment_token, sha256
from clusters.services.enrolment import register as register_node
from controlplane.execution.protocol.heartbeat_batch import HeartbeatBatch
from controlplane.execution.protocol.long_poll import LongPolls
from controlplane.execution.protocol.requests import Request
from controlplane.execution.services import assignment_metrics, assignments, logs, sessions
from controlplane.execution.services.heartbeats import Call
from controlplane.web.http import throttling
from loadmaster.protocol import (
    Accept,
    Directives,
    Heartbeat,
    HeartbeatReply,
    LaunchSpec,
    LogAccepted,
    Registered,
    Registration,
    Session,
    SessionRequest,
    StateAccepted,
    StateReport,
)
from loadmaster.samples import MetricsAccepted, MetricsBatch

log = logging.getLogger(__name__)
PREFIX = "/api/agent/v1/"
LARGEST_REGISTRATION = 1 << 18
"""Bytes that are read before the token is checked."""

LARGEST_HEARTBEAT = 1 << 20
"""Bytes that are parsed in the event loop: 4,000 launches have half as many."""

HEX = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PARTS = {"uuid": HEX, "str": "[^/]+"}


@dataclass(frozen=True, slots=True)
class Batchers:
    """Batched calls of a web process."""

    heartbeats: HeartbeatBatch
    polls: LongPolls


def register(request: Request) -> Registered:
    """Exchange a single-use enrolment token (as bearer token) for a node and its token."""
    tries = throttling.begin("enrolment", address=throttling.network_of(request.address))
    if (retry_s := throttling.retry_after_s(tries)) is not None:
        log.warning("too many failures at enrolment")
        headers = {"Retry-After": str(retry_s)}
        raise AgentCallError(429, "throttled", throttling.refusal_text(retry_s), headers=headers)
    failed = False
    try:
        check_enrolment_token(request.token)
        return register_node(request.token, request.parse(Registration))
    except AgentCallError as refusal:
        failed = refusal.status == 401
        raise
    finally:
        if not failed:
            throttling.take_back(tries)


def open_session(request: Request) -> Session:
    """Open a session: its epoch, and which known assignments go on or stop."""
    node = _node_key(request)
    if node != request.id("node_id"):
        raise not_yours()
    return sessions.open_session(node, request.parse(SessionRequest))


async def heartbeat(request: Request, waiting: Batchers) -> HeartbeatReply:
    """Renew the leases of the listed assignments; learn everything wanted and not yet done."""
    token, beat = sha256(request.token), request.parse(Heartbeat)
    check_launches(beat.assignments)
    return await waiting.heartbeats.take(Call(request.id("node_id"), beat, token))


async def directives(request: Request, waiting: Batchers) -> Directives | None:
    """Learn what became wanted of the node after the cursor, as soon as there is something."""
    token, node = sha256(request.token), request.id("node_id")
    cursor, wait_s = request.integer("cursor", 0), request.number("wait", 0.0)
    found = await waiting.polls.wait(node, token, cursor, wait_s)
    return found if found.directives else None


def accept(request: Request) -> LaunchSpec:
    """Accept an offer; the answer is everything needed to run it, secrets included."""
    node = _node_key(request)
    return assignments.accept(node, request.id("assignment_id"), request.parse(Accept))


def report_state(request: Request) -> StateAccepted:
    """Report a state; a replay gets 200, a stale report 409."""
    node, assignment = _node_key(request), request.id("assignment_id")
    state = assignments.report_state(node, assignment, request.parse(StateReport))
    return StateAccepted(state)


def append_log(request: Request) -> LogAccepted:
    """Append a gzip piece of a stream; 409 says the offset expected."""
    following = logs.append_log(
        _node(request),
        request.id("assignment_id"),
        request.names["stream"],
        offset=request.integer("offset"),
        epoch=request.integer("epoch"),
        fence=request.integer("fence"),
        body=request.body,
        digest=request.header("x-content-sha256"),
        skipped=request.integer("skipped", default=0) == 1,
    )
    return LogAccepted(following)


def record_metrics(request: Request) -> MetricsAccepted:
    """Take in a batch of samples; a batch seen before changes nothing."""
    node, assignment = _node(request), request.id("assignment_id")
    return MetricsAccepted(
        assignment_metrics.record_metrics(node, assignment, request.parse(MetricsBatch))
    )


def _node(request: Request) -> Node:
    known = Node.objects.filter(token_sha256=sha256(request.token)).order_by()
    node = known.select_related("cluster", "gpu_type").first()
    if node is None:
        raise unknown_token()
    return node


def _node_key(request: Request) -> UUID:
    """Return the primary key of the token's node, for a service that reads and locks it."""
    known = Node.objects.filter(token_sha256=sha256(request.token)).order_by()
    key = known.values_list("pk", flat=True).first()
    if key is None:
        raise unknown_token()
    return key


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Call: method, route, its dataclasses of the protocol, and its function.

    `act` takes a Request in a thread, or with `waits` also Batchers in the event loop. A `dated`
    answer carries the server's time. `query` describes the numbers in the address. One that
    `enrols` comes without the token of a node.
    """

    name: str
    method: str
    route: str
    takes: type[object] | None
    gives: type[object]
    act: Callable[..., Any]
    waits: bool = False
    status: int = 200
    dated: bool = False
    query: Mapping[str, str] = field(default_factory=dict)
    enrols: bool = False
    most_bytes: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.route}"

    @property
    def pattern(self) -> Pattern[str]:
        return re.compile(re.sub(r"<(\w+):(\w+)>", _group, self.path))


def _group(part: Match[str]) -> str:
    return f"(?P<{part[2]}>{PARTS[part[1]]})"


NODE, ASSIGNMENT = "nodes/<uuid:node_id>", "assignments/<uuid:assignment_id>"
ENDPOINTS = (
    Endpoint("heartbeat", "POST", f"{NODE}/heartbeat", Heartbeat, HeartbeatReply, heartbeat,
             waits=True, dated=True, most_bytes=LARGEST_HEARTBEAT),
    Endpoint("directives", "GET", f"{NODE}/directives", None, Directives, directives, waits=True,
             query={"cursor": "Number of the newest directives that the agent has",
                    "wait": "Seconds to wait for newer directives"}),
    Endpoint("state", "PUT", f"{ASSIGNMENT}/state", StateReport, StateAccepted, report_state),
    Endpoint("metrics", "POST", f"{ASSIGNMENT}/metrics", MetricsBatch, MetricsAccepted,
             record_metrics, status=202),
    Endpoint("log", "PUT", f"{ASSIGNMENT}/logs/<str:stream>", bytes, LogAccepted, append_log,
             query={"offset": "Unpacked bytes before this piece",
                    "fence": "The assignment's fence", "epoch": "The session's epoch",
                    "skipped": "1: the bytes before this piece are left out, else 0"}),
    Endpoint("accept", "PUT", f"{ASSIGNMENT}/accept", Accept, LaunchSpec, accept, dated=True),
    Endpoint("session", "POST", f"{NODE}/session", SessionRequest, Session, open_session),
    Endpoint("register", "POST", "register", Registration, Registered, register, status=201,
             enrols=True, most_bytes=LARGEST_REGISTRATION),
)  # fmt: skip
