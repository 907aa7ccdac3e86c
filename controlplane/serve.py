"""`python -m controlplane.serve`: the web server, uvicorn with bounds on what a connection may cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import uvicorn

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than an agent's heartbeats are apart, which then need no new one each, and longer
than proxies keep theirs, which then never write to one that is being closed.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM; what was begun is answered first, within `--grace` seconds."""
    given = _parser().parse_args(argv)
    uvicorn.run(
        "controlplane.asgi:application",
        http="controlplane.http_guard:GuardedProtocol",
        host=given.host,
        port=given.port,
        workers=given.workers,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=given.grace,
        timeout_worker_healthcheck=30,
        server_header=False,
        access_log=False,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controlplane.serve")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--grace", type=int, default=10, help="seconds that open requests have at the end")
    return parser


if __name__ == "__main__":
    main()
