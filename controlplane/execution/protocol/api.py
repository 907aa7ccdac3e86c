"""The agent protocol's endpoints (see `loadmaster.protocol`): each reads its words, calls one
service, and answers.
"""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from clusters.agents.authentication import bearer
from clusters.agents.errors import invalid
from clusters.services import register
from controlplane.execution import services
from controlplane.execution.protocol.base import (
    AgentView,
    answer,
    dated_answer,
    node_by_token,
    read_body,
    speaks,
    words,
)
from loadmaster.protocol import (
    Accept,
    Heartbeat,
    HeartbeatReply,
    LaunchSpec,
    LogAccepted,
    MetricsBatch,
    Registered,
    Registration,
    Session,
    SessionRequest,
    StateAccepted,
    StateReport,
)

BINARY = {"application/octet-stream": {"type": "string", "format": "binary"}}
INTEGER_MAX = 2**63


class RegisterView(AgentView):
    """A machine comes in with an enrolment token."""

    authentication_classes = []

    @speaks(Registration, Registered, 201, operation_id="agent_register", auth=[])
    def post(self, request: Request) -> Response:
        """Exchange a single-use enrolment token (as bearer token) for a node and its token."""
        token = bearer(request)
        return answer(register(token, words(Registration, request)), 201)


class SessionView(AgentView):
    """An agent begins to speak for its node."""

    @speaks(SessionRequest, Session, operation_id="agent_session")
    def post(self, request: Request, node_id: UUID) -> Response:
        """Open a session: the epoch to carry from now on, and which known assignments go on or
        stop.
        """
        return answer(services.open_session(node_id, words(SessionRequest, request)))


class HeartbeatView(AgentView):
    """An agent is alive."""

    @speaks(Heartbeat, HeartbeatReply, operation_id="agent_heartbeat")
    def post(self, request: Request, node_id: UUID) -> Response:
        """Renew the leases of the listed assignments; the answer lists everything wanted and not
        yet done.
        """
        return dated_answer(services.heartbeat(node_id, words(Heartbeat, request)))


class AcceptView(AgentView):
    """An agent takes an offer."""

    @speaks(Accept, LaunchSpec, operation_id="agent_accept")
    def put(self, request: Request, assignment_id: UUID) -> Response:
        """Accept; the answer is everything needed to run it, secrets included."""
        return dated_answer(
            services.accept(node_by_token(request).pk, assignment_id, words(Accept, request))
        )


class StateView(AgentView):
    """An agent reports what became of an assignment."""

    @speaks(StateReport, StateAccepted, operation_id="agent_state")
    def put(self, request: Request, assignment_id: UUID) -> Response:
        """Report a state; a replay gets 200, a stale report 409."""
        state = services.report_state(
            node_by_token(request).pk, assignment_id, words(StateReport, request)
        )
        return answer(StateAccepted(state))


class LogView(AgentView):
    """An agent ships output."""

    @extend_schema(
        operation_id="agent_log",
        tags=["agent"],
        request=BINARY,
        parameters=[
            OpenApiParameter(name, OpenApiTypes.INT64, required=True, description=text)
            for name, text in {
                "offset": "Unpacked bytes before this piece",
                "fence": "The assignment's fence",
                "epoch": "The session's epoch",
            }.items()
        ],
        responses={
            200: OpenApiResponse(
                {"type": "object", "properties": {"next_offset": {"type": "integer"}}}, "Kept"
            )
        },
    )
    def put(self, request: Request, assignment_id: UUID, stream: str) -> Response:
        """Append a gzip piece of a stream; 409 says the offset expected."""
        place = {name: _query_integer(request, name) for name in ("offset", "epoch", "fence")}
        digest = request.headers.get("X-Content-SHA256", "")
        node = node_by_token(request)
        following = services.append_log(
            node, assignment_id, stream, body=read_body(request), digest=digest, **place
        )
        return answer(LogAccepted(following))


class MetricsView(AgentView):
    """An agent ships progress and use."""

    @speaks(MetricsBatch, None, 202, operation_id="agent_metrics")
    def post(self, request: Request, assignment_id: UUID) -> Response:
        """Take in a batch of samples; a batch seen before changes nothing."""
        new = services.record_metrics(
            node_by_token(request), assignment_id, words(MetricsBatch, request)
        )
        return Response({"new": new}, status=202)


def _query_integer(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isdecimal() or not text.isascii() or len(text) > 19 or int(text) >= INTEGER_MAX:
        raise invalid(name, "must be a whole number, 0 or more, in the address")
    return int(text)
