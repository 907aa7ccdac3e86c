"""Expressions of job arrays, such as 0-99:2%10: indices, and how many may run at a time."""

import re
from dataclasses import dataclass
from itertools import chain

from jobs.submission.fields import FieldError, called

MAX_ELEMENTS = 10_000
MAX_INDEX = 4_000_000
MAX_TEXT = 1000
_PIECE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_EXAMPLE = "write indices such as 0-9, 0-99:2 or 1,3,5-9, and %N for at most N at a time"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Indices in ascending order; at most `at_once` elements run at a time (None: any number).

    `text` holds the indices as given; `step` is the distance of neighbours if it is always the
    same, else 1.
    """

    indices: tuple[int, ...]
    at_once: int | None
    text: str

    @property
    def step(self) -> int:
        gaps = {b - a for a, b in zip(self.indices, self.indices[1:], strict=False)}
        return gaps.pop() if len(gaps) == 1 else 1


def array_indices(value: object) -> ArraySpec:
    """Array of an expression: indices and ranges with steps, `%N` at its end for a limit.

    As of Slurm, an index that is named twice counts once.

    Raises FieldError: no text, empty, indices above MAX_INDEX, a range from high to low, a step or
    limit of 0, or more than MAX_ELEMENTS elements.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise FieldError(f"must be text, not {called(value)}; {_EXAMPLE}")
    text, percent, limit = "".join(value.split()).partition("%")
    if not text:
        raise FieldError(f"has no indices; {_EXAMPLE}")
    if len(text) > MAX_TEXT:
        raise FieldError(f"must have at most {MAX_TEXT} characters; use ranges such as 0-999:3")
    ranges = [_indices(piece) for piece in text.split(",")]
    count = sum(len(one_range) for one_range in ranges)
    if count > MAX_ELEMENTS:
        raise _too_many(count)
    indices = sorted(set(chain.from_iterable(ranges)))
    return ArraySpec(tuple(indices), _limit(limit) if percent else None, text)


def _indices(piece: str) -> range:
    """Return the indices of one index or range. Raises FieldError."""
    match = _PIECE.fullmatch(piece) if piece.isascii() else None
    if match is None or max(map(len, piece.replace(":", "-").split("-"))) > 9:
        raise FieldError(f"{called(piece)} is no index and no range; {_EXAMPLE}")
    first = int(match[1])
    last = int(match[2] or first)
    step = int(match[3] or 1)
    if step == 0:
        raise FieldError(f"{piece} has the step 0; the step must be at least 1")
    if first > last:
        raise FieldError(f"{piece} runs backwards; write {last}-{first}")
    if last > MAX_INDEX:
        raise FieldError(f"has the index {last}; the highest is {MAX_INDEX}")
    indices = range(first, last + 1, step)
    if len(indices) > MAX_ELEMENTS:
        raise _too_many(len(indices))
    return indices


def _too_many(count: int) -> FieldError:
    return FieldError(f"has {count} elements; at most {MAX_ELEMENTS}, so submit several arrays")


def _limit(text: str) -> int:
    """Return the number after %, how many elements may run at a time. Raises FieldError."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) == 0:
        raise FieldError(f"%{text[:20]}: the number of elements at a time must be at least 1")
    return int(text)
