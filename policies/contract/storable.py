"""Texts that a database can store, checked as any third party may write a plan."""

from __future__ import annotations

import re

NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in a JSON text."""


def cleaned(text: str, longest: int | None = None) -> str:
    """The text with a question mark for what cannot be kept, at most so long."""
    whole = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
    return whole if longest is None or len(whole) <= longest else f"{whole[:longest]}..."
