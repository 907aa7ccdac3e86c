"""Node tokens: `Authorization: Bearer <token>`, looked up by sha256. They open the agent protocol
and nothing else.
"""

# drf-spectacular registers extensions in an __init_subclass__ without types.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from clusters.agents.errors import bad_token, unknown_token
from clusters.models import Node
from clusters.services.enrolment import sha256

SCHEME = "Bearer"


def bearer(request: HttpRequest | Request) -> str:
    """The bearer token of a request; refused if there is none."""
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != SCHEME.lower() or not token.strip():
        raise bad_token("write the token as a header: Authorization: Bearer <token>")
    return str(token.strip())


def node_of(request: HttpRequest | Request) -> Node:
    """The node whose token the request carries; refused if it is nobody's."""
    node = (
        Node.objects.select_related("cluster").filter(token_sha256=sha256(bearer(request))).first()
    )
    if node is None:
        raise unknown_token()
    return node


class NodeTokenAuthentication(BaseAuthentication):
    """`request.auth` is the node. There is no user: agents are not people."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Node]:
        """The node of the bearer token; AgentCallError 401 for anything else."""
        return AnonymousUser(), node_of(request)

    def authenticate_header(self, request: Request) -> str:
        """The WWW-Authenticate header of a 401."""
        return SCHEME


class NodeTokenScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI document names node tokens."""

    target_class = NodeTokenAuthentication
    name = "nodeToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """A bearer token."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A node's token, given once by register",
        }
