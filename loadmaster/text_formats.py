"""Texts and tables as people's programs write them: encodings, delimiters, decimal commas, times.

Spreadsheets save CSV with a byte-order mark, with semicolons where a comma is the decimal sign, in
UTF-16, or in the code page of Windows. All readers of people's files decode and split them here.
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
DELIMITERS = (",", ";", "\t", "|")
DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][-+]?\d+)?")
"""A number such as 0,25 or 1.234,5."""


class TextError(ValueError):
    """Bytes that are no text; the message says what they are and what would be right."""


def decode(data: bytes, *, any_encoding: bool = False) -> str:
    """Decode a text in UTF-8, or in what its byte-order mark says; the mark is left out.

    `any_encoding`: read other bytes by the code page of Windows, which has those of Latin-1.
    Raises TextError.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding)
    if data[1:2] == b"\0":
        return _decoded(data, "utf-16-le")  # without a mark: every second byte of ASCII is 0
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
    """A text without the byte-order mark that it was decoded with."""
    return text.removeprefix("\ufeff")


def read_bytes(path: Path, most: int) -> bytes:
    """Bytes of a file, unpacked if it is gzip's, of at most `most` unpacked.

    Raises TextError and OSError.
    """
    with path.open("rb") as file:
        return unpacked(file, most)


def unpacked(file: IO[bytes], most: int) -> bytes:
    """Bytes of an open file as `read_bytes` gives them; its name does not matter."""
    is_packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    try:
        data = gzip.GzipFile(fileobj=file).read(most + 1) if is_packed else file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"cannot be read: {error}") from None
    if len(data) > most:
        raise TextError(f"is larger than {most:,} bytes unpacked")
    return data


def delimiter_of(text: str) -> str:
    """Delimiter of a CSV: the sign that its header has most often outside of quotes."""
    header = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    return max(DELIMITERS, key=header.count)


def rows(text: str, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
    """Number of its first line and fields of each record; blank lines are left out.

    `delimiter`: found in the header where it is empty. Raises csv.Error.
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
    """A number with a decimal point; a comma is one only where it does not delimit fields."""
    stripped = text.strip().replace("\N{MINUS SIGN}", "-")
    if delimiter != "," and DECIMAL_COMMA.fullmatch(stripped):
        return stripped.replace(".", "").replace(",", ".")
    return stripped


def moment(text: str, zone: tzinfo = UTC) -> datetime:
    """Time of ISO 8601 such as 2026-05-01T13:00Z; without an offset it is one of `zone`.

    Raises ValueError.
    """
    at = datetime.fromisoformat(text.strip())
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)
