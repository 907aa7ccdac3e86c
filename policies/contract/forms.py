"""JSON forms of frozen dataclasses, read strictly: one description gives the writer, the reader and
the JSON Schema.

Rules of the form: objects have the dataclass's fields; enums are their values; pairs of (name,
amount) are objects; inf is null where a field may be unbounded; numbers are finite; floats are
written as floats. A reader's error names the path of the value and what would be right; fields with
a default may be left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

Path: TypeAlias = "str | tuple[Path, str | int]"
"""Where a value is: spelled out, or a field (text) or item (number) of another path. Only an error
spells it: values are many.
"""

Reader = Callable[[Any, Path], Any]
Writer = Callable[[Any, Path], Any]
Schema = dict[str, Any]


class FormError(ValueError):
    """A value that does not have the documented form; the message names its path and what would be
    right.
    """


class Rules:
    """What types do not say: least values by (class, field), and fields whose inf is null."""

    def __init__(
        self,
        least: Mapping[str, float],
        above: Mapping[str, float],
        most: Mapping[str, float],
        unbounded: frozenset[str],
    ):
        self.least, self.above, self.most, self.unbounded = least, above, most, unbounded

    def of(self, name: str) -> Schema:
        """JSON Schema keywords of the field "Class.field"."""
        limits = {
            "minimum": self.least.get(name),
            "exclusiveMinimum": self.above.get(name),
            "maximum": self.most.get(name),
        }
        return {keyword: limit for keyword, limit in limits.items() if limit is not None}


class Form:
    """Reader, writer and schema of a dataclass and of all it is made of."""

    def __init__(self, of: type, rules: Rules, replaced: Mapping[Any, Any] | None = None) -> None:
        self.of, self.rules, self.replaced = of, rules, dict(replaced or {})
        self.definitions: dict[str, Schema] = {}
        self._forms: dict[Any, tuple[Reader, Writer, Schema]] = {}
        self.read, self.write, self._schema = self._dataclass(of)

    def schema(self, title: str, version: int) -> Schema:
        """The JSON Schema (draft 2020-12) of the form; `version` is the one this program reads."""
        definitions = json.loads(json.dumps(self.definitions))
        definitions[self.of.__name__]["properties"]["version"] = {"const": version}
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        return {**head, "$ref": f"#/$defs/{self.of.__name__}", "$defs": definitions}

    def _dataclass(self, of: type) -> tuple[Reader, Writer, Schema]:
        if of in self._forms:
            return self._forms[of]
        hints, known = get_type_hints(of), fields(of)
        parts = {
            f.name: self._form(
                self.replaced.get(hints[f.name], hints[f.name]), f"{of.__name__}.{f.name}"
            )
            for f in known
        }
        required = tuple(
            f.name for f in known if f.default is MISSING and f.default_factory is MISSING
        )
        form = (
            _object_reader(of, parts, required),
            _object_writer(parts),
            {"$ref": f"#/$defs/{of.__name__}"},
        )
        self.definitions[of.__name__] = {
            "type": "object",
            "description": (of.__doc__ or "").strip().splitlines()[0],
            "properties": {name: schema for name, (_, _, schema) in parts.items()},
            "required": list(required),
            "additionalProperties": False,
        }
        self._forms[of] = form
        return form

    def _form(self, hint: Any, name: str) -> tuple[Reader, Writer, Schema]:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return _optional(self._form(next(a for a in arguments if a is not NoneType), name))
        if origin is tuple and get_origin(arguments[0]) is tuple:
            return _amounts(get_args(arguments[0])[1], self.rules.of(name))
        if origin is tuple:
            return _array(self._form(arguments[0], name))
        if origin is not None:
            return _plain(arguments[1])
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return _enum(hint)
        if hint in (str, bool, int, float):
            return _scalar(hint, self.rules.of(name), unbounded=name in self.rules.unbounded)
        return self._dataclass(hint)


def canonical_bytes(form: Mapping[str, Any]) -> bytes:
    """The one spelling of a form: keys sorted, no spaces, shortest floats, UTF-8."""
    return json.dumps(
        form, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(form: Mapping[str, Any]) -> str:
    """sha256 (hex) of the canonical bytes."""
    return digest_of_bytes(canonical_bytes(form))


def digest_of_bytes(spelling: bytes) -> str:
    """The same of canonical bytes that are there already."""
    return hashlib.sha256(spelling).hexdigest()


def check_version(form: Any, what: str, version: int) -> None:
    """Refuse another version of a form, and what is no form at all."""
    if not isinstance(form, dict):
        raise FormError(f"{what}: must be an object, not {_kind(form)}")
    if form.get("version") != version:
        found = repr(form["version"]) if "version" in form else "none"
        raise FormError(
            f"version: this program reads version {version} of the {what}, not {found}; convert it"
            " or use the matching release"
        )


def _object_reader(
    of: type, parts: Mapping[str, tuple[Reader, Writer, Schema]], required: tuple[str, ...]
) -> Reader:
    readers = {name: read for name, (read, _, _) in parts.items()}

    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise FormError(
                f"{_spelled(path) or of.__name__}: must be an object, not {_kind(value)}"
            )
        for name in required:
            if name not in value:
                raise FormError(f"{_spelled((path, name))}: is missing")
        for name in value:
            if name not in readers:
                raise FormError(
                    f"{_spelled((path, str(name)))}: no such field; known are: {', '.join(readers)}"
                )
        return of(**{name: readers[name](given, (path, name)) for name, given in value.items()})

    return read


def _object_writer(parts: Mapping[str, tuple[Reader, Writer, Schema]]) -> Writer:
    writers = tuple((name, write) for name, (_, write, _) in parts.items())

    def write(value: Any, path: Path) -> Any:
        return {
            n: getattr(value, n) if part is _same else part(getattr(value, n), (path, n))
            for n, part in writers
        }

    return write


def _optional(form: tuple[Reader, Writer, Schema]) -> tuple[Reader, Writer, Schema]:
    read, write, schema = form

    def read_optional(value: Any, path: Path) -> Any:
        return None if value is None else read(value, path)

    def write_optional(value: Any, path: Path) -> Any:
        return None if value is None else write(value, path)

    return read_optional, write_optional, {"anyOf": [schema, {"type": "null"}]}


def _array(form: tuple[Reader, Writer, Schema]) -> tuple[Reader, Writer, Schema]:
    read, write, schema = form

    def read_array(value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            raise FormError(f"{_spelled(path)}: must be an array, not {_kind(value)}")
        return tuple([read(item, (path, i)) for i, item in enumerate(value)]) if value else ()

    def write_array(value: Any, path: Path) -> Any:
        return [write(item, (path, i)) for i, item in enumerate(value)] if value else []

    return read_array, write_array, {"type": "array", "items": schema}


def _amounts(of: type, limits: Schema) -> tuple[Reader, Writer, Schema]:
    read, write, schema = _scalar(of, limits, unbounded=False)

    def read_amounts(value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise FormError(f"{_spelled(path)}: must be an object, not {_kind(value)}")
        return (
            tuple([(name, read(value[name], (path, str(name)))) for name in sorted(value)])
            if value
            else ()
        )

    def write_amounts(value: Any, path: Path) -> Any:
        return {name: write(amount, (path, name)) for name, amount in value} if value else {}

    return read_amounts, write_amounts, {"type": "object", "additionalProperties": schema}


def _plain(of: Any) -> tuple[Reader, Writer, Schema]:
    """Free JSON data under names; shares are names under names of fractions."""
    schema: Schema = {"type": "object"}
    if get_args(of):
        schema["additionalProperties"] = {
            "type": "object",
            "additionalProperties": {"type": "number"},
        }

    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise FormError(f"{_spelled(path)}: must be an object, not {_kind(value)}")
        return _plain_value(value, path)

    return read, read_mapping(read), schema


def read_mapping(read: Reader) -> Writer:
    """The writer of plain data: any mapping becomes an object."""
    return lambda value, path: read({str(k): v for k, v in value.items()}, path)


def _plain_value(value: Any, path: Path) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain_value(item, (path, str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item, (path, i)) for i, item in enumerate(value)]
    if (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and isfinite(value))
    ):
        return value
    raise FormError(f"{_spelled(path)}: must be plain JSON data with finite numbers, not {value!r}")


@cache
def _enum(of: type[StrEnum]) -> tuple[Reader, Writer, Schema]:
    members = {m.value: m for m in of}

    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, str) or value not in members:
            raise FormError(f"{_spelled(path)}: must be one of {', '.join(members)}, not {value!r}")
        return members[value]

    return read, lambda value, path: value.value, {"enum": list(members)}


def _scalar(of: type, limits: Schema, *, unbounded: bool) -> tuple[Reader, Writer, Schema]:
    if of in (str, bool):
        schema = {"type": "string" if of is str else "boolean"}
        return _exactly(of), _same, schema
    least, above, most = (limits.get(k) for k in ("minimum", "exclusiveMinimum", "maximum"))

    def read(value: Any, path: Path) -> Any:
        if value is None and unbounded:
            return inf
        if (
            isinstance(value, bool)
            or not isinstance(value, int if of is int else int | float)
            or not _is_finite(value)
        ):
            raise FormError(
                f"{_spelled(path)}: must be {'an integer' if of is int else 'a finite number'}, not"
                f" {value!r:.80}"
            )
        if (
            (least is not None and value < least)
            or (above is not None and value <= above)
            or (most is not None and value > most)
        ):
            raise FormError(f"{_spelled(path)}: must be {_wording(limits)}, not {value!r}")
        return of(value) + of(0)

    def write(value: Any, path: Path) -> Any:
        if of is float and unbounded and value == inf:
            return None
        if not isfinite(value):
            raise FormError(f"{_spelled(path)}: {value!r} has no JSON form; give a finite number")
        return of(value) + of(0)

    schema = {"type": "integer" if of is int else "number", **limits}
    return read, write, {"anyOf": [schema, {"type": "null"}]} if unbounded else schema


def _is_finite(value: float) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _exactly(of: type) -> Reader:
    def read(value: Any, path: Path) -> Any:
        if type(value) is not of:
            raise FormError(
                f"{_spelled(path)}: must be {'a string' if of is str else 'true or false'}, not"
                f" {value!r}"
            )
        return value

    return read


def _wording(limits: Schema) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
    return " and ".join(f"{signs[k]} {v:g}" for k, v in limits.items())


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "true or false",
        NoneType: "null",
    }
    return names.get(type(value), "a number")


def _same(value: Any, path: Path) -> Any:
    """The writer of what is its own form."""
    return value


def _spelled(path: Path) -> str:
    if isinstance(path, str):
        return path
    before, last = _spelled(path[0]), path[1]
    if isinstance(last, int):
        return f"{before}[{last}]"
    return f"{before}.{last}" if before else last
