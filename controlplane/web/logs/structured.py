"""Structured logs: one line an event, JSON or text, with ids (`bound`) and without secrets.

It reads no Django settings, so that settings may call `config`.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"

_NAMES = (
    r"token|secret|passw(?:or)?d|passphrase|authori[sz]ation|cookie|api[_-]?key|private[_-]?key"
    r"|credential|ciphertext|dsn"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_HARMLESS = frozenset({"token_key", "secret_name"})
"""Names that only look secret: first characters of a token's hash, name of a secret."""

_SECRETS_IN_TEXT = (
    (
        re.compile(r"\b(bearer|basic|token)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(@)"), rf"\1{MASK}\2"),
    # A share link needs no login.
    (re.compile(r"(/shared/[a-z]+/)[^/\s\"']+"), rf"\1{MASK}"),
    # A value after a secret-looking name. Each word is matched once, from its start: matches from
    # each name within a word would take long for a path that repeats a name many times.
    (
        re.compile(
            rf"(?<![\w-])((?=[\w-]*?(?:{_NAMES}))[\w-]++[\"']?\s*[=:]\s*[\"']?)"
            r"(?!\*\*\*)[^\s\"'&,;)}]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
"""(pattern, replacement) of secrets within a text."""

DEEPEST = 6
"""Most levels of lists and mappings that are logged."""


def mask_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Mask the secrets of an event: structlog's last processor before a line is made."""
    return {name: masked(value, name) for name, value in event.items()}


def masked(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return the value of a field without secrets; `depth`: number of values around it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if name and name not in _HARMLESS and _SECRET_NAME.search(name):
        return MASK
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): masked(item, str(key), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(item, "", depth + 1) for item in value]
    return masked_text(str(value))


def masked_text(text: str) -> str:
    """Return a text with masked tokens, passwords, share links, values of secret-looking names."""
    for pattern, replacement in _SECRETS_IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


FORMATS = ("console", "json")

QUIET = {
    # Lines of each request to other servers.
    "httpx": "WARNING",
    "httpcore": "WARNING",
    # The access log says more about each request, see `middleware`. Three lines for each periodic
    # task (sent, received, done) would be 60 MB a day of an idle worker.
    "uvicorn.access": "WARNING",
    "celery.beat": "WARNING",
    "celery.worker.strategy": "WARNING",
    "celery.app.trace": "WARNING",
    "django.server": "WARNING",
}


def config(form: str, level: str) -> dict[str, Any]:
    """Return Django's LOGGING.

    `form`: "console" or "json"; else ValueError is raised. `level`: the lowest one that is shown.
    """
    if form not in FORMATS:
        raise ValueError(f"LOADMASTER_LOG_FORMAT must be {' or '.join(FORMATS)}, not {form!r}")
    loggers: dict[str, Any] = {}
    for name, lowest in QUIET.items():
        loggers[name] = {"level": lowest, "handlers": [], "propagate": True}
    # uvicorn and Django bring handlers of their own. Without these, the root's handler writes their
    # lines, once.
    for name in ("uvicorn", "uvicorn.error", "django", "celery"):
        loggers[name] = {"level": "INFO", "handlers": [], "propagate": True}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "controlplane.web.logs.structured.formatter", "form": form}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": loggers,
    }


def formatter(form: str) -> logging.Formatter:
    """Return the formatter of lines of JSON, or of text for "console", without secrets."""
    to_json = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            mask_event,
            to_json if form == "json" else _text,
        ],
    )


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Bind these ids, as text, to every line logged within; None binds nothing."""
    texts = {name: str(value) for name, value in ids.items() if value is not None}
    with bound_contextvars(**texts):
        yield


def _text(_: WrappedLogger, __: str, event: EventDict) -> str:
    """Return `time LEVEL logger what happened key=value ...`, then the traceback if any."""
    time = str(event.pop("timestamp", ""))
    level = str(event.pop("level", "")).upper()
    logger = str(event.pop("logger", ""))
    message = str(event.pop("event", ""))
    traceback = event.pop("exception", None)
    fields = [f"{name}={_quoted(str(value))}" for name, value in event.items()]
    # Texts of clients may not break the line; the traceback is the server's own.
    line = " ".join([time, level, logger, message, *fields]).translate(_ESCAPED)
    return f"{line}\n{traceback}" if traceback else line


_ESCAPED = str.maketrans({"\r": "\\r", "\n": "\\n", "\x1b": "\\x1b"})
"""Characters that could break a line, or change a terminal."""


def _quoted(text: str) -> str:
    """Return a text, in quotes if it is empty or has blanks."""
    has_blank = any(character.isspace() for character in text)
    return repr(text) if has_blank or not text else text


def _extras(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the fields of `extra={"loadmaster": {...}}`."""
    record = event.get("_record")
    return {**event, **getattr(record, "loadmaster", {})}


_SHARED: list[Processor] = [
    merge_contextvars,
    _extras,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]
"""Processors of every event before a line is made."""
