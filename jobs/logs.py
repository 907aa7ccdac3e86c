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
"""Output streams of a process."""

PIECE = 65_536
"""Bytes of a piece, unless the reader asks for more or fewer."""

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
class _Position:
    """Byte of an assignment's output at which reading goes on."""

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
    """Return the piece after `cursor`, of `limit` bytes at most, or fewer if no more are there.

    Without a cursor the piece begins at byte `offset` of all output; a negative one counts from
    the end. Raises BadCursor.
    """
    # 1. Read the job's state before its output: a job that ends meanwhile is not done yet, so that
    #    the reader comes back for its last lines.
    job_is_over = job.is_over
    now = timezone.now()

    # 2. Find where to begin.
    training = job.assignments.filter(purpose="training", rank=rank).order_by("fence")
    position: _Position | None
    if cursor:
        position = _from_cursor(training, cursor)
    else:
        position = _from_offset(training, stream, offset or 0)
    if position is None:
        return LogPiece("", cursor, job_is_over)

    # 3. Read launch after launch, until the piece is full or more output may come.
    later_launches = deque(training.filter(fence__gt=position.assignment.fence)[:LAUNCHES])
    texts: list[str] = []
    while True:
        # Only the newest launch is waited for, as its agent may still deliver output.
        launch = position.assignment
        is_last = not later_launches
        output_ended = _is_settled(launch, now) or (not is_last and _has_ended(launch))

        room = max(MIN_PIECE, limit)
        text, position, is_read = _read_launch(position, stream, room, ended=output_ended)
        texts.append(text)
        limit -= len(text.encode())
        if not is_read or not output_ended or is_last:
            break
        position = _Position(later_launches.popleft(), 0)
        if limit <= 0 or len(texts) == LAUNCHES:
            break

    done = job_is_over and is_last and output_ended and is_read
    return LogPiece("".join(texts), _to_cursor(position), done)


def _has_ended(launch: Assignment) -> bool:
    return AssignmentState(launch.state) in ENDED


def _is_settled(launch: Assignment, now: datetime) -> bool:
    """Return True if a launch ended long enough ago for its agent to have sent all output."""
    if not _has_ended(launch):
        return False
    return launch.ended_at is None or now - launch.ended_at >= SETTLE


def _read_launch(
    position: _Position, stream: str, limit: int, *, ended: bool
) -> tuple[str, _Position, bool]:
    """Return a launch's next text, the position after it, and True if all stored output is read.

    `ended`: no more output will come, so an incomplete last character is read too.
    """
    data, offset_after_gap = _next_bytes(position, stream, limit)
    is_complete = offset_after_gap is not None or (ended and len(data) < limit)
    text, bytes_used = _decode(data, final=is_complete)
    if offset_after_gap is None:
        after = _Position(position.assignment, position.offset + bytes_used)
    else:
        after = _Position(position.assignment, offset_after_gap)
    is_read = bytes_used == len(data) and not _chunks_from(after, stream).exists()
    return text, after, is_read


def _chunks_from(position: _Position, stream: str) -> QuerySet[LogChunk]:
    """Return the stored chunks that end after a position, in order."""
    end = ExpressionWrapper(F("offset") + F("size"), output_field=BigIntegerField())
    chunks = LogChunk.objects.filter(assignment=position.assignment, stream=stream)
    return chunks.annotate(end=end).filter(end__gt=position.offset).order_by("offset")


def _next_bytes(position: _Position, stream: str, limit: int) -> tuple[bytes, int | None]:
    """Return up to `limit` contiguous bytes and None; or the line of a gap and the gap's end.

    A gap is output that was dropped. Its first row has a line for readers in place of the bytes,
    so that its data and its size differ; further rows of a long gap have no data.
    """
    data = b""
    end_of_gap: int | None = None
    for chunk in _chunks_from(position, stream).iterator(chunk_size=16):
        content = chunk.content
        is_gap = len(content) != chunk.size
        if end_of_gap is not None:
            # 1. Skip the other rows of the gap.
            if chunk.offset != end_of_gap or content:
                break
            end_of_gap += chunk.size
            continue

        # 2. Stop at bytes that are missing, at the limit, and before a gap.
        expected_offset = position.offset + len(data)
        if chunk.offset > expected_offset or len(data) >= limit or (is_gap and data):
            break

        # 3. Take the chunk, without the bytes that were read before.
        data += content[expected_offset - chunk.offset :]
        if is_gap:
            end_of_gap = chunk.offset + chunk.size
    if end_of_gap is None:
        return data[:limit], None
    return data, end_of_gap


def _decode(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the text and the number of bytes used.

    An incomplete character at the end is left for the next piece, unless this one is `final`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=final)
    incomplete, _ = decoder.getstate()
    return text, len(data) - len(incomplete)


def _from_offset(training: QuerySet[Assignment], stream: str, offset: int) -> _Position | None:
    """Return the position of a byte of all output, at most its end; None without a launch."""
    # 1. The bytes of each launch, in order of launches.
    chunks = LogChunk.objects.filter(assignment__in=training.order_by(), stream=stream)
    by_launch = chunks.values_list("assignment").order_by("assignment__fence")
    sizes = dict(by_launch.annotate(total=Sum("size")))
    if offset < 0:
        offset = max(0, sum(sizes.values()) + offset)

    # 2. The launch that has the byte, else the end of the newest.
    for pk, size in sizes.items():
        if offset < size:
            return _Position(training.get(pk=pk), offset)
        offset -= size
    newest = training.last()
    if newest is None:
        return None
    return _Position(newest, sizes.get(newest.pk, 0))


def _to_cursor(position: _Position) -> str:
    """Return a position as text: the assignment's id and the offset, in base64."""
    raw = position.assignment.pk.bytes + position.offset.to_bytes(8, "big", signed=True)
    return base64.urlsafe_b64encode(raw).decode()


def _from_cursor(training: QuerySet[Assignment], cursor: str) -> _Position:
    """Return the position of a cursor. Raises BadCursor."""
    try:
        raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        assignment = training.get(pk=uuid.UUID(bytes=raw[:16]))
        return _Position(assignment, int.from_bytes(raw[16:24], "big", signed=True))
    except (Assignment.DoesNotExist, ValueError, binascii.Error):
        message = "cursor: is none of this job's log; leave it out to read from the start"
        raise BadCursor(message) from None
