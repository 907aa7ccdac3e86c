"""Keeps secrets out of what leaves the node."""

from __future__ import annotations

from collections.abc import Iterable

MASK = "***"


class Masker:
    """Replaces secrets by asterisks of the same length, so that log offsets stay valid."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._texts = sorted({value for value in secrets if value}, key=len, reverse=True)
        self._values = [value.encode() for value in self._texts]

    @property
    def reach(self) -> int:
        """How many bytes before a piece may belong to a secret that ends in it."""
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
                masked[at : at + len(value)] = b"*" * len(value)
                at = content.find(value, at + 1)
        return bytes(masked)

    def held_back(self, content: bytes) -> int:
        """Number of final bytes that may begin a secret not yet fully written."""
        for length in range(min(self.reach, len(content)), 0, -1):
            tail = content[-length:]
            if any(len(value) > length and value.startswith(tail) for value in self._values):
                return length
        return 0
