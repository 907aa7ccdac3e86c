"""Agent protocol's part of the OpenAPI document, made from the list of its endpoints."""

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
"""How calls of agents are authorised."""

BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""Content of a request's body that is bytes."""

FRACTIONAL = frozenset({"wait"})
"""Parameters in the query that may have a fraction; the others are whole numbers."""

ROUTE_PARAMETER = r"<(\w+):(\w+)>"
"""Type and name of a parameter in a route."""

JSON_TYPES = {bool: "boolean", int: "integer", float: "number"}
"""Types of JSON by Python's; all others are texts."""


def describe(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the calls of agents to the document, as a hook of drf-spectacular; return it."""
    components = result.setdefault("components", {})
    components.setdefault("securitySchemes", {})["nodeToken"] = SECURITY
    for endpoint in ENDPOINTS:
        path = re.sub(ROUTE_PARAMETER, r"{\2}", endpoint.path)
        operations = result["paths"].setdefault(path, {})
        operations[endpoint.method.lower()] = _operation(endpoint)
    return result


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    """Return the OpenAPI operation of an endpoint."""
    content = {"application/json": {"schema": schema_of(endpoint.gives)}}
    success = {"description": endpoint.gives.__name__, "content": content}
    responses = {str(endpoint.status): success}
    if endpoint.name == "directives":
        responses["204"] = {"description": "No newer directives within that time"}
    return {
        "operationId": f"agent_{endpoint.name}",
        "description": endpoint.act.__doc__,
        "tags": ["agent"],
        # A node that registers has no token yet.
        "security": [] if endpoint.name == "register" else [{"nodeToken": []}],
        "parameters": _parameters(endpoint),
        **_body(endpoint),
        "responses": responses,
    }


def _body(endpoint: Endpoint) -> dict[str, Any]:
    """Return an operation's field `requestBody`; no field for a call without body."""
    if endpoint.takes is None:
        return {}
    if endpoint.takes is bytes:
        return {"requestBody": {"content": BINARY}}
    content = {"application/json": {"schema": schema_of(endpoint.takes)}}
    return {"requestBody": {"content": content, "required": True}}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the parameters of the path, and the numbers of the query."""
    parameters: list[dict[str, Any]] = []
    for kind, name in re.findall(ROUTE_PARAMETER, endpoint.route):
        text = {"type": "string"}
        if kind == "uuid":
            text["format"] = "uuid"
        parameters.append({"name": name, "in": "path", "required": True, "schema": text})

    # The query may be left out of a GET.
    required = endpoint.method != "GET"
    for name, description in endpoint.query.items():
        number = {"type": "number" if name in FRACTIONAL else "integer", "minimum": 0}
        parameters.append(
            {
                "name": name,
                "description": description,
                "in": "query",
                "required": required,
                "schema": number,
            }
        )
    return parameters


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a dataclass of the protocol, or of a type of its fields."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _schema_of_dataclass(kind)

    # Types with others inside. A union is that of one type and None.
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        return {**schema_of(inner[0]), "nullable": True}
    if origin is tuple:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}

    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    return {"type": JSON_TYPES.get(kind, "string")}


def _schema_of_dataclass(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; fields without default are required."""
    types = get_type_hints(kind)
    properties = {}
    required = []
    for field in dataclasses.fields(kind):
        properties[field.name] = schema_of(types[field.name])
        has_default = field.default is not dataclasses.MISSING
        has_factory = field.default_factory is not dataclasses.MISSING
        if not has_default and not has_factory:
            required.append(field.name)
    schema = {"type": "object", "title": kind.__name__, "properties": properties}
    if required:
        schema["required"] = required
    return schema
