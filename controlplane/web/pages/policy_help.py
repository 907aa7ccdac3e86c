"""Help on a policy's parameters, from its schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policies.contract.policy import PolicyError
from policies.host import registry


@dataclass(frozen=True, slots=True)
class ParameterHelp:
    """Parameter in words: accepted `values`, `default` as written in YAML."""

    name: str
    values: str
    default: str
    meaning: str


def parameters_of(policy: str) -> tuple[ParameterHelp, ...]:
    """Return the parameters of a policy; none if it is unknown or cannot be loaded."""
    try:
        properties: Mapping[str, Mapping[str, Any]] = registry.schema(policy)["properties"]
    except PolicyError:
        return ()
    parameters = []
    for name, schema in properties.items():
        default = _as_typed(schema["default"])
        meaning = schema.get("description", "")
        parameters.append(ParameterHelp(name, _accepted_values(schema), default, meaning))
    return tuple(parameters)


def example_of(parameters: tuple[ParameterHelp, ...]) -> str:
    """Return the first two parameters, as they are typed in a line: `moves: 200, work: 20000`."""
    return ", ".join(f"{parameter.name}: {parameter.default}" for parameter in parameters[:2])


def _accepted_values(schema: Mapping[str, Any]) -> str:
    """Return a parameter's values in words: "a or b", "true or false", "integer 1..8", "number"."""
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if schema["type"] == "boolean":
        return "true or false"
    least = schema.get("minimum")
    most = schema.get("maximum")
    if least is None and most is None:
        return str(schema["type"])
    if most is None:
        return f"{schema['type']}, at least {least:g}"
    least_text = "" if least is None else f"{least:g}"
    return f"{schema['type']} {least_text}..{most:g}"


def _as_typed(value: object) -> str:
    """Return a value as it is written in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
