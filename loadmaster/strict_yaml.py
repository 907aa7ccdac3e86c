"""YAML that people write: read strictly, of limited size, with errors in plain words."""

import json
from pathlib import Path
from typing import Any

import yaml

from loadmaster.text_formats import TextError, decode, read_bytes, without_mark

LARGEST = 1_000_000
"""Most bytes of a job, of an agent's settings or of its emulated GPUs."""


class DocumentError(Exception):
    """A file or text that cannot be used; the message says where and what would be right."""


TAB_REMEDY = "is indented by a tab; YAML is indented by spaces"


def parse_json(text: str) -> Any:
    """Data in a JSON text that is an object or a list: JSON may be indented by tabs, YAML not.

    Raises ValueError for no JSON, for NaN and for a name that is given twice.
    """
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError("is no object or list of JSON")
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is given twice")
    return fields


class StrictLoader(yaml.SafeLoader):
    """YAML's safe loader that refuses names given twice."""


def _mapping(loader: StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    names: list[object] = []
    for key, _ in node.value:
        names.append(loader.construct_object(key))
        if names[-1] in names[:-1]:
            raise DocumentError(f"line {key.start_mark.line + 1}: {names[-1]!r} is given twice")
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Data in a text. Raises DocumentError, without the name of a file."""
    text = without_mark(text)
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        pass  # no JSON, or JSON whose faults YAML's messages name
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:  # not the line itself: it may hold a token
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = TAB_REMEDY if "'\\t'" in str(error.problem) else error.problem
        raise DocumentError(f"is no YAML: {line}{problem}") from None
    except yaml.YAMLError as error:
        raise DocumentError(f"is no YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError) as error:  # too deep, or a day that no month has
        raise DocumentError(f"is no YAML that can be used: {error}") from None


def read_text(path: Path, largest: int, remedy: str = "", *, any_encoding: bool = False) -> str:
    """Text of a file of at most `largest` bytes, unpacked ones too. Raises DocumentError.

    `any_encoding`: as `loadmaster.text_formats.decode`.
    """
    try:
        if path.stat().st_size > largest:
            raise DocumentError(f"{path} is larger than {largest:,} bytes{remedy}")
        return decode(read_bytes(path, largest), any_encoding=any_encoding)
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}") from None
    except TextError as error:
        raise DocumentError(f"{path} {error}") from None


def read_fields(
    path: Path,
    largest: int,
    *,
    example: str,
    remedy: str = "",
    loader: type[StrictLoader] = StrictLoader,
    may_be_empty: bool = False,
) -> dict[str, Any]:
    """Fields by name in a file of at most `largest` bytes. Raises DocumentError."""
    text = read_text(path, largest, remedy)
    try:
        data = parse_yaml(text, loader)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None
    if data is None and may_be_empty:
        return {}
    if not isinstance(data, dict):
        raise DocumentError(f"{path}: must hold fields by name, such as `{example}`")
    return {str(name): value for name, value in data.items()}
