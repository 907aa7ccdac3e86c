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
    """Parameters of a policy; empty for one that is unknown or cannot be loaded."""
    try:
        properties: Mapping[str, Mapping[str, Any]] = registry.schema(policy)["properties"]
    except PolicyError:
        return ()
    return tuple(
        ParameterHelp(name, _values(p), _typed(p["default"]), p.get("description", ""))
        for name, p in properties.items()
    )


def example_of(parameters: tuple[ParameterHelp, ...]) -> str:
    """First two, as they are typed in a line: `moves: 200, work: 20000`."""
    return ", ".join(f"{p.name}: {p.default}" for p in parameters[:2])


def _values(parameter: Mapping[str, Any]) -> str:
    """ "a or b", "true or false", "integer 1..8", "number"."""
    if "enum" in parameter:
        return " or ".join(parameter["enum"])
    if parameter["type"] == "boolean":
        return "true or false"
    least, most = parameter.get("minimum"), parameter.get("maximum")
    if least is None and most is None:
        return str(parameter["type"])
    if most is None:
        return f"{parameter['type']}, at least {least:g}"
    return f"{parameter['type']} {'' if least is None else f'{least:g}'}..{most:g}"


def _typed(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
