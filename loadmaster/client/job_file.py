"""Job files: YAML or JSON as in docs/jobs.md, with values replaced by `--set`."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

from loadmaster.strict_yaml import LARGEST, DocumentError, parse_yaml, read_fields


def read_job_file(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """Read a job as JSON data, with settings applied. Raises DocumentError."""
    fields = read_fields(path, LARGEST, example="name: digits", remedy="; a job file holds one job")
    data = {name: _plain(value) for name, value in fields.items()}
    return {**data, **parse_settings(settings, data)}


def parse_settings(settings: Iterable[str], over: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the values of settings `name=value` or `name.key=value`. Raises DocumentError.

    `over`: values of a file; a setting of a key keeps the other keys of the object there.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        # 1. The parts of the setting.
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?=(.*)", setting, re.DOTALL)
        if not match:
            form = "write name=value or name.key=value, such as gpus=2 or environment.SEED=1"
            raise DocumentError(f"--set {setting}: {form}")
        name = match[1]
        key = match[2]
        try:
            value = _plain(parse_yaml(match[3]))
        except DocumentError as error:
            raise DocumentError(f"--set {setting}: {error}") from None

        # 2. A value, or one key of an object.
        if key is None:
            values[name] = value
            continue
        inner = values.get(name, (over or {}).get(name) or {})
        if not isinstance(inner, dict):
            raise DocumentError(f"--set {setting}: {name} holds no names")
        values[name] = {**inner, key: value}
    return values


def _plain(value: Any) -> Any:
    """Return a value of YAML as JSON data, which has texts for dates and times."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
