"""Logs of assignments: consecutive pieces, bounded in size and in bytes kept."""

import hashlib
import zlib
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Sum

from clusters.agent_errors import AgentCallError, invalid, stale_assignment, stale_epoch
from clusters.models import Node
from jobs.models import Assignment, LogChunk
from loadmaster.protocol import ErrorCode

STREAMS = ("stdout", "stderr")
LARGEST_PIECE = 1_048_576
KEPT_BYTES = 20_000_000
TRUNCATED = b"\n[loadmaster: the output is longer than 20 MB, the rest is not kept]\n"
GZIP = 31


def append_log(
    node: Node,
    assignment_id: UUID,
    stream: str,
    offset: int,
    epoch: int,
    fence: int,
    body: bytes,
    digest: str,
) -> int:
    """Keep gzip output from unpacked byte `offset`; return the offset of the next piece.

    `digest`: sha256 of the unpacked bytes. Beyond KEPT_BYTES only a mark and the count are kept.
    """
    if stream not in STREAMS:
        raise invalid("stream", f"must be one of {', '.join(STREAMS)}, not {stream!r}")
    data = unpack(body, digest)
    if node.epoch != epoch:
        raise stale_epoch(epoch, node.epoch)
    if not Assignment.objects.filter(pk=assignment_id, node=node, fence=fence).exists():
        raise stale_assignment(
            f"there is no assignment {assignment_id} with fence {fence} on this node"
        )
    expected = next_offset(assignment_id, stream)
    if offset != expected:
        raise _wrong_offset(offset, expected)
    if not data:
        return expected
    try:
        with transaction.atomic():
            LogChunk.objects.create(
                assignment_id=assignment_id,
                stream=stream,
                offset=offset,
                size=len(data),
                data=_kept(assignment_id, data),
            )
    except IntegrityError:
        raise _wrong_offset(offset, next_offset(assignment_id, stream)) from None
    return expected + len(data)


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
    if not unpacker.eof:
        raise invalid("body", "the gzip data is cut short")
    if hashlib.sha256(data).hexdigest() != digest:
        raise invalid(
            "X-Content-SHA256", "is not the lower-case hexadecimal sha256 of the unpacked bytes"
        )
    return data


def next_offset(assignment_id: UUID, stream: str) -> int:
    chunks = LogChunk.objects.filter(assignment_id=assignment_id, stream=stream)
    last = chunks.order_by("-offset").values_list("offset", "size").first()
    return sum(last) if last else 0


def _kept(assignment_id: UUID, data: bytes) -> bytes:
    chunks = LogChunk.objects.filter(assignment_id=assignment_id)
    room: int = KEPT_BYTES - chunks.aggregate(total=Sum("size", default=0))["total"]
    if room >= len(data):
        return data
    return data[:room] + TRUNCATED if room >= 0 else b""


def _wrong_offset(offset: int, expected: int) -> AgentCallError:
    text = f"this piece begins at {offset}, the next one must begin at {expected}"
    return AgentCallError(409, ErrorCode.OFFSET, text, field="offset", expected=expected)
