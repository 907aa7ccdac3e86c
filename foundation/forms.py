"""JSON forms of frozen dataclasses, read strictly by pydantic.

Objects have the dataclass's fields, those with a default are optional; enums are their values;
numbers are finite, and a boolean is none. Errors name the path and the remedy, and show no texts,
which may be secrets, but those that should be one of a few names.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from math import inf
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema, to_json

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

PROBLEMS = {
    "missing": "is missing",
    "dataclass_type": "must be an object",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "tuple_type": "must be an array",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "bool_parsing": "must be true or false",
    "float_parsing": "must be a finite number",
    "string_too_short": "must have at least {min_length} characters",
    "float_type": "must be a finite number",
    "finite_number": "must be a finite number",
    "value_error": "{error}",
    "json_invalid": "is no JSON ({error})",
}
"""Wording of pydantic's errors."""

SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
"""Keywords of a JSON Schema that limit a number."""

NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL character in a JSON text."""

WITHOUT_VALUE = frozenset(
    {"missing", "value_error", "json_invalid", "string_too_long", "string_too_short"}
)
"""Errors whose message does not show the value."""


class FormError(ValueError):
    """Value that does not have the documented form: its `path`, and the `problem`."""

    def __init__(self, path: str, problem: str, name: str = "") -> None:
        place = path or name
        super().__init__(f"{place}: {problem}" if place else problem)
        self.path = path
        self.problem = problem


class Form(Generic[T]):
    """Reader, writer and schema of a dataclass; `name` is used in errors."""

    def __init__(self, of: type[T], name: str = "payload") -> None:
        self.of, self.name = of, name

    def read(self, data: object) -> T:
        """Return the dataclass that parsed JSON describes; FormError names a wrong value."""
        try:
            text = to_json(data, inf_nan_mode="constants", fallback=str)
        except ValueError as error:
            raise FormError("", f"is no JSON ({error})", self.name) from None
        return self.loads(text)

    def loads(self, text: bytes | str) -> T:
        """Return the dataclass that a JSON text describes; FormError names a wrong value."""
        try:
            return self.adapter.validate_json(text)
        except ValidationError as error:
            raise self._explained(error) from None

    def write(self, value: T) -> dict[str, Any]:
        """Return plain JSON data; numbers that are not finite stay."""
        try:
            form: dict[str, Any] = self.adapter.dump_python(
                value, mode="json", warnings=False, fallback=_plain
            )
        except PydanticSerializationError as error:
            raise FormError("", f"cannot be written: {error}", self.name) from None
        return form

    def canonical_bytes(self, value: T) -> bytes:
        """Return the canonical JSON of a value; FormError names a number that has no JSON form."""
        form = self.write(value)
        try:
            return canonical_bytes(form)
        except ValueError:
            self.read(form)
            raise

    def schema(self, title: str, version: int) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12); `version` is the one that is read."""
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        fields = {**self._schema["properties"], "version": {"const": version}}
        return {**self._schema, **head, "properties": fields}

    @cached_property
    def adapter(self) -> TypeAdapter[T]:
        """Pydantic's reader and writer of the dataclass."""
        if "__pydantic_config__" not in vars(self.of):  # its parts inherit it
            self.of.__pydantic_config__ = STRICT  # type: ignore[attr-defined]  # pydantic's hook
        return TypeAdapter(self.of)

    @cached_property
    def _schema(self) -> dict[str, Any]:
        """JSON Schema without title and version."""
        return self.adapter.json_schema(schema_generator=FormSchema)

    def _explained(self, error: ValidationError) -> FormError:
        """Return the first error in our words, unknown fields first, as they are often typos."""
        # 1. The error, its place and the wrong value. Pydantic marks a wrong key of an object.
        unknown = "unexpected_keyword_argument"
        first = min(error.errors(include_url=False), key=lambda one: one["type"] != unknown)
        kind = first["type"]
        value = first["input"]
        location = first["loc"]
        if location[-1:] == ("[key]",):
            location = location[:-2]
        path = _path(location)

        # 2. Errors whose remedy stands in the schema: other names, or limits.
        if kind == unknown:
            known = ", ".join(self._schema_at(location[:-1]).get("properties", ()))
            return FormError(path, f"no such field; known are: {known}")
        if kind == "enum":
            names = self._schema_at(location).get("enum", ())
            return FormError(path, f"must be one of {', '.join(names)}, not {value!r:.80}")
        if kind in ("greater_than", "greater_than_equal", "less_than_equal"):
            schema = self._schema_at(location)
            limits = [f"{sign} {schema[key]:g}" for key, sign in SIGNS.items() if key in schema]
            text = value if isinstance(value, str) else shown(value)  # a number may come as text
            return FormError(path, f"must be {' and '.join(limits)}, not {text:.40}")

        # 3. All others.
        problem = PROBLEMS.get(kind, first["msg"]).format(**first.get("ctx", {}))
        if kind not in WITHOUT_VALUE:
            problem += f", not {shown(value)}"
        return FormError(path, problem, self.name)

    def _schema_at(self, location: tuple[int | str, ...]) -> dict[str, Any]:
        """Return the part of the schema that describes the value at a place in a document."""
        node = self._resolved(self._schema)
        for part in location:
            fields = node.get("properties", {})
            inner = fields.get(part) or node.get("items") or node.get("additionalProperties", {})
            node = self._resolved(inner)
        return node

    def _resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the schema that a node refers to; of a value that may be null its other form."""
        if "anyOf" in node:
            node = node["anyOf"][0]
        name = node.get("$ref", "").removeprefix("#/$defs/")
        if not name:
            return node
        definition: dict[str, Any] = self._schema["$defs"][name]
        return definition


class FormSchema(GenerateJsonSchema):
    """Generator of JSON Schemas without a title for every field; an infinite default is null."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        if dft == inf:
            return None
        return super().encode_default(dft)

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Describe the object by its docstring on one line."""
        json_schema = super().dataclass_schema(schema)
        json_schema.pop("title", None)
        docstring = schema["cls"].__doc__ or ""
        return {**json_schema, "description": " ".join(docstring.split())}


def _path(location: tuple[int | str, ...]) -> str:
    """Return a place in a document as text: jobs[2].name."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".")


def canonical_bytes(form: Mapping[str, Any]) -> bytes:
    """Return canonical JSON: keys sorted, no spaces, shortest floats, UTF-8."""
    return json.dumps(
        form, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(form: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of the canonical bytes of a form."""
    return digest_of_bytes(canonical_bytes(form))


def digest_of_bytes(spelling: bytes) -> str:
    """Return the sha256 (hex) of these canonical bytes."""
    return hashlib.sha256(spelling).hexdigest()


def check_version(form: Any, what: str, version: int) -> None:
    """Reject another version of a form, or data that is no form."""
    if not isinstance(form, dict):
        raise FormError("", f"must be an object, not {shown(form)}", what)
    if form.get("version") != version:
        other = repr(form["version"]) if "version" in form else "none"
        raise FormError(
            "version",
            f"this program reads version {version} of the {what}, not {other}; convert it or use"
            " the matching release",
        )


def cleaned(text: str, longest: int | None = None) -> str:
    """Return a text that a database can store, cut to `longest`; "?" for what it cannot keep."""
    whole = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
    if longest is None or len(whole) <= longest:
        return whole
    return f"{whole[:longest]}..."


def shown(value: object) -> str:
    """Return a value for an error message, cut short; of a text only that it is one."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    for kind, name in ((dict, "an object"), (list, "an array"), (str, "a string")):
        if isinstance(value, kind):
            return name
    return f"{value!r:.40}"


def _plain(value: Any) -> Any:
    """Return a mapping as a dict, and a number of NumPy as one of Python."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item()


def _null_for_inf(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a number that reads null as inf, and writes inf as null."""
    number = handler(source)
    return core_schema.no_info_wrap_validator_function(
        lambda value, read: inf if value is None else read(value),
        number,
        json_schema_input_schema=core_schema.nullable_schema(number),
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda value: None if value == inf else value,
            return_schema=core_schema.nullable_schema(core_schema.float_schema()),
        ),
    )


def _object_of_pairs(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a tuple of (key, value) pairs that is an object in JSON."""
    pair = get_args(source)[0]
    as_object = handler.generate_schema(dict.__class_getitem__(get_args(pair)))
    return core_schema.no_info_after_validator_function(
        lambda mapping: tuple(sorted(mapping.items())),
        as_object,
        serialization=core_schema.plain_serializer_function_ser_schema(
            dict, return_schema=as_object
        ),
    )


def _json_data(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of plain JSON data. Raises ValueError for other data."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"must be plain JSON data with finite numbers ({error})") from None
    data: dict[str, Any] = json.loads(text)
    return data


NULL_FOR_INF = GetPydanticSchema(_null_for_inf)
"""Mark of a number that may be infinite, which is null in JSON."""

OBJECT = GetPydanticSchema(_object_of_pairs)
"""Mark of (name, amount) pairs that are an object in JSON."""

AtLeast0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
AtLeast1 = Annotated[float, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count0 = Annotated[int, Field(ge=0)]
Count1 = Annotated[int, Field(ge=1)]
Unbounded = Annotated[float, NULL_FOR_INF]
UnboundedAtLeast0 = Annotated[float, Field(ge=0), NULL_FOR_INF]
Amounts = Annotated[tuple[tuple[str, AtLeast0], ...], OBJECT]
PlainData = Annotated[
    Mapping[str, Any],
    GetPydanticSchema(lambda _, handler: handler(dict[str, Any])),
    AfterValidator(_json_data),
    PlainSerializer(_json_data),
]
