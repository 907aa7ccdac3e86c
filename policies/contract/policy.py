"""Protocol of a policy, the errors it may raise, and its parameters.

A policy is a frozen dataclass whose fields are its parameters, with meaning and range in their
metadata, and whose `__call__` decides. The JSON Schema and all checks follow from the fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from math import inf, isfinite
from typing import Any, Protocol

from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot

JSON_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


class PolicyError(Exception):
    """Policy that could not decide; the round keeps running jobs and reports it."""


class UnknownPolicyError(PolicyError):
    """Unknown policy name; the message lists the known ones."""


class PolicyParameterError(PolicyError):
    """Unknown parameter or value out of range; the message names it and the remedy."""


class SolverFailedError(PolicyError):
    """Solver that ended without a usable solution (infeasible, error, or out of its budget)."""


class Policy(Protocol):
    """Pure function from a snapshot to a plan. Same snapshot (and seed in it), same plan."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Decide without side effects. Raises PolicyError where no decision can be made."""
        ...


def queue_only(policy: Policy) -> bool:
    """Return True if the policy has a class attribute `queue_only = True`.

    Such a policy never touches running jobs, places waiting ones by free capacity alone, and a job
    that found no place finds none until something becomes free. A simulation may then leave out
    rounds that could change nothing.
    """
    return getattr(policy, "queue_only", False) is True


def keeps_started(policy: object) -> bool:
    """Return True if the policy has a class attribute `keeps_started = True`.

    Such a policy neither stops nor moves a started job, so a round without a waiting job changes
    nothing (but for a drain), and a simulation may leave it out.
    """
    return getattr(policy, "keeps_started", False) is True


def places_batch(policy: object) -> bool:
    """Return True if the policy has a class attribute `places_batch = True`.

    Such a policy decides about all jobs; others do not see batch jobs and jobs without GPUs.
    """
    return getattr(policy, "places_batch", False) is True


def parameter(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """Return a dataclass field for a parameter: default, meaning, inclusive range or choices.

    Its metadata are keywords of JSON Schema.
    """
    metadata: dict[str, Any] = {"description": meaning}
    if minimum is not None:
        metadata["minimum"] = minimum
    if maximum is not None:
        metadata["maximum"] = maximum
    if choices:
        metadata["enum"] = list(choices)
    return field(default=default, metadata=metadata)


def fraction(default: float, meaning: str) -> Any:
    """Return a dataclass field for a parameter from 0 to 1."""
    return parameter(default, meaning, minimum=0.0, maximum=1.0)


def _parameters(policy: type) -> list[Field[Any]]:
    """Return the dataclass fields that are parameters."""
    return [each for each in fields(policy) if each.metadata]


def parameters_schema(policy: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the parameters of a policy class.

    TypeError for a parameter without a default of a type of JSON.
    """
    properties: dict[str, Any] = {}
    for each in _parameters(policy):
        json_type = _json_type(each)
        properties[each.name] = {"type": json_type, "default": each.default, **each.metadata}
    documentation = (policy.__doc__ or "").strip()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": policy.__name__,
        "description": documentation.splitlines()[0] if documentation else "",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _json_type(definition: Field[Any]) -> str:
    """Return the JSON type of a parameter, by its default. TypeError if it has none."""
    default_type = type(definition.default)
    if default_type not in JSON_TYPES:
        types = ", ".join(known.__name__ for known in JSON_TYPES)
        shown = f"{definition.default!r:.80}"
        raise TypeError(f"{definition.name}: its default must be one of {types}, not {shown}")
    return JSON_TYPES[default_type]


def checked(policy: type, given: Mapping[str, object]) -> dict[str, Any]:
    """Check values for type and range; PolicyParameterError names the first bad one.

    Parameters that the policy had in an earlier release (`retired_parameters`) are left out:
    clusters and studies that have them stored go on.
    """
    definitions = {each.name: each for each in _parameters(policy)}
    retired: frozenset[str] = getattr(policy, "retired_parameters", frozenset())
    values = {name: value for name, value in given.items() if name not in retired}
    for name in values:
        if name not in definitions:
            known = ", ".join(definitions) or "none"
            raise PolicyParameterError(f"{name}: no such parameter; known are: {known}")
    return {name: _checked_value(definitions[name], value) for name, value in values.items()}


def _checked_value(definition: Field[Any], value: object) -> Any:
    """Return a value that has the type of the parameter's default and is within its limits.

    A whole number may be given for a float.
    """
    wanted_type = type(definition.default)
    if wanted_type is float and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value)
    is_finite = not isinstance(value, float) or isfinite(value)
    if type(value) is not wanted_type or not is_finite:
        wanted = "a finite number"
        if wanted_type is not float:
            wanted = f"of type {JSON_TYPES[wanted_type]}"
        raise PolicyParameterError(f"{definition.name}: must be {wanted}, not {value!r:.80}")
    _check_range(definition, value)
    return value


def _as_float(value: int) -> float:
    """Return the number as a float, infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return inf


def _check_range(definition: Field[Any], value: Any) -> None:
    """Raise PolicyParameterError unless a value is within the limits of its parameter."""
    name = definition.name
    limits = definition.metadata
    if "enum" in limits and value not in limits["enum"]:
        choices = ", ".join(limits["enum"])
        raise PolicyParameterError(f"{name}: must be one of {choices}, not {value!r}")
    if "minimum" in limits and value < limits["minimum"]:
        raise PolicyParameterError(f"{name}: must be >= {limits['minimum']}, not {value!r}")
    if "maximum" in limits and value > limits["maximum"]:
        raise PolicyParameterError(f"{name}: must be <= {limits['maximum']}, not {value!r}")
