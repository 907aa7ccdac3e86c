"""Job files: YAML or JSON as in docs/jobs.md, with values replaced by `--set`."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

from loadmaster.strict_yaml import LARGEST, DocumentError, parse_yaml, read_fields


def read_job_file(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The job in a file with settings applied, as JSON data. Raises DocumentError."""
    fields = read_fields(path, LARGEST, example="name: digits", remedy="; a job file holds one job")
    data = {name: _plain(value) for name, value in fields.items()}
    return {**data, **parse_settings(settings, data)}


def parse_settings(settings: Iterable[str], over: dict[str, Any] | None = None) -> dict[str, Any]:
    """Values of `name=value` or `name.key=value`; keys are set in a copy of `over`.

    Raises DocumentError.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?=(.*)", setting, re.DOTALL)
        if not match:
            form = "write name=value or name.key=value, such as gpus=2 or environment.SEED=1"
            raise DocumentError(f"--set {setting}: {form}")
        name, key = match[1], match[2]
        try:
            value = _plain(parse_yaml(match[3]))
        except DocumentError as error:
            raise DocumentError(f"--set {setting}: {error}") from None
        if key is None:
            values[name] = value
            continue
        inner = values.get(name, (over or {}).get(name) or {})
        if not isinstance(inner, dict):
            raise DocumentError(f"--set {setting}: {name} holds no names")
        values[name] = {**inner, key: value}
    return values


def _plain(value: Any) -> Any:
    """YAML knows times; JSON writes them as text."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
