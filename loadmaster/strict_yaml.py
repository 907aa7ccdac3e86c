"""YAML that people write: read strictly, of limited size, with errors in plain words."""

from pathlib import Path
from typing import Any

import yaml

LARGEST = 1_000_000
"""Most bytes of a job, of an agent's settings or of its emulated GPUs."""


class DocumentError(Exception):
    """A file or text that cannot be used; the message says where and what would be right."""


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
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:  # not the line itself: it may hold a token
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise DocumentError(f"is no YAML: {line}{error.problem}") from None
    except yaml.YAMLError as error:
        raise DocumentError(f"is no YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError) as error:  # too deep, or a day that no month has
        raise DocumentError(f"is no YAML that can be used: {error}") from None


def read_text(path: Path, largest: int, remedy: str = "") -> str:
    """Text of a file of at most `largest` bytes. Raises DocumentError."""
    try:
        if path.stat().st_size > largest:
            raise DocumentError(f"{path} is larger than {largest:,} bytes{remedy}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DocumentError(f"{path} is no UTF-8 text") from None


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
