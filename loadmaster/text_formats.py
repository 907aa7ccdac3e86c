"""Texts and tables as users' programs write them: encodings, delimiters, decimal commas, times.

Spreadsheets save CSV with a byte-order mark, in UTF-16, or in the code page of Windows, and with
semicolons if a comma is the decimal sign. All readers of users' files decode and split them here.
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import IO

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which begins alike
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
GZIP = b"\x1f\x8b"
"""First bytes of a gzip file."""

DELIMITERS = (",", ";", "\t", "|")
DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][-+]?\d+)?")
"""A number such as 0,25 or 1.234,5."""


class TextError(ValueError):
    """Bytes that are not a text; the message says what is wrong with them, and the remedy."""


def decode(data: bytes, *, any_encoding: bool = False) -> str:
    """Decode a text in UTF-8, or in the encoding of its byte-order mark, which is left out.

    `any_encoding`: if it is not UTF-8, read it as Windows-1252, which includes Latin-1. Raises
    TextError.
    """
    # 1. UTF-16 and UTF-32, by their mark or by the zero bytes of ASCII characters.
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding)
    if data[1:2] == b"\0":
        return _decoded(data, "utf-16-le")

    # 2. Encodings of one byte for each ASCII character.
    if any_encoding:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("cp1252", errors="replace")
    return _decoded(data, "utf-8")


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise TextError(f"is no {encoding.upper()} text; save it as UTF-8") from None


def without_mark(text: str) -> str:
    """Return a decoded text without its byte-order mark."""
    return text.removeprefix("\ufeff")


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file, and unpack it if it is gzip.

    Raises TextError if it has more than `most` bytes unpacked, and OSError.
    """
    with path.open("rb") as file:
        return unpacked(file, most)


def unpacked(file: IO[bytes], most: int) -> bytes:
    """Read an open file, and unpack it if its first bytes are gzip's, whatever its name is.

    Raises TextError.
    """
    is_packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    limit = most + 1  # one byte more tells that the file is too large
    try:
        data = gzip.GzipFile(fileobj=file).read(limit) if is_packed else file.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"cannot be read: {error}") from None
    if len(data) > most:
        raise TextError(f"is larger than {most:,} bytes unpacked")
    return data


def delimiter_of(text: str) -> str:
    """Return the delimiter of a CSV: the one that its header has most often outside of quotes."""
    header = text.lstrip("\r\n").partition("\n")[0]
    without_quoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=without_quoted.count)


def rows(text: str, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield the number of its first line and the stripped fields of each record of a CSV.

    Blank lines are left out. Without a `delimiter` it is found in the header. Raises csv.Error.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or delimiter_of(text))
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        if any(field.strip() for field in row):
            yield number, [field.strip() for field in row]


def plain_number(text: str, delimiter: str) -> str:
    """Return a number with a decimal point in place of a decimal comma, and without thousands.

    A comma is decimal only if it does not delimit the fields.
    """
    stripped = text.strip().replace("\N{MINUS SIGN}", "-")
    if delimiter != "," and DECIMAL_COMMA.fullmatch(stripped):
        return stripped.replace(".", "").replace(",", ".")
    return stripped


def moment(text: str, zone: tzinfo = UTC) -> datetime:
    """Parse a time of ISO 8601 such as 2026-05-01T13:00Z; without an offset it is in `zone`.

    Raises ValueError.
    """
    time = datetime.fromisoformat(text.strip())
    if time.tzinfo is None:
        return time.replace(tzinfo=zone)
    return time
