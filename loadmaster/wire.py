"""Dataclass <-> JSON, strictly: the edge where the agent protocol's words become objects.

`to_json` makes plain data of a dataclass; `from_json` reads it back and refuses whatever the
dataclass does not say, naming the place by its path (`assignments[2].fence`). A field left out
takes its default where it has one; one that is marked as `later` is left out where it has it, for
readers that do not know it yet. Integers pass for floats, never booleans for numbers; numbers are
finite and integers fit 64 bits; text is encodable and free of NUL, so that any database holds it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

INT_LIMIT = 2**63


class WireError(ValueError):
    """Data that does not fit its dataclass. `path` names the place, `problem` what would be
    right.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'payload'}: {problem}")
        self.path = path
        self.problem = problem

    def below(self, place: str) -> WireError:
        """The same error as seen from one level up: `place` is a field, a key or an index in
        brackets.
        """
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return WireError(f"{place}{inner}", self.problem)


def to_json(obj: object) -> dict[str, Any]:
    """The plain data (dicts, lists, strings, numbers) of a dataclass, ready for `json.dumps`."""
    if not dataclasses.is_dataclass(obj) or isinstance(obj, type):
        raise TypeError(f"to_json takes a dataclass instance, not {type(obj).__name__}")
    data = {item.name: _plain(getattr(obj, item.name)) for item in dataclasses.fields(obj)}
    for name, default in _later_fields(type(obj)).items():
        if data[name] == default:
            del data[name]
    return data


def dumps(obj: object) -> bytes:
    """The compact UTF-8 JSON text of a dataclass; a number that is not finite is a ValueError."""
    return json.dumps(to_json(obj), separators=(",", ":"), allow_nan=False).encode()


def from_json(cls: type[T], data: object) -> T:
    """The dataclass `cls` that `data` (parsed JSON) describes; WireError names the first field that
    does not fit.
    """
    return cast(T, _reader(cls)(data))


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
def _later_fields(cls: type[Any]) -> dict[str, object]:
    """The fields of a dataclass that older readers do not know, with their defaults."""
    return {
        item.name: item.default for item in dataclasses.fields(cls) if item.metadata.get("later")
    }


@functools.cache
def required_fields(cls: type[Any]) -> frozenset[str]:
    """The fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return frozenset(
        f.name
        for f in dataclasses.fields(cls)
        if f.default is missing and f.default_factory is missing
    )


Reader = Callable[[object], object]


def _reader(kind: Any) -> Reader:
    """What reads a value of that type, made once: agents by the thousand send the same few
    dataclasses all the time.
    """
    if kind not in _readers:
        _readers[kind] = _make_reader(kind)
    return _readers[kind]


def _make_reader(kind: Any) -> Reader:
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind)
    if origin is tuple:
        return _tuple(_reader(get_args(kind)[0]))
    if origin is dict:
        return _mapping(_reader(get_args(kind)[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(kind)
    return _SCALARS[kind]


def _dataclass(cls: Any) -> Reader:
    expected, required = field_types(cls), required_fields(cls)
    readers = {name: _reader(kind) for name, kind in expected.items()}

    def check_names(data: dict[Any, Any]) -> None:
        for name in data:
            if name not in expected:
                raise WireError(
                    str(name), f"is unknown to {cls.__name__}; known are {', '.join(expected)}"
                )
        for name in expected:
            if name not in data and name in required:
                raise WireError(name, "is missing")

    def read(data: object) -> object:
        if not isinstance(data, dict):
            raise WireError("", f"must be an object, not {_called(data)}")
        if not (readers.keys() >= data.keys() >= required):
            check_names(data)
        values, name = {}, ""
        try:
            for name, item in data.items():
                values[name] = readers[name](item)
        except WireError as error:
            raise error.below(name) from error.__cause__
        return cls(**values)

    return read


def _optional(kind: Any) -> Reader:
    (inner,) = (item for item in get_args(kind) if item is not type(None))
    read = _reader(inner)
    return lambda data: None if data is None else read(data)


def _tuple(read: Reader) -> Reader:
    def read_all(data: object) -> object:
        if not isinstance(data, list):
            raise WireError("", f"must be an array, not {_called(data)}")
        values: list[object] = []
        try:
            for item in data:
                values.append(read(item))  # the index of what does not fit is how many came before
        except WireError as error:
            raise error.below(f"[{len(values)}]") from error.__cause__
        return tuple(values)

    return read_all


def _mapping(read: Reader) -> Reader:
    def read_all(data: object) -> object:
        if not isinstance(data, dict):
            raise WireError("", f"must be an object, not {_called(data)}")
        values, key = {}, ""
        for key in data:
            _text(key)
        try:
            for key, item in data.items():
                values[key] = read(item)
        except WireError as error:
            raise error.below(str(key)) from error.__cause__
        return values

    return read_all


def _choice(kind: type[Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(data: object) -> object:
        if isinstance(data, str) and data in members:
            return members[data]
        raise WireError(
            "", f"must be one of {', '.join(str(value) for value in members)}, not {_called(data)}"
        )

    return read


def _bool(data: object) -> object:
    if isinstance(data, bool):
        return data
    raise WireError("", f"must be true or false, not {_called(data)}")


def _text(data: object) -> object:
    if (
        type(data) is str and data.isascii() and "\x00" not in data
    ):  # nearly always; here and below this spares the rest
        return data
    if not isinstance(data, str):
        raise WireError("", f"must be a string, not {_called(data)}")
    if "\x00" in data:
        raise WireError("", "must not hold a NUL character")
    try:
        data.encode()
    except UnicodeEncodeError as error:
        raise WireError("", "must be valid Unicode") from error
    return data


def _float(data: object) -> object:
    if type(data) is float and -math.inf < data < math.inf:
        return data
    return float(_finite(data, "a number"))


def _integer(data: object) -> object:
    number = _finite(data, "an integer")
    if isinstance(number, float):
        raise WireError("", f"must be an integer, not {number!r}")
    return number


def _finite(data: object, name: str) -> int | float:
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        raise WireError("", f"must be {name}, not {_called(data)}")
    if isinstance(data, int) and not -INT_LIMIT <= data < INT_LIMIT:
        raise WireError("", "must fit a 64-bit integer")
    if not math.isfinite(data):
        raise WireError("", "must be a finite number")
    return data


_readers: dict[Any, Reader] = {}
_SCALARS: dict[Any, Reader] = {bool: _bool, str: _text, int: _integer, float: _float}


def _called(data: object) -> str:
    """What a person would call the value, cut short; never the whole of a long text (it may be a
    secret).
    """
    if data is None or isinstance(data, bool):
        return json.dumps(data)
    if isinstance(data, (int, float)):
        return repr(data)[:40]
    if isinstance(data, (str, list, dict)):
        return (
            "a string"
            if isinstance(data, str)
            else "an array"
            if isinstance(data, list)
            else "an object"
        )
    return type(data).__name__
