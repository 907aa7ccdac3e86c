"""A free TCP port."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nobody listens at just now, as the system gives them out."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
