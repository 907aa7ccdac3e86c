"""Scripts as text: bytes that are no UTF-8, such as Latin-1, travel as private characters.

Byte 0x80 + i is U+EF80 + i. So a script runs byte for byte as it was submitted, and JSON and
databases hold plain text.
"""

import re

_FIRST_CHARACTER = 0xEF00
_TO_CHARACTERS = {0xDC00 + byte: _FIRST_CHARACTER + byte for byte in range(0x80, 0x100)}
_TO_ESCAPES = {character: escape for escape, character in _TO_CHARACTERS.items()}
_OWN = re.compile("[\uef80-\uefff]")


def text_of(data: bytes) -> str:
    """Return the text of a script, from which `bytes_of` makes the same bytes."""
    text = data.decode("utf-8", "surrogateescape")
    # Characters of this range that the script has itself are written byte by byte.
    escaped = _OWN.sub(lambda match: _characters(match[0].encode()), text)
    return escaped.translate(_TO_CHARACTERS)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a script's text."""
    return text.translate(_TO_ESCAPES).encode("utf-8", "surrogateescape")


def _characters(data: bytes) -> str:
    return "".join(chr(_FIRST_CHARACTER + byte) for byte in data)
