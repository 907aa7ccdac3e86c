"""Readers of files line by line, in pieces, and the problems found by line."""

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
"""Lines in memory as fields at a time."""

MOST_BYTES = 2_000_000_000
"""Limit of a file's size, unpacked."""

PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?)?")
"""Time without a zone, of which numpy reads a million in a second."""

QUOTED = 40
"""Characters of a bad value in a message."""


def read_text(path: Path) -> str:
    """Read a file of any encoding, unpacked if it is gzip's. WorkloadError if there is none."""
    try:
        return decode(read_bytes(path, MOST_BYTES), any_encoding=True)
    except OSError as error:
        raise WorkloadError(f"path: {path} cannot be read: {error}") from None
    except TextError as error:
        raise WorkloadError(f"path: {path} {error}") from None


def pieces(text: str, comment: str) -> Iterator[tuple[Ints, list[str]]]:
    """Line numbers (from 1) and texts without blanks and comments, PIECE at a time."""
    kept = (
        (number, line)
        for number, line in enumerate(io.StringIO(text), start=1)
        if not line.isspace() and not (comment and line.lstrip().startswith(comment))
    )
    for piece in _pieces(kept):
        yield np.array([number for number, _ in piece], dtype=np.int64), [line for _, line in piece]


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while piece := list(islice(left, PIECE)):
        yield piece


class Table:
    """Rows of a CSV file by column: `header`, `lines` int64[M], and each column's texts."""

    def __init__(self, text: str, findings: Findings, delimiter: str = "") -> None:
        """`delimiter`: found in the header where it is empty."""
        self.delimiter = delimiter or delimiter_of(text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)
        try:
            self.header = [name.strip() for name in next(reader, [])]
        except csv.Error as error:
            raise WorkloadError(f"line 1: {error}") from None
        if repeated := sorted({name for name in self.header if self.header.count(name) > 1}):
            names = ", ".join(repeated)
            raise WorkloadError(f"line 1: the header has these columns twice: {names}")
        self.texts: dict[str, list[str]] = {name: [] for name in self.header}
        lines: list[int] = []
        for piece in _pieces(_rows(reader, len(self.header), findings)):
            lines.extend(number for number, _ in piece)
            columns = zip(*(row for _, row in piece), strict=True)
            for name, column in zip(self.header, columns, strict=True):
                self.texts[name].extend(column)
        self.lines = findings.lines = np.array(lines, dtype=np.int64)

    def need(self, *names: str) -> None:
        """Raise WorkloadError unless the file has these columns."""
        missing = [name for name in names if name not in self.texts]
        if missing:
            found = ", ".join(self.header) or "none"
            raise WorkloadError(
                f"line 1: columns missing: {', '.join(missing)}; the file has: {found}"
            )

    def numbers(self, name: str, findings: Findings, default: float | None = None) -> Floats:
        """Parse a column of numbers; empty fields are `default`; bad rows are 0 and marked."""
        texts = self.texts[name]
        empty = np.fromiter((not t or t.isspace() for t in texts), np.bool_, len(texts))
        if default is None:
            findings.mark(empty, lambda row: f"{name} is empty")
        if empty.any():
            texts = ["0" if e else t for e, t in zip(empty.tolist(), texts, strict=True)]
        values = as_floats(texts, self.delimiter)
        finite = np.isfinite(values)
        findings.mark(~finite, lambda row: f"{name} must be a number, not {quoted(texts[row])}")
        values = np.where(finite, values, 0.0)
        return np.where(empty, 0.0 if default is None else default, values)


def _rows(reader: Any, width: int, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, fields) of each record that can be read."""
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
    """Problems by line; the first problem of a line is reported."""

    def __init__(self) -> None:
        self.lines: Ints = np.zeros(0, dtype=np.int64)
        self.unreadable: list[BadLine] = []
        self.wanted: Bools | None = None
        """bool[M]: rows that are used, so that problems of others are none; None: all."""
        self._rows: dict[int, str] = {}

    def mark(self, bad: Bools, problem: Callable[[int], str]) -> None:
        """Mark rows where `bad` holds; `problem(row)` is the message."""
        bad = bad if self.wanted is None else bad & self.wanted
        for row in np.flatnonzero(bad).tolist():
            self._rows.setdefault(row, problem(row))

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
        good = self.good
        latest = np.maximum.accumulate(np.where(good, arrival_s, -np.inf))
        self.mark(
            good & (arrival_s < latest),
            lambda row: f"arrives at {arrival_s[row]:g} s, after a line at {latest[row]:g} s",
        )

    def repeated(self, ids: Sequence[str]) -> None:
        """Mark rows whose id a good row above them has."""
        good = self.good if self.wanted is None else self.good & self.wanted
        seen = dict[str, int]()
        if len(set(ids)) == len(ids):
            return
        for row, name in enumerate(ids):
            if good[row] and (first := seen.setdefault(name, row)) != row:
                self._rows[row] = f"job {quoted(name)} is in line {self.lines[first]} already"

    @property
    def good(self) -> Bools:
        """bool[M]: rows without problems."""
        mask = np.ones(len(self.lines), dtype=np.bool_)
        mask[list(self._rows)] = False
        return mask

    def settle(self, title: str, *, skip_bad: bool) -> tuple[BadLine, ...]:
        """Bad lines in order. WorkloadError if they may not be skipped or no line is good."""
        rows = (BadLine(int(self.lines[row]), problem) for row, problem in self._rows.items())
        bad = tuple(sorted((*self.unreadable, *rows), key=lambda b: b.line))
        total = len(self.unreadable) + len(self.lines)
        if bad and not skip_bad:
            advice = "correct them, or leave them out with skip_bad"
            raise WorkloadError(
                f"{title}: {len(bad):,} of {total:,} jobs cannot be used; {advice}:", bad
            )
        if len(bad) == total:
            raise WorkloadError(f"{title}: there is no job to simulate" + (":" if bad else ""), bad)
        return bad


def as_floats(texts: Sequence[str], delimiter: str = ",") -> Floats:
    """float64[M] of the texts; NaN where one is no number."""
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        return np.fromiter((_float(t, delimiter) for t in texts), np.float64, len(texts))


def _float(text: str, delimiter: str) -> float:
    try:
        return float(plain_number(text, delimiter))
    except ValueError:
        return float("nan")


def as_moments(texts: Sequence[str]) -> Floats:
    """float64[M]: seconds since 1970 of times of ISO 8601, in UTC where they name no zone.

    NaN where one is no time.
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
    """Value for a message, not longer than QUOTED characters."""
    return repr(text if len(text) <= QUOTED else text[: QUOTED - 3] + "...")
