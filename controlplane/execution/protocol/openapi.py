"""The long poll in the OpenAPI document: it is no view of the REST framework."""

from __future__ import annotations

from typing import Any

from controlplane.execution.protocol.base import schema_of
from loadmaster.protocol import Directives

DIRECTIVES = "/api/agent/v1/nodes/{node_id}/directives"


def add_long_poll(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A hook of drf-spectacular: adds the long poll for directives."""
    result["paths"][DIRECTIVES] = _directives()
    return result


def _directives() -> dict[str, Any]:
    """The long poll may wait without holding a thread."""
    node = {
        "name": "node_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "format": "uuid"},
    }
    numbers = [
        {"name": name, "in": "query", "description": text, "schema": {"type": kind, "minimum": 0}}
        for name, kind, text in (
            ("cursor", "integer", "Of the newest wish that is known"),
            ("wait", "number", "Seconds to wait for one that is newer"),
        )
    ]
    found = {
        "description": "Wishes newer than the cursor",
        "content": {"application/json": {"schema": schema_of(Directives)}},
    }
    return {
        "get": {
            "operationId": "agent_directives",
            "description": (
                "What became wanted of the node after the cursor, as soon as there is something."
            ),
            "tags": ["agent"],
            "parameters": [node, *numbers],
            "security": [{"nodeToken": []}],
            "responses": {"200": found, "204": {"description": "Nothing within that time"}},
        }
    }
