"""A kept-alive HTTP/1.1 connection, and the parsing of its answers."""

import asyncio
from typing import cast


class Connection(asyncio.Protocol):
    """A request out, an answer with its Content-Length back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport, self.open = (
            cast(asyncio.Transport, transport),
            True,
        )  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                exc or ConnectionResetError("the server closed the connection")
            )

    def data_received(self, data: bytes) -> None:
        """Collect until the answer is whole."""
        self._buffer += data
        found = answer_in(self._buffer)
        if found is not None and self._answer is not None and not self._answer.done():
            self._buffer = b""
            self._answer.set_result(found)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body. Raises OSError if the connection breaks."""
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def answer_in(data: bytes) -> tuple[int, bytes] | None:
    """Status and body of the answer that has come in so far; None until it is whole."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found or len(body) < _length(head):
        return None
    return int(head[9:12]), body


def _length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
