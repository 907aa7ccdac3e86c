"""Requests of a script's programs to the server, with the token of the script's launch.

It needs only the standard library, so that any Python of a node can run it.
"""

import json
import os
import ssl
import time
import urllib.error
import urllib.request
import uuid
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

ACCESS = "server.json"
"""File beside the programs with address and token of the server, which the job's user alone reads.
"""

FOLDER = "LOADMASTER_PROGRAMS"
"""Variable of a script that names the folder of its programs."""

TIMEOUT_S = 30.0
"""Seconds in which the server must answer one try."""

TRIES = 5
"""Tries of one request, with 1, 2, 4 and 8 seconds between them."""

PASSING = (429, 502, 503, 504)
"""Status codes after which another try may succeed."""


class ServerError(Exception):
    """Request that the server refused or did not answer; the message says why."""


class Server:
    """The server, as the script of one launch may ask it."""

    def __init__(self, access: dict[str, Any]) -> None:
        self._url = str(access["url"]).rstrip("/") + "/api/v1/script/"
        self._token = str(access["token"])
        self._context = _context(access)

    @classmethod
    def of_script(cls) -> "Server":
        """Read the access that the agent wrote for this script. Raises ServerError."""
        path = Path(os.environ.get(FOLDER, "")) / ACCESS
        try:
            return cls(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError):
            reason = "it asks the server from inside a batch script alone"
            raise ServerError(f"{reason}; on another machine use the command loadmaster") from None

    def jobs(self, numbers: list[str] | None = None) -> list[dict[str, Any]]:
        """Return the own jobs with these numbers (12, 12_3), or all that are not over."""
        query = {"numbers": ",".join(numbers)} if numbers else {}
        return list(self._ask("GET", f"jobs/?{urlencode(query)}")["jobs"])

    def jobs_with_usage(
        self, numbers: list[str], since_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Return own jobs with the memory that they have used.

        Those with these numbers, or without any all that are not over, and those that have ended
        after `since_s` (epoch seconds).
        """
        query = {"usage": "memory"}
        if numbers:
            query["numbers"] = ",".join(numbers)
        elif since_s is not None:
            query["since_s"] = f"{since_s:.0f}"
        return list(self._ask("GET", f"jobs/?{urlencode(query)}")["jobs"])

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the script's cluster."""
        return list(self._ask("GET", "nodes/")["nodes"])

    def act(self, reference: str, verb: str) -> None:
        """Cancel, hold, release or requeue a job, an array or an element."""
        self._ask("POST", f"jobs/{quote(reference, safe='')}/{verb}/", {})

    def submit(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Submit a script; return an answer with its `number` and `warnings`."""
        return self._ask("POST", "jobs/", submission)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, again after failures that may pass. Raises ServerError."""
        request = urllib.request.Request(self._url + path, method=method)  # noqa: S310  # agent's
        request.add_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
            request.add_header("Idempotency-Key", str(uuid.uuid4()))  # the same for every try
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(2.0 ** (attempt - 1))
            try:
                with urllib.request.urlopen(  # noqa: S310  # the agent's own address
                    request, timeout=TIMEOUT_S, context=self._context
                ) as answer:
                    return dict(json.loads(answer.read()))
            except urllib.error.HTTPError as error:
                problem = _sentence(error)
                if error.code not in PASSING:
                    break
            # Without a connection, or with half of an answer, the next try may succeed.
            except (OSError, HTTPException, ValueError) as error:
                problem = f"the server does not answer: {error}"
        raise ServerError(problem)


def _context(access: dict[str, Any]) -> ssl.SSLContext | None:
    """Return the agent's TLS settings: its authorities, or no verification if it does without."""
    if access.get("insecure"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if access.get("ca"):
        return ssl.create_default_context(cadata=str(access["ca"]))
    return None


def _sentence(error: urllib.error.HTTPError) -> str:
    """Return the problems that an answer names, field by field, as one sentence."""
    try:
        answer = json.loads(error.read())["error"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return f"the server answers {error.code}"
    problems: list[str] = []
    for texts in (answer.get("fields") or {}).values():
        problems += texts
    return "; ".join(problems) or str(answer.get("detail", error.code))
