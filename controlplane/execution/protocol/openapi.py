"""Agent protocol's part of the OpenAPI document."""

import dataclasses
import re
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from controlplane.execution.protocol.calls import ENDPOINTS, Endpoint

SECURITY = {
    "type": "http",
    "scheme": "bearer",
    "description": "A node's token, given once by register",
}
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
FRACTIONAL = frozenset({"wait"})


def describe(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the calls of agents; a hook of drf-spectacular."""
    components = result.setdefault("components", {})
    components.setdefault("securitySchemes", {})["nodeToken"] = SECURITY
    for endpoint in ENDPOINTS:
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", endpoint.path)
        result["paths"].setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return result


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of(endpoint.gives)}}
    good = {"description": endpoint.gives.__name__, "content": content}
    responses = {str(endpoint.status): good}
    if endpoint.name == "directives":
        responses["204"] = {"description": "No newer directives within that time"}
    return {
        "operationId": f"agent_{endpoint.name}",
        "description": endpoint.act.__doc__,
        "tags": ["agent"],
        "security": [] if endpoint.name == "register" else [{"nodeToken": []}],
        "parameters": _parameters(endpoint),
        **_body(endpoint),
        "responses": responses,
    }


def _body(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.takes is None:
        return {}
    if endpoint.takes is bytes:
        return {"requestBody": {"content": BINARY}}
    content = {"application/json": {"schema": schema_of(endpoint.takes)}}
    return {"requestBody": {"content": content, "required": True}}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind, name in re.findall(r"<(\w+):(\w+)>", endpoint.route):
        text_schema = {"type": "string", **({"format": "uuid"} if kind == "uuid" else {})}
        found.append({"name": name, "in": "path", "required": True, "schema": text_schema})
    required = endpoint.method != "GET"
    for name, text in endpoint.query.items():
        number = {"type": "number" if name in FRACTIONAL else "integer", "minimum": 0}
        place = {"in": "query", "required": required, "schema": number}
        found.append({"name": name, "description": text, **place})
    return found


def schema_of(kind: Any) -> dict[str, Any]:
    """JSON Schema of a dataclass of the protocol, or of one of its fields' types."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints, missing = get_type_hints(kind), dataclasses.MISSING
        fields = dataclasses.fields(kind)
        needed = [f.name for f in fields if f.default is missing and f.default_factory is missing]
        return {
            "type": "object",
            "title": kind.__name__,
            "properties": {field.name: schema_of(hints[field.name]) for field in fields},
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
