"""Addresses as ranks are told them: "host:port", an IPv6 host in brackets."""

from __future__ import annotations

import socket


def parse_address(text: str) -> tuple[str, int]:
    """Host and port; ValueError if it is no address."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"an address is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
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
