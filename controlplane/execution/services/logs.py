"""Logs of assignments: consecutive pieces, kept packed, of which head and tail are kept.

What is left out between them is a row without its data, which holds a mark for readers.
"""

import hashlib
import zlib
from collections.abc import Iterable
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import BigIntegerField, ExpressionWrapper, F

from clusters.agent_errors import AgentCallError, invalid, stale_assignment, stale_epoch
from clusters.models import Node
from jobs.logs import HELD
from jobs.models import Assignment, LogChunk
from jobs.models.assignments import GZIP
from loadmaster.protocol import ErrorCode

STREAMS = ("stdout", "stderr")
LARGEST_PIECE = 1_048_576
FREED_AT_ONCE = 1_000_000
"""Bytes that the middle of a log outgrows its limits by before they are freed."""

LARGEST_GAP = 2_000_000_000
"""Bytes of a row, whose size is an integer of 31 bits."""

FURTHEST = 2**44
"""Most bytes of a stream: the largest file of ext4, to which an agent writes it."""

JOINED = 16_384
"""Longest piece that is made of small ones, which pack badly each by itself."""


def append_log(
    node: Node,
    assignment_id: UUID,
    stream: str,
    offset: int,
    epoch: int,
    fence: int,
    body: bytes,
    digest: str,
    *,
    skipped: bool = False,
) -> int:
    """Keep gzip output from unpacked byte `offset`; return the offset of the next piece.

    `digest`: sha256 of the unpacked bytes; `skipped`: what lies before `offset` is left out.
    """
    if stream not in STREAMS:
        raise invalid("stream", f"must be one of {', '.join(STREAMS)}, not {stream!r}")
    if offset > FURTHEST:
        raise invalid("offset", f"may be at most {FURTHEST}; the job must write less output")
    data = unpack(body, digest)
    if node.epoch != epoch:
        raise stale_epoch(epoch, node.epoch)
    if not Assignment.objects.filter(pk=assignment_id, node=node, fence=fence).exists():
        raise stale_assignment(
            f"there is no assignment {assignment_id} with fence {fence} on this node"
        )
    end = offset + len(data)
    try:
        with transaction.atomic():
            last = _last(assignment_id, stream)
            expected = last.offset + last.size if last else 0
            if offset != expected and not (skipped and offset > expected):
                raise _wrong_offset(offset, next_offset(assignment_id, stream))
            if not data:
                return expected
            _leave_out(assignment_id, stream, expected, offset)
            begin, data = _joined(last, offset, data)
            _store(assignment_id, stream, begin, data, body if begin == offset else None)
            _free_middle(assignment_id, stream, end, node.cluster.log_ends)
    except IntegrityError:
        raise _wrong_offset(offset, next_offset(assignment_id, stream)) from None
    return end


def unpack(body: bytes, digest: str) -> bytes:
    """Unpack a piece; refused if it is no gzip, too large, or does not match its digest."""
    unpacker = zlib.decompressobj(wbits=GZIP)
    try:
        data = unpacker.decompress(body, LARGEST_PIECE + 1)
    except zlib.error as error:
        raise invalid("body", f"must be gzip ({error})") from None
    if len(data) > LARGEST_PIECE:
        text = (
            f"a piece of a log may have at most {LARGEST_PIECE} unpacked bytes; send smaller ones"
        )
        raise AgentCallError(413, "too_large", text)
    if not unpacker.eof or unpacker.unused_data:
        raise invalid("body", "the gzip data is cut short, or other data follows it")
    if hashlib.sha256(data).hexdigest() != digest:
        raise invalid(
            "X-Content-SHA256", "is not the lower-case hexadecimal sha256 of the unpacked bytes"
        )
    return data


def next_offset(assignment_id: UUID, stream: str) -> int:
    chunks = LogChunk.objects.filter(assignment_id=assignment_id, stream=stream)
    last = chunks.order_by("-offset").values_list("offset", "size").first()
    return sum(last) if last else 0


def _last(assignment_id: UUID, stream: str) -> LogChunk | None:
    """Return the stream's last row, locked: another call with the same piece waits for this one."""
    chunks = LogChunk.objects.select_for_update(no_key=True, of=("self",)).defer("data")
    return chunks.filter(assignment=assignment_id, stream=stream).order_by("-offset").first()


def _joined(last: LogChunk | None, offset: int, data: bytes) -> tuple[int, bytes]:
    """Take back a small last row, to be packed with `data`; return where both begin.

    A row of the other stream that came between stays between: pages show both in order.
    """
    if last is None or last.offset + last.size != offset or last.size + len(data) > JOINED:
        return offset, data
    newest = LogChunk.objects.filter(assignment=last.assignment_id).order_by("-pk")[0]
    content = newest.content
    if newest.pk != last.pk or len(content) != last.size:
        return offset, data
    newest.delete()  # what is stored instead has a new key: live pages look for those
    return last.offset, content + data


def _store(
    assignment_id: UUID, stream: str, offset: int, data: bytes, packed: bytes | None
) -> None:
    """Keep `data` packed, as it was shipped where it was, or plain where that is shorter."""
    packed = packed or zlib.compress(data, wbits=GZIP)
    is_packed = len(packed) < len(data)
    LogChunk.objects.create(
        assignment_id=assignment_id,
        stream=stream,
        offset=offset,
        size=len(data),
        data=packed if is_packed else data,
        unpacked_size=len(data) if is_packed else None,
    )


def mark(left_out: int) -> bytes:
    """Line that stands for the bytes left out."""
    return f"\n[loadmaster: {left_out:,} bytes of the output are left out here]\n".encode()


def _free_middle(assignment_id: UUID, stream: str, end: int, ends: tuple[int, int]) -> None:
    """Leave out what lies between head and tail, once it is worth while."""
    head, tail = ends
    if end < head + tail + FREED_AT_ONCE:
        return
    chunks = LogChunk.objects.filter(assignment_id=assignment_id, stream=stream, offset__gte=head)
    # As a plain sum it counts as an integer of 31 bits, below any larger one.
    ends_at = ExpressionWrapper(F("offset") + F("size"), output_field=BigIntegerField())
    middle = chunks.annotate(end=ends_at).filter(end__lte=end - tail)
    held = middle.annotate(length=HELD).order_by("offset")
    rows = list(held.values_list("pk", "offset", "size", "length"))
    if sum(length for *_, length in rows) < FREED_AT_ONCE:
        return
    begin, pks = rows[0][1], [pk for pk, *_ in rows]
    LogChunk.objects.filter(pk__in=pks).delete()
    # With the rows' keys: by key, too, rows are in the order of the output.
    _leave_out(assignment_id, stream, begin, begin + sum(size for _, _, size, _ in rows), pks)


def _leave_out(
    assignment_id: UUID, stream: str, begin: int, end: int, pks: Iterable[int] = ()
) -> None:
    """Mark the bytes from `begin` to `end` as left out, in rows with these keys."""
    text, keys, rows = mark(end - begin), iter(pks), []
    while begin < end:
        size, pk = min(LARGEST_GAP, end - begin), next(keys, None)
        rows.append(
            LogChunk(
                pk=pk,
                assignment_id=assignment_id,
                stream=stream,
                offset=begin,
                size=size,
                data=text,
            )
        )
        begin, text = begin + size, b""
    LogChunk.objects.bulk_create(rows)


def _wrong_offset(offset: int, expected: int) -> AgentCallError:
    text = f"this piece begins at {offset}, the next one must begin at {expected}"
    return AgentCallError(409, ErrorCode.OFFSET, text, field="offset", expected=expected)
