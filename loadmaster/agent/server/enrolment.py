"""The node's identity: enrolled once, then a token that stays in the state folder."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from loadmaster.agent.backoff import Backoff
from loadmaster.agent.clock import Clock
from loadmaster.agent.config import ConfigError
from loadmaster.agent.files import write_json
from loadmaster.agent.server.client import AgentClient, TryAgain
from loadmaster.protocol import Registration

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The node's id and token at a server."""

    server: str
    node: str
    token: str


def recall(path: Path, server: str) -> Enrolled | None:
    """An earlier enrolment from the file, or None; ConfigError if at another server."""
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes())
        found = Enrolled(str(data["server"]), str(data["node"]), str(data["token"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: remove it and enrol the node anew with --token"
        ) from error
    if found.server != server:
        raise ConfigError(
            f"--state-dir: it belongs to a node of {found.server}; give this server's node its own"
        )
    return found


def enrol(
    client: AgentClient,
    registration: Registration,
    token: str,
    server: str,
    path: Path,
    leave: threading.Event,
    clock: Clock,
) -> Enrolled | None:
    """Register the machine, patiently, and keep the node's token in the file; None if told to leave
    before it worked.

    Raises Unauthorized if the enrolment token is unknown, used up or expired.
    """
    backoff = Backoff()
    while not leave.is_set():
        try:
            registered = client.register(token, registration)
        except TryAgain as error:
            wait_s = backoff.failed("register", clock.boot_s())
            logger.warning("cannot register yet, next try in %.1f s: %s", wait_s, error)
            leave.wait(wait_s)
            continue
        write_json(
            path,
            {"server": server, "node": registered.node_id, "token": registered.node_token},
            durable=True,
        )
        return Enrolled(server, registered.node_id, registered.node_token)
    return None
