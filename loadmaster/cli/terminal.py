"""Text of others made harmless for a terminal: what it would obey is shown instead.

Job names, reasons and logs come from whoever wrote them. Escape sequences could hide lines, retitle
windows or paste commands; direction marks reorder what one reads. Each control character becomes
its picture (ESC is shown as ␛), one for one, so that text that arrives in pieces needs no memory.
"""

from __future__ import annotations

from rich.markup import escape

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_HARMLESS = {
    **_PICTURES,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys((ord(mark) for mark in _DIRECTIONS), 0xFFFD),
    **dict.fromkeys((0x2028, 0x2029), ord("\n")),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}


def harmless(text: str) -> str:
    """The text with nothing in it that a terminal obeys, but for ends of lines and tabs."""
    return text.replace("\r\n", "\n").translate(_HARMLESS)


def shown(text: str) -> str:
    """The same on one line, and nothing in it that rich reads as markup."""
    return escape(harmless(text).replace("\n", " ⏎ ").replace("\t", " "))
