"""Connections between ranks: lines of JSON over TCP after mutual proof of the launch's token.

The token never travels; what follows is neither secret nor signed. The kernel's keepalive notices
a lost machine.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from loadmaster.files import parse_object

LONGEST = 64 * 1024
LONGEST_GREETING = 1024
GREETING_S = 10.0
"""Limit of the whole handshake, so that a slow client keeps nobody out."""

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A connection ends after 30 s without an answer of the other machine's kernel."""

Message = dict[str, Any]


class AuthenticationError(Exception):
    """The peer does not belong to this launch, or says that this rank does not."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Proof of membership in a launch."""

    token: str
    size: int
    fence: int

    def proof(self, role: str, rank: int, nonces: str) -> str:
        """HMAC of role, rank, launch and nonces under the token."""
        words = f"{role} {rank} {self.size} {self.fence} {nonces}"
        return hmac.new(self.token.encode(), words.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, words: Message, role: str, rank: int, nonces: str) -> bool:
        """Return True if the message holds that proof."""
        return hmac.compare_digest(
            self.proof(role, rank, nonces).encode(), str(words.get("proof")).encode()
        )


class Connection:
    """One end of a connection. Any thread may send, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._stream = sock.makefile("rb")
        self._lock = threading.Lock()
        _keep_alive(sock)

    def send(self, **message: Any) -> bool:
        """Send a message; False if the connection is broken, which the receiver notices."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        return False

    def receive(self) -> Message | None:
        """The next message; None at the connection's end."""
        try:
            return _message(self._stream.readline(LONGEST))
        except (OSError, ValueError):  # ValueError: closed by another thread of this process
            return None

    def _receive_greeting(self, until_s: float) -> Message:
        """The next message of the handshake; empty if none comes in time."""
        text = b""
        try:
            while not text.endswith(b"\n") and len(text) < LONGEST_GREETING:
                self._socket.settimeout(max(until_s - time.monotonic(), 0.001))
                piece = self._stream.read1(1)
                if not piece:
                    return {}
                text += piece
        except (OSError, ValueError):
            return {}
        return _message(text) or {}

    def close(self) -> None:
        """Close the connection; receivers on both ends notice."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()

    def drop(self) -> None:
        """Close it in this forked process alone, whatever its threads were doing."""
        descriptor = self._socket.detach()
        if descriptor >= 0:
            os.close(descriptor)

    def admit(self, credentials: Credentials) -> int:
        """As the lead: authenticate the peer and return its rank, or raise AuthenticationError."""
        until_s = time.monotonic() + GREETING_S
        self._socket.settimeout(GREETING_S)
        nonce = secrets.token_hex(16)
        self.send(nonce=nonce)
        words = self._receive_greeting(until_s)
        rank, theirs = words.get("rank"), words.get("nonce")
        nonces = f"{nonce} {theirs}"
        if not (
            isinstance(rank, int)
            and 0 < rank < credentials.size
            and credentials.is_proof(words, "member", rank, nonces)
        ):
            self.send(refused="the token, the fence or the number of ranks is another launch's")
            raise AuthenticationError("somebody else")
        self.send(proof=credentials.proof("lead", rank, nonces))
        if not self._receive_greeting(until_s).get("met"):
            raise AuthenticationError(f"rank {rank} went away again")
        self._socket.settimeout(None)
        return rank

    def authenticate(self, credentials: Credentials, rank: int) -> None:
        """As a member: prove this rank to the lead; AuthenticationError if it is not the lead."""
        until_s = time.monotonic() + GREETING_S
        nonce = secrets.token_hex(16)
        theirs = self._receive_greeting(until_s).get("nonce")
        nonces = f"{theirs} {nonce}"
        self.send(rank=rank, nonce=nonce, proof=credentials.proof("member", rank, nonces))
        words = self._receive_greeting(until_s)
        if not credentials.is_proof(words, "lead", rank, nonces):
            raise AuthenticationError(
                str(words.get("refused") or "the process that answers is not this launch's rank 0")
            )
        self._socket.settimeout(None)
        self.send(met=True)


def _message(line: bytes) -> Message | None:
    """The message of a whole line; None for half a line or no message."""
    return parse_object(line) if line.endswith(b"\n") else None


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port; ValueError if it is no address."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"an address is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Write an address that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_free(port: int) -> bool:
    """Return True if nothing of this machine listens on that port, on whatever address."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
        ).close()
    except OSError:
        return False
    return True
