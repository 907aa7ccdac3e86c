"""Parts of the OpenAPI document that drf-spectacular does not find: tokens and refusals."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

METHODS = ("get", "put", "post", "patch", "delete")
ERROR = {
    "type": "object",
    "description": (
        "Why a call was refused; `fields` holds messages by field. Agents also get `field` and"
        " `expected`."
    ),
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "detail": {"type": "string"},
                "fields": {
                    "type": "object",
                    "additionalProperties": {"type": "array", "items": {"type": "string"}},
                },
                "field": {"type": "string"},
                "expected": {},
            },
            "required": ["code", "detail"],
        }
    },
    "required": ["error"],
}
ERROR_REFERENCE = {"$ref": "#/components/schemas/Error"}
REFUSALS = {
    "400": "Something in the request is wrong",
    "401": "No token, or one that is wrong, revoked or expired",
    "403": "Not allowed to this caller",
    "404": "There is no such thing, or the caller may not know of it",
    "406": "Only JSON is spoken",
    "409": "The thing's present state does not allow it",
    "411": "A body must declare its length",
    "413": "The body is too large",
    "415": "The body is no JSON",
    "426": "Another version of the agent protocol",
    "429": "Too many requests; Retry-After says when to come back",
}
OF_WRITING = frozenset({"409", "411", "413", "415"})
"""Statuses that calls that only read never have."""

OF_AGENTS = frozenset({"426"})
"""Statuses that only calls of agents have."""


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped
    """The token in the Authorization header."""

    target_class = "controlplane.web.rest.defaults.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "From POST /api/v1/tokens/ or `loadmaster login`",
        }


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the possible refusals of calls; a hook of drf-spectacular."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = ERROR
    for path, calls in result["paths"].items():
        if path == "/api/schema":
            continue
        for method in METHODS:
            if method in calls:
                is_of_agents = path.startswith("/api/agent/")
                _add_refusals(method, calls[method]["responses"], is_of_agents=is_of_agents)
    return result


def _add_refusals(method: str, responses: dict[str, Any], *, is_of_agents: bool) -> None:
    """Add the refusals of a call to its documented answers."""
    content = {"application/json": {"schema": ERROR_REFERENCE}}
    for status, text in REFUSALS.items():
        if status in OF_WRITING and method == "get":
            continue
        if status in OF_AGENTS and not is_of_agents:
            continue
        responses.setdefault(status, {"description": text, "content": content})
