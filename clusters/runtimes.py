"""The runtimes a node offers, by what its agent says it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loadmaster.protocol import RUNTIMES

__all__ = ["RUNTIMES", "runtimes_of"]


class Featured(Protocol):
    """A node with what its agent has told of itself."""

    @property
    def features(self) -> Sequence[str]:
        """Names of what it knows."""
        ...


def runtimes_of(node: Featured) -> tuple[str, ...]:
    """Runtimes of the node; one whose agent has reported none is taken to run processes."""
    known = tuple(name for name in RUNTIMES if name in node.features)
    return known if node.features else RUNTIMES[:1]
