"""Dataclass <-> JSON, strictly: see `foundation.forms`."""

import dataclasses
import json
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, FailFast, Field

from foundation.forms import Form
from foundation.forms import FormError as WireError

__all__ = [
    "Int", "Many", "Text", "WireError", "dumps", "form", "from_json", "loads", "one_of", "to_json",
]  # fmt: skip  # a long list of names

T = TypeVar("T")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]
Int = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Many = Annotated[tuple[T, ...], FailFast()]
"""Reading ends at the first wrong item: a million of them are refused as fast as one."""


_forms: dict[Any, Form[Any]] = {}


def form(cls: type[T]) -> Form[T]:
    """The JSON form of a dataclass, made once."""
    if cls not in _forms:
        _forms[cls] = Form(cls)
    return _forms[cls]


def to_json(obj: object) -> dict[str, Any]:
    """The plain data (dicts, lists, strings, numbers) of a dataclass, ready for `json.dumps`."""
    if not dataclasses.is_dataclass(obj) or isinstance(obj, type):
        raise TypeError(f"to_json takes a dataclass instance, not {type(obj).__name__}")
    return form(type(obj)).write(obj)


def dumps(obj: object) -> bytes:
    """The compact UTF-8 JSON text of a dataclass; a number that is not finite is a ValueError."""
    return json.dumps(to_json(obj), separators=(",", ":"), allow_nan=False).encode()


def from_json(cls: type[T], data: object) -> T:
    """The dataclass that parsed JSON describes; WireError names a field that does not fit."""
    return form(cls).read(data)


def loads(cls: type[T], text: bytes | str) -> T:
    """`from_json` of a JSON text; WireError also for text that is no JSON."""
    return form(cls).loads(text)


def one_of(*names: str) -> AfterValidator:
    """A validator of a text field that takes these names only."""

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return AfterValidator(check)
