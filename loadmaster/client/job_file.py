"""Job files: YAML or JSON as in docs/jobs.md, with values replaced by `--set`."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import yaml

LARGEST = 1_000_000


class JobFileError(Exception):
    """The file or a setting cannot be read; the message says where and what would be right."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader that refuses duplicate names."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [loader.construct_object(key) for key, _ in node.value]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise JobFileError(f"line {node.start_mark.line + 1}: {twice!r} is given twice")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_job_file(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The job in a file with settings applied, as JSON data. Raises JobFileError."""
    text = read_text(path, LARGEST, f"is larger than {LARGEST} bytes; a job file holds one job")
    try:
        data = parse(text)
    except JobFileError as error:
        raise JobFileError(f"{path}: {error}") from None
    return {**data, **parse_settings(settings, data)}


def read_text(path: Path, largest: int, too_large: str) -> str:
    """The text of a file of at most `largest` bytes. Raises JobFileError."""
    try:
        if path.stat().st_size > largest:
            raise JobFileError(f"{path} {too_large}")
        return path.read_text()
    except OSError as error:
        raise JobFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobFileError(f"{path} is no UTF-8 text") from None


def parse(text: str) -> dict[str, Any]:
    """The job in a YAML text."""
    data = _yaml(text)
    if not isinstance(data, dict):
        raise JobFileError("must hold the fields of a job, such as `name: digits`")
    return {str(name): value for name, value in data.items()}


def parse_settings(settings: Iterable[str], over: dict[str, Any] | None = None) -> dict[str, Any]:
    """`name=value` or `name.key=value` in YAML; keys are set in a copy of `over`."""
    values: dict[str, Any] = {}
    for setting in settings:
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?=(.*)", setting, re.DOTALL)
        if not match:
            form = "write name=value or name.key=value, such as gpus=2 or environment.SEED=1"
            raise JobFileError(f"--set {setting}: {form}")
        name, key, value = match[1], match[2], _yaml(match[3])
        if key is None:
            values[name] = value
            continue
        inner = values.get(name, (over or {}).get(name) or {})
        if not isinstance(inner, dict):
            raise JobFileError(f"--set {setting}: {name} holds no names")
        values[name] = {**inner, key: value}
    return values


def _yaml(text: str) -> Any:
    try:
        return _plain(yaml.load(text, Loader=_Loader))  # noqa: S506  # a subclass of the safe loader
    except yaml.YAMLError as error:
        raise JobFileError(f"is no YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError) as error:
        raise JobFileError(f"is no YAML that a job can be made of: {error}") from None


def _plain(value: Any) -> Any:
    """YAML knows times; JSON writes them as text."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
