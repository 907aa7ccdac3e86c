"""The runtimes a node offers, by what its agent says it knows."""

from __future__ import annotations

from clusters.models import Node
from loadmaster.protocol import RUNTIMES

__all__ = ["RUNTIMES", "runtimes_of"]


def runtimes_of(node: Node) -> tuple[str, ...]:
    """The node's runtimes; a node whose agent has told nothing yet counts as one that runs processes."""
    known = tuple(name for name in RUNTIMES if name in node.features)
    return known if node.features else RUNTIMES[:1]
