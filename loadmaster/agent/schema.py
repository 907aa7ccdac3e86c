"""The JSON Schema of the agent protocol's payloads, derived from their dataclasses.

`python -m loadmaster.agent.schema > loadmaster/schemas/agent.schema.json` writes the file that is
published.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from enum import Enum
from typing import Any, Union, get_args, get_origin

from loadmaster import protocol
from loadmaster.wire import INT_LIMIT, field_types, required_fields

PAYLOADS: tuple[type[Any], ...] = (
    protocol.Registration,
    protocol.Registered,
    protocol.SessionRequest,
    protocol.Session,
    protocol.Heartbeat,
    protocol.HeartbeatReply,
    protocol.Directives,
    protocol.Accept,
    protocol.LaunchSpec,
    protocol.StateReport,
    protocol.StateAccepted,
    protocol.LogAccepted,
    protocol.MetricsBatch,
)


def agent_schema() -> dict[str, Any]:
    """JSON Schema of every payload; `$defs/LaunchSpec` is that of accept."""
    found: dict[str, Any] = {}
    for payload in PAYLOADS:
        _define(payload, found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Loadmaster agent protocol, version {protocol.PROTOCOL_VERSION}",
        "$defs": dict(sorted(found.items())),
    }


def _define(cls: Any, found: dict[str, Any]) -> dict[str, str]:
    """Add the definition of a dataclass, and return the reference to it."""
    if cls.__name__ not in found:
        found[cls.__name__] = {}
        defaults = {item.name: item.default for item in dataclasses.fields(cls)}
        properties = {
            name: {**_type(kind, found), **_default(defaults[name])}
            for name, kind in field_types(cls).items()
        }
        found[cls.__name__] = {
            "description": " ".join((cls.__doc__ or "").split()),
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required_fields(cls)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _type(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return dict(_define(kind, found))
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = next(item for item in get_args(kind) if item is not type(None))
        return {"anyOf": [_type(inner, found), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _type(get_args(kind)[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(get_args(kind)[1], found)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return dict(_SCALARS[kind])


_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "minimum": -INT_LIMIT, "maximum": INT_LIMIT - 1},
}


def _default(value: object) -> dict[str, Any]:
    if value is dataclasses.MISSING:
        return {}
    return {"default": list(value) if isinstance(value, tuple) else value}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(agent_schema(), indent=1) + "\n")
