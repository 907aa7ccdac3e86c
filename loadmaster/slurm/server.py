"""Questions of a script's programs to the server, by the right of the launch that they are in.

Nothing but the standard library: any Python of a node can run it.
"""

import json
import os
import ssl
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

ACCESS = "server.json"
"""File beside the programs with address and token of the server, which the job's user alone reads.
"""

FOLDER = "LOADMASTER_PROGRAMS"
"""Variable of a script that names the folder of its programs."""

TIMEOUT_S = 30.0
TRIES = 5
PASSING = (429, 502, 503, 504)
"""Answers after which another try may succeed."""


class ServerError(Exception):
    """Question without an answer that helps; the message says why."""


class Server:
    """The server, as the script of one launch may ask it."""

    def __init__(self, access: dict[str, Any]) -> None:
        self._url = str(access["url"]).rstrip("/") + "/api/v1/script/jobs/"
        self._token = str(access["token"])
        self._context = _context(access)

    @classmethod
    def of_script(cls) -> "Server":
        """Read the access that the agent wrote for this script. Raises ServerError."""
        path = Path(os.environ.get(FOLDER, "")) / ACCESS
        try:
            return cls(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError):
            said = "it asks the server from inside a batch script alone"
            raise ServerError(f"{said}; on another machine use the command loadmaster") from None

    def jobs(self, numbers: list[str] | None = None) -> list[dict[str, Any]]:
        """Own jobs with these numbers (12, 12_3), or all that are not over."""
        query = f"?numbers={quote(','.join(numbers))}" if numbers else ""
        return list(self._ask("GET", query)["jobs"])

    def act(self, reference: str, verb: str) -> None:
        """Cancel, hold, release or requeue a job, an array or an element."""
        self._ask("POST", f"{quote(reference, safe='')}/{verb}/", {})

    def submit(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Submit a script; the answer has its number and warnings."""
        return self._ask("POST", "", submission)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
            except (OSError, ValueError) as error:
                problem = f"the server does not answer: {error}"
        raise ServerError(problem)


def _context(access: dict[str, Any]) -> ssl.SSLContext | None:
    """TLS as the agent's own: its authorities, or no verification where its operator wants none."""
    if access.get("insecure"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if access.get("ca"):
        return ssl.create_default_context(cadata=str(access["ca"]))
    return None


def _sentence(error: urllib.error.HTTPError) -> str:
    """What an answer says is wrong, field by field."""
    try:
        told = json.loads(error.read())["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"the server answers {error.code}"
    fields = told.get("fields") or {}
    lines = [text for texts in fields.values() for text in texts]
    return "; ".join(lines) or str(told.get("detail", error.code))
