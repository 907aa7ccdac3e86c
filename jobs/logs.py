"""A job's log: outputs of its training assignments in order, read by an opaque cursor."""

import base64
import binascii
import codecs
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import BigIntegerField, ExpressionWrapper, F, QuerySet, Sum
from django.db.models.functions import Coalesce, Length
from django.utils import timezone

from jobs.assignment_lifecycle import ENDED
from jobs.models import Assignment, Job, LogChunk
from loadmaster.protocol import AssignmentState

STREAMS = ("stdout", "stderr")
PIECE = 65_536
MIN_PIECE = 16
MAX_PIECE = 1_048_576
LAUNCHES = 20
"""Launches of which one piece is read at most: many may have no output."""

STORED_BYTES = Coalesce(F("unpacked_size"), Length("data"))
"""Unpacked bytes that a row has: its size, or in a gap those of the line for readers."""

SETTLE = timedelta(seconds=3)
"""Time after an assignment's end in which its agent may still deliver output."""


class BadCursor(ValueError):
    """Cursor that this job's log did not issue."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Piece of the log and the next cursor; `done`: job over and log read."""

    text: str
    cursor: str
    done: bool


@dataclass(frozen=True, slots=True)
class _Place:
    assignment: Assignment
    offset: int


def read_log(
    job: Job,
    stream: str = "stdout",
    *,
    cursor: str = "",
    offset: int | None = None,
    rank: int = 0,
    limit: int = PIECE,
) -> LogPiece:
    """Return the piece after `cursor`, else from byte `offset` (< 0: from the end). BadCursor."""
    # The job is read before its output: whatever is written later belongs to a reader who comes
    # back.
    over, now = job.is_over, timezone.now()
    training = job.assignments.filter(purpose="training", rank=rank).order_by("fence")
    if cursor:
        place: _Place | None = _from_cursor(training, cursor)
    else:
        place = _from_offset(training, stream, offset or 0)
    if place is None:
        return LogPiece("", cursor, over)
    later = deque(training.filter(fence__gt=place.assignment.fence)[:LAUNCHES])
    texts: list[str] = []
    while True:
        current, last = place.assignment, not later
        ended = _settled(current, now) or (not last and AssignmentState(current.state) in ENDED)
        text, place, exhausted = _take(place, stream, max(MIN_PIECE, limit), ended=ended)
        texts.append(text)
        limit -= len(text.encode())
        if not exhausted or not ended or last:
            break
        place = _Place(later.popleft(), 0)
        if limit <= 0 or len(texts) == LAUNCHES:
            break
    return LogPiece("".join(texts), _to_cursor(place), over and last and ended and exhausted)


def _take(place: _Place, stream: str, limit: int, *, ended: bool) -> tuple[str, _Place, bool]:
    """Return the next text, its end, and True if all of the assignment's output is read."""
    data, jump = _bytes(place, stream, limit)
    final = jump is not None or (ended and len(data) < limit)
    text, used = _decoded(data, final=final)
    after = _Place(place.assignment, place.offset + used if jump is None else jump)
    return text, after, used == len(data) and not _chunks(after, stream).exists()


def _chunks(place: _Place, stream: str) -> QuerySet[LogChunk]:
    end = ExpressionWrapper(F("offset") + F("size"), output_field=BigIntegerField())
    chunks = LogChunk.objects.filter(assignment=place.assignment, stream=stream).annotate(end=end)
    return chunks.filter(end__gt=place.offset).order_by("offset")


def _bytes(place: _Place, stream: str, limit: int) -> tuple[bytes, int | None]:
    """Return up to `limit` contiguous bytes and None, or a dropped chunk and the next offset."""
    found, jump = b"", None
    for chunk in _chunks(place, stream).iterator(chunk_size=16):
        expected, data = place.offset + len(found), chunk.content
        odd = len(data) != chunk.size
        if jump is not None and chunk.offset == jump and not data:
            jump += chunk.size  # a long gap has many rows
            continue
        if jump is not None or chunk.offset > expected or len(found) >= limit or (odd and found):
            break
        found += data[expected - chunk.offset :]
        if odd:
            jump = chunk.offset + chunk.size
    return (found[:limit], None) if jump is None else (found, jump)


def _decoded(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return (text, bytes used); an incomplete character waits unless `final`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=final)
    return text, len(data) - len(decoder.getstate()[0])


def _settled(assignment: Assignment, now: datetime) -> bool:
    ended = AssignmentState(assignment.state) in ENDED
    return ended and (assignment.ended_at is None or now - assignment.ended_at >= SETTLE)


def _from_offset(training: QuerySet[Assignment], stream: str, offset: int) -> _Place | None:
    """Return the place of a byte of all output, at most its end; None without a launch."""
    chunks = LogChunk.objects.filter(assignment__in=training.order_by(), stream=stream)
    by_launch = chunks.values_list("assignment").order_by("assignment__fence")
    sizes = dict(by_launch.annotate(total=Sum("size")))
    rest = offset if offset >= 0 else max(0, sum(sizes.values()) + offset)
    for pk, size in sizes.items():
        if rest < size:
            return _Place(training.get(pk=pk), rest)
        rest -= size
    newest = training.last()
    return _Place(newest, sizes.get(newest.pk, 0)) if newest else None


def _to_cursor(place: _Place) -> str:
    raw = place.assignment.pk.bytes + place.offset.to_bytes(8, "big", signed=True)
    return base64.urlsafe_b64encode(raw).decode()


def _from_cursor(training: QuerySet[Assignment], cursor: str) -> _Place:
    try:
        raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        assignment = training.get(pk=uuid.UUID(bytes=raw[:16]))
        return _Place(assignment, int.from_bytes(raw[16:24], "big", signed=True))
    except (Assignment.DoesNotExist, ValueError, binascii.Error):
        said = "cursor: is none of this job's log; leave it out to read from the start"
        raise BadCursor(said) from None
