"""The agent's log: one line an event to stderr, as text or as JSON, without secrets.

The fields `assignment`, `fence` and `job` of a JSON line come from the name of a launch in its
text, `lm-{assignment}-{fence}`.
"""

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import IO

from loadmaster.agent.runtimes.base import RunId
from loadmaster.protocol import LaunchSpec

MASK = "***"
FORMATS = ("console", "json")
QUIET = ("httpx", "httpcore", "urllib3", "docker")
"""Libraries logged from WARNING on; some log every request with its address."""

_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_RUN = re.compile(r"\blm-[\w.-]+-\d+\b")
_ESCAPES = str.maketrans({"\r": "\\r", "\n": "\\n", "\x1b": "\\x1b"})


class Masker:
    """Replaces secrets by asterisks of the same length, so that log offsets stay valid."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._texts = sorted({value for value in secrets if value}, key=len, reverse=True)
        self._values = [value.encode() for value in self._texts]

    @property
    def reach(self) -> int:
        """Number of bytes before a piece that may belong to a secret that ends in it."""
        return max((len(value) - 1 for value in self._values), default=0)

    def text(self, text: str) -> str:
        """Return the text with `***` in place of every secret."""
        masked = text
        for value in self._texts:
            masked = masked.replace(value, MASK)
        return masked

    def piece(self, content: bytes) -> bytes:
        """Return the bytes with all secrets covered by asterisks, overlapping ones too."""
        masked = bytearray(content)
        for value in self._values:
            start = content.find(value)
            while start >= 0:
                end = start + len(value)
                next_start = content.find(value, start + 1)

                # A secret such as "abab" may overlap itself, in "abababab". Then each repetition
                # adds its last `step` bytes; cover them all at once, as there may be very many.
                step = next_start - start
                if 0 < step < len(value):
                    while content.startswith(value[-step:], end):
                        end += step
                    next_start = content.find(value, end - len(value) + 1)
                masked[start:end] = b"*" * (end - start)
                start = next_start
        return bytes(masked)

    def held_back(self, content: bytes) -> int:
        """Return the number of final bytes that may begin a secret of which more is to come."""
        for length in range(min(self.reach, len(content)), 0, -1):
            tail = content[-length:]
            if any(len(value) > length and value.startswith(tail) for value in self._values):
                return length
        return 0


class LogContext:
    """Names and secrets that the log needs: of this process's node and its launches."""

    def __init__(self) -> None:
        self.node = ""
        self._own_secrets: set[str] = set()
        self._launches: dict[str, LaunchSpec] = {}
        self._masker = Masker(())

    def hide(self, *secrets: str) -> None:
        """Show these secrets of the agent as `***` from now on."""
        self._own_secrets.update(secrets)
        self._update_masker()

    def take(self, spec: LaunchSpec) -> None:
        """Name the job in lines about this launch, and show its secrets as `***` from now on."""
        self._launches[spec.assignment] = spec
        self._update_masker()

    def forget(self, assignment: str) -> None:
        """Forget a launch whose end has been reported."""
        if self._launches.pop(assignment, None):
            self._update_masker()

    def mask(self, text: str) -> str:
        """Return the text without the known secrets, and without any bearer token."""
        return _BEARER.sub(rf"\1{MASK}", self._masker.text(text))

    def ids(self, message: str) -> dict[str, str | int]:
        """Return the fields of a JSON line for node, assignment, fence and job of a message."""
        ids: dict[str, str | int] = {}
        if self.node:
            ids["node"] = self.node
        name = _RUN.search(message)
        run = RunId.parse(name[0]) if name else None
        if run:
            ids["assignment"] = run.assignment
            ids["fence"] = run.fence
            spec = self._launches.get(run.assignment)
            if spec:
                ids["job"] = spec.job
        return ids

    def _update_masker(self) -> None:
        secrets = set(self._own_secrets)
        for spec in self._launches.values():
            secrets.update(secrets_of(spec))
        self._masker = Masker(secrets)


def secrets_of(spec: LaunchSpec) -> tuple[str, ...]:
    """Return the values of a specification that are never shown."""
    secrets = list(spec.secrets.values())
    for token in (spec.gang_token, spec.script_token):
        if token:
            secrets.append(token)
    return tuple(secrets)


log_context = LogContext()
"""Log context of this process's agent."""


class Lines(logging.Formatter):
    """Turns a record into a line: `form` is "console" or "json"."""

    def __init__(self, form: str, context: LogContext = log_context) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._is_json = form == "json"
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a final newline; as text, a traceback follows on own lines."""
        if self._is_json:
            return self._json(record)
        return self._context.mask(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return a single line, even if a server or a job has put line ends into it."""
        return super().formatMessage(record).translate(_ESCAPES)

    def _json(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        time = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "timestamp": time.isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._context.mask(message),
            **self._context.ids(message),
        }
        if record.exc_info:
            fields["exception"] = self._context.mask(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def set_up(form: str, *, verbose: bool, stream: IO[str] | None = None) -> None:
    """Log to `stream` (stderr) from INFO on, from DEBUG on if `verbose`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines(form))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    for library in QUIET:
        logging.getLogger(library).setLevel(logging.WARNING)
