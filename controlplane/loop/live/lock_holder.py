"""The name of the process that holds a round, by which others can tell whether it still lives.

A killed worker would otherwise keep its cluster waiting until its lock has expired. The name is
(machine and process namespace, pid, start of the process, something random); of holders elsewhere
nothing is known, so their time has to run out.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from uuid import uuid4

PROC = Path("/proc")


def new_holder() -> str:
    """A name for a round that this process holds; no two are the same. At most 64 characters."""
    return f"{_place()}.{os.getpid()}.{_started(os.getpid())}.{uuid4().hex[:16]}"


def is_gone(holder: str) -> bool:
    """True if the holder was a process of this machine that has ended; False if unknown."""
    place, pid, started = (*holder.split("."), "", "", "")[:3]
    return bool(place) and place == _place() and pid.isdigit() and _started(int(pid)) != started


@cache
def _place() -> str:
    """This boot and PID namespace of the machine; empty if the system does not tell."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text()
        namespace = (PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """Start of the process in clock ticks since boot; empty if it is gone or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
