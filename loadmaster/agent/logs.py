"""The agent's log: one line an event to stderr, as text or as JSON, without secrets.

From the name of a launch in a line (`lm-{assignment}-{fence}`) come the fields `assignment`,
`fence` and `job` of a JSON line. Nothing but the standard library.
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
        """The text with `***` for every secret."""
        for value in self._texts:
            text = text.replace(value, MASK)
        return text

    def piece(self, content: bytes) -> bytes:
        """The bytes with all secrets covered by asterisks, overlapping ones too."""
        masked = bytearray(content)
        for value in self._values:
            at = content.find(value)
            while at >= 0:
                end, following = at + len(value), content.find(value, at + 1)
                if 0 < (step := following - at) < len(value):
                    # it overlaps itself: each time by its last `step` bytes, for as long as it goes
                    while content.startswith(value[-step:], end):
                        end += step
                    following = content.find(value, end - len(value) + 1)
                masked[at:end] = b"*" * (end - at)
                at = following
        return bytes(masked)

    def held_back(self, content: bytes) -> int:
        """Number of final bytes that may begin a secret not yet fully written."""
        for length in range(min(self.reach, len(content)), 0, -1):
            tail = content[-length:]
            if any(len(value) > length and value.startswith(tail) for value in self._values):
                return length
        return 0


class LogContext:
    """Facts of this process's node and launches, to be logged or masked."""

    def __init__(self) -> None:
        self.node = ""
        self._own: set[str] = set()
        self._launches: dict[str, LaunchSpec] = {}
        self._masker = Masker(())

    def hide(self, *values: str) -> None:
        """Show these of the agent's own secrets as `***` from now on."""
        self._own.update(values)
        self._renew()

    def take(self, spec: LaunchSpec) -> None:
        """Lines about this launch name its job, and its secrets are shown as `***`."""
        self._launches[spec.assignment] = spec
        self._renew()

    def forget(self, assignment: str) -> None:
        """The launch is over and told."""
        if self._launches.pop(assignment, None):
            self._renew()

    def mask(self, text: str) -> str:
        """The text without any secret known here, and without bearer tokens of whomever."""
        return _BEARER.sub(rf"\1{MASK}", self._masker.text(text))

    def ids(self, message: str) -> dict[str, str | int]:
        """The ids of what a message is about."""
        ids: dict[str, str | int] = {"node": self.node} if self.node else {}
        found = _RUN.search(message)
        run = RunId.parse(found[0]) if found else None
        if run:
            ids |= {"assignment": run.assignment, "fence": run.fence}
            spec = self._launches.get(run.assignment)
            ids |= {"job": spec.job} if spec else {}
        return ids

    def _renew(self) -> None:
        launched = (value for spec in self._launches.values() for value in secrets_of(spec))
        self._masker = Masker({*self._own, *launched})


def secrets_of(spec: LaunchSpec) -> tuple[str, ...]:
    """Values of a specification that are never shown."""
    tokens = (spec.gang_token, spec.script_token)
    return (*spec.secrets.values(), *(token for token in tokens if token))


log_context = LogContext()
"""Of the one agent of this process."""


class Lines(logging.Formatter):
    """Turns a record into a line: `form` is "console" or "json"."""

    def __init__(self, form: str, about: LogContext = log_context) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._is_json, self._about = form == "json", about

    def format(self, record: logging.LogRecord) -> str:
        """The line without a final newline; a traceback follows on lines of its own."""
        return self._json(record) if self._is_json else self._about.mask(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """One line, whatever a server or a job has put into it."""
        return super().formatMessage(record).translate(_ESCAPES)

    def _json(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        fields = {
            "timestamp": (
                datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._about.mask(message),
            **self._about.ids(message),
        }
        if record.exc_info:
            fields["exception"] = self._about.mask(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def set_up(form: str, *, verbose: bool, stream: IO[str] | None = None) -> None:
    """Log to `stream` (stderr) from INFO on, from DEBUG on if `verbose`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines(form))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    for library in QUIET:
        logging.getLogger(library).setLevel(logging.WARNING)
