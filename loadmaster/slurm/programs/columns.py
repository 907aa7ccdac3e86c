"""Columns of the tables that Slurm's programs print, by formats such as "%.18i %j"."""

import re
from collections.abc import Mapping

# A dot puts the text at the right of its column: %.10j.
_FIELD = re.compile(r"%(\.)?(\d{1,4})?([A-Za-z%])")

_LETTER = re.compile(r"%\.?(?:#|\d{1,4})?([A-Za-z])")
_LONG = re.compile(r"([A-Za-z_-]+)(?::(\.)?(\d{1,4})?)?")
LONG_WIDTH = "20"
"""Width of a column of --Format without one."""


class FormatError(ValueError):
    """Unknown column in a format; the message names those that there are."""


def line_of(
    texts: Mapping[str, str], columns: Mapping[str, str], format_text: str, program: str
) -> str:
    """Return a format with the texts of its columns. Raises FormatError.

    `texts` by name, `columns`: names by letter. `program` is named in messages.
    """

    def text(match: re.Match[str]) -> str:
        is_right, width, letter = match.groups()
        if letter == "%":
            return "%"
        if letter not in columns:
            known = ", ".join(f"%{known}" for known in columns)
            raise FormatError(f"{program} has no %{letter} here; there are {known}")
        return padded(texts[columns[letter]], width, is_right)

    return _FIELD.sub(text, format_text).rstrip()


def letters_of(format_text: str) -> list[str]:
    """Return the letters of the columns that a format names."""
    return _LETTER.findall(format_text)


def long_line(
    texts: Mapping[str, str], columns: Mapping[str, str], format_text: str, program: str
) -> str:
    """Return the texts of columns by their long names, such as JobID:10,State. FormatError.

    `texts` by name, `columns`: names by long name in small letters.
    """
    line = ""
    for part in format_text.split(","):
        match = _LONG.fullmatch(part.strip())
        column = columns.get(match[1].lower()) if match else None
        if match is None or column is None:
            known = ", ".join(columns)
            raise FormatError(f"{program} has no column {part.strip()} here; there are {known}")
        line += padded(texts[column], match[3] or LONG_WIDTH, match[2])
    return line.rstrip()


def padded(text: str, width: str | None, is_right: str | None) -> str:
    """Return a text cut or filled to a width; `is_right` is the dot of a format, if any."""
    if not width:
        return text
    size = int(width)
    cut = text[:size]
    return cut.rjust(size) if is_right else cut.ljust(size)
