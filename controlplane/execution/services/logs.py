"""Logs of assignments: rows of consecutive output, compressed; a long log keeps head and tail.

Output that is left out is a gap: rows that stand for its bytes, with a line for readers instead.
"""

import hashlib
import zlib
from collections.abc import Sequence
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import BigIntegerField, ExpressionWrapper, F

from clusters.agent_errors import AgentCallError, invalid, stale_assignment, stale_epoch
from clusters.models import Node
from jobs.logs import STORED_BYTES
from jobs.models import Assignment, LogChunk
from jobs.models.assignments import GZIP
from loadmaster.protocol import ErrorCode

STREAMS = ("stdout", "stderr")

MAX_PIECE_BYTES = 1_048_576
"""Most unpacked bytes of one piece."""

MIN_FREED_BYTES = 1_000_000
"""The middle of a log is freed once it has so many stored bytes: not by every call."""

MAX_ROW_BYTES = 2_000_000_000
"""Most bytes that one row of a gap stands for: a row's size is an integer of 31 bits."""

MAX_STREAM_BYTES = 2**44
"""Most bytes of a stream: the largest file of ext4, to which an agent writes it."""

MAX_JOINED_BYTES = 16_384
"""Small pieces are joined up to this size: each by itself would compress badly."""


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
    """Store a piece of output and return the offset of the next one, in unpacked bytes.

    `body`: the piece as gzip; `offset`: where it begins; `digest`: sha256 of its unpacked bytes;
    `skipped`: the agent left out the output before it. Raises AgentCallError.
    """
    # 1. Check the call.
    if stream not in STREAMS:
        raise invalid("stream", f"must be one of {', '.join(STREAMS)}, not {stream!r}")
    if offset > MAX_STREAM_BYTES:
        raise invalid(
            "offset", f"may be at most {MAX_STREAM_BYTES}; the job must write less output"
        )
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
            # 2. The piece must follow the last one, or leave out output after it.
            last_chunk = _lock_last_chunk(assignment_id, stream)
            expected = last_chunk.offset + last_chunk.size if last_chunk else 0
            if offset != expected and not (skipped and offset > expected):
                raise _wrong_offset(offset, next_offset(assignment_id, stream))
            if not data:
                return expected

            # 3. Store it: a gap before it if output was left out, then the bytes.
            _store_gap(assignment_id, stream, expected, offset)
            begin, data = _join_with_last(last_chunk, offset, data)
            packed = body if begin == offset else zlib.compress(data, wbits=GZIP)
            _store_chunk(assignment_id, stream, begin, data, packed)

            # 4. A long log keeps its head and its tail.
            _free_middle(assignment_id, stream, end, node.cluster.log_ends)
    except IntegrityError:  # another call has stored a piece at this offset
        raise _wrong_offset(offset, next_offset(assignment_id, stream)) from None
    return end


def unpack(body: bytes, digest: str) -> bytes:
    """Return the bytes of a gzip piece.

    Raises AgentCallError if it is no gzip, is too large, or does not match its sha256 `digest`.
    """
    unpacker = zlib.decompressobj(wbits=GZIP)
    try:
        data = unpacker.decompress(body, MAX_PIECE_BYTES + 1)
    except zlib.error as error:
        raise invalid("body", f"must be gzip ({error})") from None
    if len(data) > MAX_PIECE_BYTES:
        text = (
            f"a piece of a log may have at most {MAX_PIECE_BYTES} unpacked bytes; send smaller ones"
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
    """Return the offset at which the next piece of a stream must begin."""
    chunks = LogChunk.objects.filter(assignment_id=assignment_id, stream=stream)
    last = chunks.order_by("-offset").values_list("offset", "size").first()
    return sum(last) if last else 0


def _lock_last_chunk(assignment_id: UUID, stream: str) -> LogChunk | None:
    """Return the stream's last row, locked: another call with the same piece waits for this one."""
    chunks = LogChunk.objects.select_for_update(no_key=True, of=("self",)).defer("data")
    return chunks.filter(assignment=assignment_id, stream=stream).order_by("-offset").first()


def _join_with_last(last_chunk: LogChunk | None, offset: int, data: bytes) -> tuple[int, bytes]:
    """Return (offset, data) to store: with the bytes of a small last row, which is deleted.

    The last row stays if a row of the other stream came after it: pages show both streams in the
    order of their rows.
    """
    if last_chunk is None or last_chunk.offset + last_chunk.size != offset:
        return offset, data
    if last_chunk.size + len(data) > MAX_JOINED_BYTES:
        return offset, data
    newest = LogChunk.objects.filter(assignment=last_chunk.assignment_id).order_by("-pk")[0]
    content = newest.content
    is_gap = len(content) != last_chunk.size
    if newest.pk != last_chunk.pk or is_gap:
        return offset, data
    newest.delete()  # what is stored instead has a new key: live pages look for those
    return last_chunk.offset, content + data


def _store_chunk(assignment_id: UUID, stream: str, offset: int, data: bytes, packed: bytes) -> None:
    """Store bytes of output: `packed`, the same as gzip, or plain where that is shorter."""
    is_packed = len(packed) < len(data)
    LogChunk.objects.create(
        assignment_id=assignment_id,
        stream=stream,
        offset=offset,
        size=len(data),
        data=packed if is_packed else data,
        unpacked_size=len(data) if is_packed else None,
    )


def gap_line(left_out: int) -> bytes:
    """Return the line that readers see in place of so many bytes."""
    return f"\n[loadmaster: {left_out:,} bytes of the output are left out here]\n".encode()


def _free_middle(
    assignment_id: UUID, stream: str, end: int, head_and_tail: tuple[int, int]
) -> None:
    """Replace the rows between head and tail by a gap, if that frees enough.

    `end`: bytes of the stream so far; `head_and_tail`: bytes to keep at its begin and at its end.
    """
    head, tail = head_and_tail
    if end < head + tail + MIN_FREED_BYTES:
        return

    # 1. The rows that lie wholly between head and tail, and the bytes stored in them.
    chunks = LogChunk.objects.filter(assignment_id=assignment_id, stream=stream, offset__gte=head)
    # As a plain sum it counts as an integer of 31 bits, below any larger one.
    ends_at = ExpressionWrapper(F("offset") + F("size"), output_field=BigIntegerField())
    middle = chunks.annotate(end=ends_at).filter(end__lte=end - tail)
    middle = middle.annotate(stored_bytes=STORED_BYTES).order_by("offset")
    rows = list(middle.values_list("pk", "offset", "size", "stored_bytes"))
    if sum(stored_bytes for *_, stored_bytes in rows) < MIN_FREED_BYTES:
        return

    # 2. Replace them. With the rows' keys: by key, too, rows are in the order of the output.
    keys = [key for key, *_ in rows]
    LogChunk.objects.filter(pk__in=keys).delete()
    _, gap_begin, _, _ = rows[0]
    gap_end = gap_begin + sum(size for _, _, size, _ in rows)
    _store_gap(assignment_id, stream, gap_begin, gap_end, keys)


def _store_gap(
    assignment_id: UUID, stream: str, begin: int, end: int, keys: Sequence[int] = ()
) -> None:
    """Store that the bytes from `begin` to `end` are left out; nothing if there are none.

    The rows get these `keys`, as far as they reach, then new ones. The first row has the line for
    readers, the others no data.
    """
    rows: list[LogChunk] = []
    data = gap_line(end - begin)
    while begin < end:
        size = min(MAX_ROW_BYTES, end - begin)
        key = keys[len(rows)] if len(rows) < len(keys) else None
        rows.append(
            LogChunk(
                pk=key,
                assignment_id=assignment_id,
                stream=stream,
                offset=begin,
                size=size,
                data=data,
            )
        )
        begin += size
        data = b""
    LogChunk.objects.bulk_create(rows)


def _wrong_offset(offset: int, expected: int) -> AgentCallError:
    """Return the error for a piece that does not follow the last one; it names the next offset."""
    text = f"this piece begins at {offset}, the next one must begin at {expected}"
    return AgentCallError(409, ErrorCode.OFFSET, text, field="offset", expected=expected)
