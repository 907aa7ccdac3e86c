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
"""JSON Schema's name of each type that a parameter may have."""


# -- errors


class PolicyError(Exception):
    """Policy that could not decide; the round keeps running jobs and reports it."""


class UnknownPolicyError(PolicyError):
    """Unknown policy name; the message lists the known ones."""


class PolicyParameterError(PolicyError):
    """Unknown parameter or value out of range; the message names it and the remedy."""


class SolverFailedError(PolicyError):
    """Solver that ended without a usable solution (infeasible, error, or out of its budget)."""


# -- policies


class Policy(Protocol):
    """Pure function from a snapshot to a plan. Same snapshot (and seed in it), same plan."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Decide without side effects. Raises PolicyError if no decision can be made."""
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


# -- parameters


def parameter(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """Return a field of a policy: default, meaning, and inclusive range or choices.

    Its metadata are those of the parameter's JSON Schema.
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
    """Return a field of a policy from 0 to 1."""
    return parameter(default, meaning, minimum=0.0, maximum=1.0)


def parameters_schema(policy: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the parameters of a policy class."""
    properties = {}
    for each in _parameters(policy):
        properties[each.name] = {
            "type": _json_type(each),
            "default": each.default,
            **each.metadata,
        }
    summary, _, _ = (policy.__doc__ or "").strip().partition("\n")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": policy.__name__,
        "description": summary,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _json_type(of: Field[Any]) -> str:
    """Return the JSON type of a parameter. Raises TypeError without a default of such a type."""
    default_type = type(of.default)
    if default_type not in JSON_TYPES:
        names = ", ".join(known.__name__ for known in JSON_TYPES)
        raise TypeError(f"{of.name}: its default must be one of {names}, not {of.default!r:.80}")
    return JSON_TYPES[default_type]


def checked(policy: type, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of parameters, checked for type and range.

    Raises PolicyParameterError, which names the first bad one. Parameters that the policy had in an
    earlier release (`retired_parameters`) are left out: clusters and studies that have them stored
    go on.
    """
    known = {each.name: each for each in _parameters(policy)}
    retired: frozenset[str] = getattr(policy, "retired_parameters", frozenset())
    values = {name: value for name, value in given.items() if name not in retired}
    for name in values:
        if name not in known:
            names = ", ".join(known) or "none"
            raise PolicyParameterError(f"{name}: no such parameter; known are: {names}")
    return {name: _checked_value(known[name], value) for name, value in values.items()}


def _parameters(policy: type) -> list[Field[Any]]:
    """Return the fields of a policy that `parameter` made."""
    return [each for each in fields(policy) if each.metadata]


def _checked_value(of: Field[Any], value: object) -> Any:
    """Return a parameter's value, a whole number as a float if the parameter is one."""
    wanted_type = type(of.default)
    if wanted_type is float and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value)
    is_infinite = isinstance(value, float) and not isfinite(value)
    if type(value) is not wanted_type or is_infinite:
        wanted = f"of type {JSON_TYPES[wanted_type]}"
        if wanted_type is float:
            wanted = "a finite number"
        raise PolicyParameterError(f"{of.name}: must be {wanted}, not {value!r:.80}")
    _check_range(of, value)
    return value


def _as_float(value: int) -> float:
    """Return the number as a float, infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return inf


def _check_range(of: Field[Any], value: Any) -> None:
    """Raise PolicyParameterError for a value outside the parameter's choices or range."""
    limits = of.metadata
    if "enum" in limits and value not in limits["enum"]:
        choices = ", ".join(limits["enum"])
        raise PolicyParameterError(f"{of.name}: must be one of {choices}, not {value!r}")
    if "minimum" in limits and value < limits["minimum"]:
        raise PolicyParameterError(f"{of.name}: must be >= {limits['minimum']}, not {value!r}")
    if "maximum" in limits and value > limits["maximum"]:
        raise PolicyParameterError(f"{of.name}: must be <= {limits['maximum']}, not {value!r}")
