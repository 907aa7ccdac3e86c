"""Names of files with fields of a job, such as %j, %x, %A_%a or %4t."""

import re
from collections.abc import Mapping

_FIELD = re.compile(r"%(\d{0,2})([%AajJnNstux])")


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """Return a name with the values of its fields; %4t writes a number with 4 digits."""
    return _FIELD.sub(lambda match: _field(match, values), pattern)


def _field(match: re.Match[str], values: Mapping[str, str]) -> str:
    width = int(match[1] or 0)
    name = match[2]
    if name == "%":
        return "%"
    value = values[name]
    if not value.isdecimal():
        return value
    return value.rjust(width, "0")
