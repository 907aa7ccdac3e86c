"""What every call of the agent protocol has in common: version, size, token, one form of words and
of refusals.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from django.http import HttpRequest
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.exceptions import APIException
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.agents.authentication import NodeTokenAuthentication
from clusters.agents.errors import AgentCallError, not_yours
from clusters.models import Node
from jobs.moves import LostRaceError
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION, TIME_HEADER, ErrorCode
from loadmaster.wire import WireError, loads, to_json

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger(__name__)

LARGEST_BODY = 2 * 1024 * 1024


def check_version(request: HttpRequest | Request) -> None:
    """Refuse another version of the protocol, naming both."""
    spoken = request.headers.get(PROTOCOL_HEADER, "")
    if spoken != str(PROTOCOL_VERSION):
        said = (
            f"version {spoken[:20]}"
            if spoken
            else f"none (the header {PROTOCOL_HEADER} is missing)"
        )
        text = (
            f"this server speaks agent protocol version {PROTOCOL_VERSION}, the agent speaks"
            f" {said}; install a matching agent"
        )
        raise AgentCallError(426, ErrorCode.PROTOCOL, text, expected=str(PROTOCOL_VERSION))


def check_node(node: Node, node_id: uuid.UUID) -> None:
    """Refuse a token on another node's address."""
    if node.pk != node_id:
        raise not_yours()


def read_body(request: Request) -> bytes:
    """The request's body; refused if it is larger than LARGEST_BODY, before it is read where its
    length is declared.
    """
    declared = request.META.get("CONTENT_LENGTH") or "0"
    if not declared.isdecimal() or int(declared) > LARGEST_BODY:
        raise _too_large()
    body = request._request.read(LARGEST_BODY + 1)
    if len(body) > LARGEST_BODY:
        raise _too_large()
    return bytes(body)


def _too_large() -> AgentCallError:
    return AgentCallError(
        413, "too_large", f"a request may have at most {LARGEST_BODY} bytes; send less at a time"
    )


def words(cls: type[T], request: Request) -> T:
    """The body as the protocol's dataclass; refused with the place where it does not fit."""
    try:
        return loads(cls, read_body(request))
    except WireError as error:
        raise AgentCallError(400, "invalid", str(error), field=error.path or "body") from error


def answer(obj: object, status: int = 200) -> Response:
    """A dataclass of the protocol as JSON."""
    return Response(to_json(obj), status=status)


def time_header() -> str:
    """The server's clock as an answer carries it (TIME_HEADER): what the answer says of times
    counts from then.
    """
    return f"{time.time():.6f}"


def dated_answer(obj: object) -> Response:
    """The same with the server's clock, for what speaks of times."""
    return Response(to_json(obj), headers={TIME_HEADER: time_header()})


class AgentView(APIView):
    """A call of an agent: `request.auth` is its node."""

    authentication_classes = [NodeTokenAuthentication]
    permission_classes = [AllowAny]
    parser_classes = []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Version first, then the token, then whose address it is."""
        check_version(request)
        super().initial(request, *args, **kwargs)
        if "node_id" in kwargs:
            check_node(node_by_token(request), kwargs["node_id"])

    def handle_exception(self, exc: Exception) -> Response:
        """Every refusal in the protocol's one form."""
        refusal = _refusal(exc)
        if refusal is None:
            return super().handle_exception(exc)
        response = Response(refusal.body(), status=refusal.status, headers=refusal.headers())
        response.exception = True
        return response


def node_by_token(request: Request) -> Node:
    """The node that calls."""
    node = request.auth
    if not isinstance(node, Node):
        raise TypeError("this view has no node authentication")
    return node


def _refusal(error: Exception) -> AgentCallError | None:
    if isinstance(error, AgentCallError):
        return error
    if isinstance(error, LostRaceError):
        log.info("an agent's call lost a race: %s", error)
        return AgentCallError(
            503, "race", "somebody else changed the same row first; send the request again"
        )
    if isinstance(error, APIException):
        return AgentCallError(error.status_code, str(error.default_code), str(error.detail))
    return None


def speaks(
    request: type[Any] | None, response: type[Any] | None, status: int = 200, **more: Any
) -> Callable[[F], F]:
    """OpenAPI of a call whose body and answer are dataclasses of the protocol."""
    body = {"application/json": schema_of(request)} if request else None
    good = OpenApiResponse(
        schema_of(response) if response else None, response.__name__ if response else "Taken in"
    )
    refusals = {code: OpenApiResponse(ERROR_SCHEMA, text) for code, text in REFUSALS.items()}
    described: Callable[[F], F] = extend_schema(
        request=body, responses={status: good, **refusals}, tags=["agent"], **more
    )
    return described


ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "detail": {"type": "string"},
                "field": {"type": "string"},
                "expected": {},
            },
            "required": ["code", "detail"],
        }
    },
    "required": ["error"],
}
REFUSALS = {
    400: "The body does not fit; `field` names the place",
    401: "The token is unknown, used up, expired or revoked",
    403: "The token is another node's",
    409: "Stale: another epoch, fence or offset is known",
    413: "The body is too large",
    426: "Another version of the protocol",
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a dataclass of the protocol, or of one of its fields' types."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        missing = dataclasses.MISSING
        needed = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is missing and f.default_factory is missing
        ]
        properties = {
            field.name: schema_of(hints[field.name]) for field in dataclasses.fields(kind)
        }
        return {
            "type": "object",
            "title": kind.__name__,
            "properties": properties,
            **({"required": needed} if needed else {}),
        }
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {**schema_of(inner[0]), "nullable": True}
    if origin is tuple:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    return {"type": {bool: "boolean", int: "integer", float: "number"}.get(kind, "string")}
