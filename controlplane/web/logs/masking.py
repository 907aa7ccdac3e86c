"""Masking of secrets in logs: fields named like one, and tokens in any text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from structlog.typing import EventDict, WrappedLogger

MASK = "***"

_NAMES = (
    r"token|secret|passw(?:or)?d|passphrase|authori[sz]ation|cookie|api[_-]?key|private[_-]?key"
    r"|credential|ciphertext|dsn"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_HARMLESS = frozenset({"token_key", "secret_name"})
"""Names that only look like one: the first characters of a token's hash, the name of a secret."""

_INSIDE = (
    (
        re.compile(r"\b(bearer|basic|token)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(@)"), rf"\1{MASK}\2"),
    (
        re.compile(
            rf"((?:{_NAMES})[\w-]*[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*)[^\s\"'&,;)}}]+", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
)

DEEPEST = 6


def mask_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The event with its secrets masked: structlog's last processor before a line is made."""
    return {name: masked(value, name) for name, value in event.items()}


def masked(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value that may be shown: of a field `name`, at `depth` inside of others."""
    if (
        name
        and name not in _HARMLESS
        and _SECRET_NAME.search(name)
        and not isinstance(value, bool | int | float | None)
    ):
        return MASK
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, Mapping):
        return (
            {str(k): masked(v, str(k), depth + 1) for k, v in value.items()}
            if depth < DEEPEST
            else "..."
        )
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(v, "", depth + 1) for v in value] if depth < DEEPEST else "..."
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked_text(str(value))


def masked_text(text: str) -> str:
    """A text without bearer tokens, passwords in addresses, and values of secret-looking names."""
    for pattern, instead in _INSIDE:
        text = pattern.sub(instead, text)
    return text
