"""Dataclass <-> JSON, strictly: the edge where the agent protocol's words become objects.

`to_json` makes plain data of a dataclass; `from_json` reads it back and refuses whatever the dataclass does not say, naming the
place by its path (`assignments[2].fence`). A field left out takes its default where it has one. Integers pass for floats, never
booleans for numbers; numbers are finite and integers fit 64 bits; text is encodable and free of NUL, so that any database holds it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

INT_LIMIT = 2**63


class WireError(ValueError):
    """Data that does not fit its dataclass. `path` names the place, `problem` what would be right."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'payload'}: {problem}")
        self.path = path
        self.problem = problem


def to_json(obj: object) -> dict[str, Any]:
    """The plain data (dicts, lists, strings, numbers) of a dataclass, ready for `json.dumps`."""
    if not dataclasses.is_dataclass(obj) or isinstance(obj, type):
        raise TypeError(f"to_json takes a dataclass instance, not {type(obj).__name__}")
    return {item.name: _plain(getattr(obj, item.name)) for item in dataclasses.fields(obj)}


def dumps(obj: object) -> bytes:
    """The compact UTF-8 JSON text of a dataclass; a number that is not finite is a ValueError."""
    return json.dumps(to_json(obj), separators=(",", ":"), allow_nan=False).encode()


def from_json(cls: type[T], data: object) -> T:
    """The dataclass `cls` that `data` (parsed JSON) describes; WireError names the first field that does not fit."""
    return cast(T, _dataclass(cls, data, ""))


def loads(cls: type[T], text: bytes | str) -> T:
    """`from_json` of a JSON text; WireError also for text that is no JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("", f"is no JSON ({error})") from error
    return from_json(cls, data)


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


@functools.cache
def field_types(cls: type[Any]) -> dict[str, Any]:
    """The resolved type of every field of a dataclass, in order."""
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)}


@functools.cache
def required_fields(cls: type[Any]) -> frozenset[str]:
    """The fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return frozenset(f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing)


def _dataclass(cls: Any, data: object, path: str) -> object:
    if not isinstance(data, dict):
        raise WireError(path, f"must be an object, not {_called(data)}")
    expected = field_types(cls)
    for name in data:
        if name not in expected:
            raise WireError(_join(path, str(name)), f"is unknown to {cls.__name__}; known are {', '.join(expected)}")
    for name in expected:
        if name not in data and name in required_fields(cls):
            raise WireError(_join(path, name), "is missing")
    return cls(**{name: _value(expected[name], item, _join(path, name)) for name, item in data.items()})


def _value(kind: Any, data: object, path: str) -> object:
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, path)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind, data, path)
    if origin is tuple:
        return _tuple(get_args(kind)[0], data, path)
    if origin is dict:
        return _mapping(get_args(kind)[1], data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(kind, data, path)
    return _scalar(kind, data, path)


def _optional(kind: Any, data: object, path: str) -> object:
    if data is None:
        return None
    (inner,) = (item for item in get_args(kind) if item is not type(None))
    return _value(inner, data, path)


def _tuple(kind: Any, data: object, path: str) -> object:
    if not isinstance(data, list):
        raise WireError(path, f"must be an array, not {_called(data)}")
    return tuple(_value(kind, item, f"{path}[{index}]") for index, item in enumerate(data))


def _mapping(kind: Any, data: object, path: str) -> object:
    if not isinstance(data, dict):
        raise WireError(path, f"must be an object, not {_called(data)}")
    return {cast(str, _scalar(str, key, path)): _value(kind, item, _join(path, str(key))) for key, item in data.items()}


def _choice(kind: type[Enum], data: object, path: str) -> object:
    for member in kind:
        if isinstance(data, str) and member.value == data:
            return member
    raise WireError(path, f"must be one of {', '.join(str(member.value) for member in kind)}, not {_called(data)}")


def _scalar(kind: Any, data: object, path: str) -> object:
    if kind is bool and isinstance(data, bool):
        return data
    if kind is str and isinstance(data, str):
        return _text(data, path)
    if kind in (int, float) and isinstance(data, (int, float)) and not isinstance(data, bool):
        return _number(kind, data, path)
    raise WireError(path, f"must be {_NAMES[kind]}, not {_called(data)}")


def _text(data: str, path: str) -> str:
    if "\x00" in data:
        raise WireError(path, "must not hold a NUL character")
    try:
        data.encode()
    except UnicodeEncodeError as error:
        raise WireError(path, "must be valid Unicode") from error
    return data


def _number(kind: type[Any], data: float, path: str) -> object:
    if isinstance(data, int) and not -INT_LIMIT <= data < INT_LIMIT:
        raise WireError(path, "must fit a 64-bit integer")
    if not math.isfinite(data):
        raise WireError(path, "must be a finite number")
    if kind is float:
        return float(data)
    if isinstance(data, float):
        raise WireError(path, f"must be an integer, not {data!r}")
    return data


_NAMES: dict[Any, str] = {bool: "true or false", str: "a string", int: "an integer", float: "a number"}


def _called(data: object) -> str:
    """What a person would call the value, cut short; never the whole of a long text (it may be a secret)."""
    if data is None or isinstance(data, bool):
        return json.dumps(data)
    if isinstance(data, (int, float)):
        return repr(data)[:40]
    if isinstance(data, (str, list, dict)):
        return "a string" if isinstance(data, str) else "an array" if isinstance(data, list) else "an object"
    return type(data).__name__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
