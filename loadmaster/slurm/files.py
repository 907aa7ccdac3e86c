"""Names of files with fields of a job, such as %j, %x, %A_%a or %4t."""

import re
from collections.abc import Mapping

_FIELD = re.compile(r"%(\d{0,2})([%AajJnNstux])")


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """Name with the values of its fields, numbers with zeros to the width that a field says."""
    return _FIELD.sub(lambda match: _field(match, values), pattern)


def _field(match: re.Match[str], values: Mapping[str, str]) -> str:
    width, name = int(match[1] or 0), match[2]
    if name == "%":
        return "%"
    value = values[name]
    return value.rjust(width, "0") if value.isdecimal() else value
