"""Limits of one connection that uvicorn lacks: of headers, and of time for head and body."""

import asyncio
from enum import Enum
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADERS = 100
"""Most headers of a request."""

LARGEST_HEAD = 64 * 1024
"""Most bytes of the address and all headers together."""


class Phase(Enum):
    """Part of a request that is awaited."""

    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"


PATIENCE_S = {Phase.HEAD: 30.0, Phase.BODY: 60.0}
"""Longest time of a whole head and a whole body; uvicorn limits the time between requests."""

LINGER_S = 5.0
"""Time in which a client that still sends may read the answer."""

REFUSALS = {  # status: (status line, body)
    408: (b"408 Request Timeout", b"the request took too long to arrive\n"),
    431: (
        b"431 Request Header Fields Too Large",
        b"at most 100 headers and 64 KiB of address and headers are taken\n",
    ),
}


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol that answers 431 to large heads, 408 to slow ones, and closes."""

    _phase = Phase.HEAD
    _watched: Phase | None = None
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse it if the head grows too large before it is whole."""
        if self._refused:
            return
        super().data_received(data)
        if self._phase is Phase.HEAD:  # the parser reports whole headers only: count the bytes
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self._refuse(431)
        self._watch()

    def on_message_begin(self) -> None:
        self._phase = Phase.HEAD
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MOST_HEADERS:
            self._stop(431)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > LARGEST_HEAD:
            self._stop(431)
        self._phase = Phase.BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._phase = Phase.NOTHING
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to invalid HTTP, and to a parser stopped after a refusal."""
        self._phase = Phase.NOTHING
        if not self._refused:
            super().send_400_response(msg)

    def _stop(self, status: int) -> None:
        """Refuse, and stop the parser, which takes any exception for a bad request."""
        self._refuse(status)
        raise ValueError(REFUSALS[status][0].decode())

    def _refuse(self, status: int) -> None:
        """Answer with a refusal, and close."""
        self._refused = True
        self._phase = Phase.NOTHING
        status_line, body = REFUSALS[status]
        head = (
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length:"
            b" %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status_line, len(body)) + body)
        self._close()

    def _close(self) -> None:
        """Close the connection once the client has read the answer, or after LINGER_S.

        At an immediate close, data that the client still sends would reset the connection before
        the client has read the answer.
        """
        self._refused = True
        self._set_timer(None)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _watch(self) -> None:
        """Start the timer of the awaited part if that has changed."""
        if self._phase is self._watched or self._refused:
            return
        self._watched = self._phase
        patience_s = PATIENCE_S.get(self._phase)
        if patience_s is None:
            self._set_timer(None)
        else:
            self._set_timer(self.loop.call_later(patience_s, self._late))

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Replace the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _late(self) -> None:
        """Refuse or close a connection whose awaited part has not come in time."""
        self._watched = None
        if self.flow.read_paused:  # the server itself does not read: the delay is not the client's
            self._watch()
        elif self._phase is Phase.HEAD:
            self._refuse(408)
        elif self.cycle.response_complete:
            self._close()
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self.cycle.disconnected = True  # wake the application, which waits for the body
            self.cycle.message_event.set()
            self._refuse(408)
