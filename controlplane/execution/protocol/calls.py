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

UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
CONVERTERS = {"uuid": UUID_PATTERN, "str": "[^/]+"}
"""Regular expression of each type of a parameter in a route."""


@dataclass(frozen=True, slots=True)
class Batchers:
    """Batched calls of a web process."""

    heartbeats: HeartbeatBatch
    polls: LongPolls


def register(request: Request) -> Registered:
    """Exchange a single-use enrolment token (as bearer token) for a node and its token."""
    # 1. Refuse a network with too many failed attempts. This one counts as failed at first.
    attempt = throttling.count_attempt("enrolment", address=throttling.network_of(request.address))
    retry_s = throttling.retry_after_s(attempt)
    if retry_s is not None:
        log.warning("too many failures at enrolment")
        headers = {"Retry-After": str(retry_s)}
        raise AgentCallError(429, "throttled", throttling.refusal_text(retry_s), headers=headers)

    # 2. Enrol the node. Only a wrong token stays counted as failed.
    is_wrong_token = False
    try:
        check_enrolment_token(request.token)
        return register_node(request.token, request.parse(Registration))
    except AgentCallError as refusal:
        is_wrong_token = refusal.status == 401
        raise
    finally:
        if not is_wrong_token:
            throttling.take_back(attempt)


def open_session(request: Request) -> Session:
    """Open a session: its epoch, and which known assignments go on or stop."""
    node = _node_key(request)
    if node != request.id("node_id"):
        raise not_yours()
    return sessions.open_session(node, request.parse(SessionRequest))


async def heartbeat(request: Request, waiting: Batchers) -> HeartbeatReply:
    """Renew the leases of the listed assignments; learn everything wanted and not yet done."""
    token_sha256 = sha256(request.token)
    beat = request.parse(Heartbeat)
    check_launches(beat.assignments)
    return await waiting.heartbeats.take(Call(request.id("node_id"), beat, token_sha256))


async def directives(request: Request, waiting: Batchers) -> Directives | None:
    """Learn what became wanted of the node after the cursor, as soon as there is something."""
    token_sha256 = sha256(request.token)
    node = request.id("node_id")
    cursor = request.integer("cursor", 0)
    wait_s = request.number("wait", 0.0)
    answer = await waiting.polls.wait(node, token_sha256, cursor, wait_s)
    return answer if answer.directives else None


def accept(request: Request) -> LaunchSpec:
    """Accept an offer; the answer is everything needed to run it, secrets included."""
    node = _node_key(request)
    return assignments.accept(node, request.id("assignment_id"), request.parse(Accept))


def report_state(request: Request) -> StateAccepted:
    """Report a state; a replay gets 200, a stale report 409."""
    node = _node_key(request)
    assignment = request.id("assignment_id")
    state = assignments.report_state(node, assignment, request.parse(StateReport))
    return StateAccepted(state)


def append_log(request: Request) -> LogAccepted:
    """Append a gzip piece of a stream; 409 says the offset expected."""
    next_offset = logs.append_log(
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
    return LogAccepted(next_offset)


def record_metrics(request: Request) -> MetricsAccepted:
    """Take in a batch of samples; a batch seen before changes nothing."""
    node = _node(request)
    assignment = request.id("assignment_id")
    batch = request.parse(MetricsBatch)
    return MetricsAccepted(assignment_metrics.record_metrics(node, assignment, batch))


def _node(request: Request) -> Node:
    """Return the node of the request's token, with its cluster. Raises AgentCallError."""
    nodes = Node.objects.filter(token_sha256=sha256(request.token)).order_by()
    node = nodes.select_related("cluster", "gpu_type").first()
    if node is None:
        raise unknown_token()
    return node


def _node_key(request: Request) -> UUID:
    """Return the primary key of the token's node, for a service that reads and locks it."""
    nodes = Node.objects.filter(token_sha256=sha256(request.token)).order_by()
    key = nodes.values_list("pk", flat=True).first()
    if key is None:
        raise unknown_token()
    return key


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Call: its address, the dataclasses of its request and its answer, and its function.

    `takes`: class of the request's body, None without one. `gives`: class of the answer. `act`: the
    function, which gets a Request in a thread; with `waits` it is a coroutine, which gets Batchers
    too. `dated`: the answer carries the server's time. `query`: descriptions of the numbers in the
    address. `enrols`: the call needs no token of a node. `most_bytes`: the largest body.
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
        """Whole path, with its parameters as <type:name>."""
        return f"{PREFIX}{self.route}"

    @property
    def pattern(self) -> Pattern[str]:
        """Regular expression of the path, with a named group for each parameter."""
        return re.compile(re.sub(r"<(\w+):(\w+)>", _named_group, self.path))


def _named_group(parameter: Match[str]) -> str:
    """Return the named group for a parameter <type:name>."""
    kind, name = parameter.groups()
    return f"(?P<{name}>{CONVERTERS[kind]})"


NODE = "nodes/<uuid:node_id>"
ASSIGNMENT = "assignments/<uuid:assignment_id>"
ENDPOINTS = (
    Endpoint(
        name="heartbeat",
        method="POST",
        route=f"{NODE}/heartbeat",
        takes=Heartbeat,
        gives=HeartbeatReply,
        act=heartbeat,
        waits=True,
        dated=True,
        most_bytes=LARGEST_HEARTBEAT,
    ),
    Endpoint(
        name="directives",
        method="GET",
        route=f"{NODE}/directives",
        takes=None,
        gives=Directives,
        act=directives,
        waits=True,
        query={
            "cursor": "Number of the newest directives that the agent has",
            "wait": "Seconds to wait for newer directives",
        },
    ),
    Endpoint(
        name="state",
        method="PUT",
        route=f"{ASSIGNMENT}/state",
        takes=StateReport,
        gives=StateAccepted,
        act=report_state,
    ),
    Endpoint(
        name="metrics",
        method="POST",
        route=f"{ASSIGNMENT}/metrics",
        takes=MetricsBatch,
        gives=MetricsAccepted,
        act=record_metrics,
        status=202,
    ),
    Endpoint(
        name="log",
        method="PUT",
        route=f"{ASSIGNMENT}/logs/<str:stream>",
        takes=bytes,
        gives=LogAccepted,
        act=append_log,
        query={
            "offset": "Unpacked bytes before this piece",
            "fence": "The assignment's fence",
            "epoch": "The session's epoch",
            "skipped": "1: the bytes before this piece are left out, else 0",
        },
    ),
    Endpoint(
        name="accept",
        method="PUT",
        route=f"{ASSIGNMENT}/accept",
        takes=Accept,
        gives=LaunchSpec,
        act=accept,
        dated=True,
    ),
    Endpoint(
        name="session",
        method="POST",
        route=f"{NODE}/session",
        takes=SessionRequest,
        gives=Session,
        act=open_session,
    ),
    Endpoint(
        name="register",
        method="POST",
        route="register",
        takes=Registration,
        gives=Registered,
        act=register,
        status=201,
        enrols=True,
        most_bytes=LARGEST_REGISTRATION,
    ),
)
