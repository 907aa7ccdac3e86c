"""Name of a lock's owner, by which other processes of its machine see if it still lives.

It has four parts: machine and process namespace, pid, start of the process, random digits. This
module knows no Django.
"""

import hashlib
import os
from functools import cache
from pathlib import Path
from uuid import uuid4

PROC = Path("/proc")


def new_owner() -> str:
    """Return a unique name for a lock of this process, of at most 64 characters."""
    return f"{_place()}.{os.getpid()}.{_started(os.getpid())}.{uuid4().hex[:16]}"


def owner_has_ended(holder: str) -> bool:
    """Return True if the holder was a process of this machine that has ended; False if unknown."""
    place, _, rest = holder.partition(".")
    pid, _, rest = rest.partition(".")
    started, _, _ = rest.partition(".")
    return bool(place) and place == _place() and pid.isdigit() and _started(int(pid)) != started


@cache
def _place() -> str:
    """Return a digest of this machine's boot and its process namespace; "" if unknown."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text()
        namespace = (PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """Return the start of a process in clock ticks since boot; "" if it is gone or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
