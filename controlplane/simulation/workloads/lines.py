"""Readers of text and CSV files in pieces of lines, and the problems found in each line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from controlplane.simulation.workloads.base import BadLine, WorkloadError
from loadmaster.text_formats import (
    TextError,
    decode,
    delimiter_of,
    moment,
    plain_number,
    read_bytes,
)
from policies.contract.snapshot import Bools, Floats, Ints

T = TypeVar("T")

PIECE = 50_000
"""Lines that are in memory as separate fields at a time."""

MOST_BYTES = 2_000_000_000
"""Largest size of a file, unpacked."""

PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?)?")
"""A time without a zone: numpy parses a million of these in a second."""

QUOTED = 40
"""Characters of a bad value in a message."""


def read_text(path: Path) -> str:
    """Read a text file of any encoding, unpacked if it is gzip. Raises WorkloadError."""
    try:
        return decode(read_bytes(path, MOST_BYTES), any_encoding=True)
    except OSError as error:
        raise WorkloadError(f"path: {path} cannot be read: {error}") from None
    except TextError as error:
        raise WorkloadError(f"path: {path} {error}") from None


def pieces(text: str, comment: str) -> Iterator[tuple[Ints, list[str]]]:
    """Yield numbers (from 1) and texts of PIECE lines at a time, without blank lines and comments.

    `comment`: the beginning of a comment; "": the format has none.
    """
    for piece in _pieces(_content_lines(text, comment)):
        numbers, lines = zip(*piece, strict=True)
        yield np.array(numbers, dtype=np.int64), list(lines)


def _content_lines(text: str, comment: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(io.StringIO(text), start=1):
        is_comment = bool(comment) and line.lstrip().startswith(comment)
        if not line.isspace() and not is_comment:
            yield number, line


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield PIECE items at a time; the last piece may be shorter."""
    iterator = iter(items)
    while piece := list(islice(iterator, PIECE)):
        yield piece


class Table:
    """Rows of a CSV file: names of the columns (`header`), and the texts of each column.

    `lines`, int64[M]: number of the first line of each row.
    """

    def __init__(self, text: str, findings: Findings, delimiter: str = "") -> None:
        """Read the text; without a `delimiter` it is found in the header.

        Rows that cannot be read are added to the findings. Raises WorkloadError for a bad header.
        """
        # 1. The header.
        self.delimiter = delimiter or delimiter_of(text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)
        try:
            self.header = [name.strip() for name in next(reader, [])]
        except csv.Error as error:
            raise WorkloadError(f"line 1: {error}") from None
        repeated = {name for name in self.header if self.header.count(name) > 1}
        if repeated:
            names = ", ".join(sorted(repeated))
            raise WorkloadError(f"line 1: the header has these columns twice: {names}")

        # 2. The rows, turned into columns piece by piece: a list for each row takes much memory.
        self.texts: dict[str, list[str]] = {name: [] for name in self.header}
        numbers: list[int] = []
        for piece in _pieces(_rows(reader, len(self.header), findings)):
            numbers.extend(number for number, _ in piece)
            columns = zip(*(row for _, row in piece), strict=True)
            for name, column in zip(self.header, columns, strict=True):
                self.texts[name].extend(column)
        self.lines = np.array(numbers, dtype=np.int64)
        findings.lines = self.lines

    def need(self, *names: str) -> None:
        """Raise WorkloadError unless the file has these columns."""
        missing = [name for name in names if name not in self.texts]
        if missing:
            present = ", ".join(self.header) or "none"
            raise WorkloadError(
                f"line 1: columns missing: {', '.join(missing)}; the file has: {present}"
            )

    def numbers(self, name: str, findings: Findings, default: float | None = None) -> Floats:
        """Return a column as float64[M]. Rows without a number are marked, and 0 in the result.

        Empty fields are `default`; if that is None they are marked too.
        """
        texts = self.texts[name]
        empty = is_empty(texts)
        if default is None:
            findings.mark(empty, lambda row: f"{name} is empty")
        if empty.any():
            texts = filled(texts, empty, "0")
        values = as_floats(texts, self.delimiter)
        finite = np.isfinite(values)
        findings.mark(~finite, lambda row: f"{name} must be a number, not {quoted(texts[row])}")
        values = np.where(finite, values, 0.0)
        return np.where(empty, default or 0.0, values)


def is_empty(texts: Sequence[str]) -> Bools:
    """bool[M]: texts that are empty or blank."""
    return np.fromiter((not text or text.isspace() for text in texts), np.bool_, len(texts))


def filled(texts: Sequence[str], empty: Bools, value: str) -> list[str]:
    """Return the texts with `value` in place of the empty ones."""
    result = list(texts)
    for row in np.flatnonzero(empty).tolist():
        result[row] = value
    return result


def _rows(reader: Any, width: int, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Yield number of the first line and fields of each record; others are added to the findings.

    `width`: the number of fields that a record must have.
    """
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.unreadable.append(BadLine(number, str(error)))
            continue
        if not row or (len(row) == 1 and not row[0].strip()):
            continue
        if len(row) == width:
            yield number, row
        else:
            findings.unreadable.append(BadLine(number, f"has {len(row)} fields, not {width}"))


class Findings:
    """Problems of rows; only the first problem of a row is kept.

    `lines`, int64[M]: line number of each row. `unreadable`: lines that did not become rows.
    """

    def __init__(self) -> None:
        self.lines: Ints = np.zeros(0, dtype=np.int64)
        self.unreadable: list[BadLine] = []
        self.wanted: Bools | None = None
        """bool[M]: rows that become jobs; problems of other rows do not count. None: all rows."""
        self._problems: dict[int, str] = {}

    def mark(self, bad: Bools, problem: Callable[[int], str]) -> None:
        """Mark the rows where `bad`, bool[M], is true; `problem(row)` is the message."""
        if self.wanted is not None:
            bad = bad & self.wanted
        for row in np.flatnonzero(bad).tolist():
            self._problems.setdefault(row, problem(row))

    def limit(self, name: str, values: Floats, most: float = inf, unit: str = "") -> None:
        """Mark rows whose value is negative, or finite and above `most`."""
        self.mark(
            values < 0, lambda row: f"{name} must not be negative, it is {values[row]:g}{unit}"
        )
        self.mark(
            np.isfinite(values) & (values > most),
            lambda row: f"{name} must not be above {most:g}{unit}, it is {values[row]:g}{unit}",
        )

    def unsorted(self, arrival_s: Floats) -> None:
        """Mark rows that arrive before a good row above them."""
        good = self.good
        latest = np.maximum.accumulate(np.where(good, arrival_s, -np.inf))
        self.mark(
            good & (arrival_s < latest),
            lambda row: f"arrives at {arrival_s[row]:g} s, after a line at {latest[row]:g} s",
        )

    def repeated(self, ids: Sequence[str]) -> None:
        """Mark rows whose id a good row above them has."""
        if len(set(ids)) == len(ids):
            return
        good = self.good
        if self.wanted is not None:
            good = good & self.wanted
        first_rows: dict[str, int] = {}
        for row, name in enumerate(ids):
            if not good[row]:
                continue
            first = first_rows.setdefault(name, row)
            if first != row:
                self._problems[row] = f"job {quoted(name)} is in line {self.lines[first]} already"

    @property
    def good(self) -> Bools:
        """bool[M]: rows without problems."""
        mask = np.ones(len(self.lines), dtype=np.bool_)
        mask[list(self._problems)] = False
        return mask

    def settle(self, title: str, *, skip_bad: bool) -> tuple[BadLine, ...]:
        """Return the bad lines in order.

        Raises WorkloadError if there are any and `skip_bad` is False, or if no line is good.
        """
        bad_lines = list(self.unreadable)
        for row, problem in self._problems.items():
            bad_lines.append(BadLine(int(self.lines[row]), problem))
        bad = tuple(sorted(bad_lines, key=lambda bad_line: bad_line.line))
        total = len(self.unreadable) + len(self.lines)
        if bad and not skip_bad:
            advice = "correct them, or leave them out with skip_bad"
            raise WorkloadError(
                f"{title}: {len(bad):,} of {total:,} jobs cannot be used; {advice}:", bad
            )
        if len(bad) == total:
            colon = ":" if bad else ""
            raise WorkloadError(f"{title}: there is no job to simulate{colon}", bad)
        return bad


def as_floats(texts: Sequence[str], delimiter: str = ",") -> Floats:
    """Return the texts as float64[M]; NaN where one is not a number."""
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        # One of them is not a number for numpy: it may have a decimal comma.
        return np.fromiter((_float(text, delimiter) for text in texts), np.float64, len(texts))


def _float(text: str, delimiter: str) -> float:
    try:
        return float(plain_number(text, delimiter))
    except ValueError:
        return float("nan")


def as_moments(texts: Sequence[str]) -> Floats:
    """Return times of ISO 8601 as float64[M]: seconds since 1970; NaN where one is not a time.

    Times without a zone are UTC.
    """
    if all(PLAIN_TIME.fullmatch(text) for text in texts):
        with suppress(ValueError):
            return np.array(texts, dtype="datetime64[ms]").astype(np.int64) / 1e3
    return np.fromiter((_moment_s(text) for text in texts), np.float64, len(texts))


def _moment_s(text: str) -> float:
    try:
        return moment(text).timestamp()
    except (ValueError, OverflowError):
        return float("nan")


def quoted(text: str) -> str:
    """Return a value in quotes for a message, cut to QUOTED characters."""
    if len(text) > QUOTED:
        text = text[: QUOTED - 3] + "..."
    return repr(text)
