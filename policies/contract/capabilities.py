"""Labels that the world itself puts on nodes and jobs, beside those of people, whose names cannot
hold a colon.

A job may be placed on nodes that have all its labels. So what a node can do, and what a job needs
for reasons of the world's own, is said in the one form that every policy and the judge know
already:

- `runtime:NAME` on a node: it runs jobs of that runtime; on a job: it is one of them;
- `apart:NODE` on a job: it keeps away from that node for a while; on a node: it is another one than
  NODE.
"""

from __future__ import annotations

from collections.abc import Iterable

RUNTIME = "runtime:"
APART = "apart:"


def runtime_label(name: str) -> str:
    """The label of a runtime."""
    return RUNTIME + name


def apart_label(node: str) -> str:
    """The label of every node but this one (its id)."""
    return APART + node


def is_own(label: str) -> bool:
    """Whether a label is one of the world's own."""
    return ":" in label


def runtime_of(labels: Iterable[str]) -> str:
    """The runtime that a job's labels ask for; "" if none."""
    return next((label.removeprefix(RUNTIME) for label in labels if label.startswith(RUNTIME)), "")


def worded(label: str) -> str:
    """What a node lacks that has not this label."""
    if label.startswith(RUNTIME):
        return f"the runtime {label.removeprefix(RUNTIME)}"
    return "a clean record with the job" if label.startswith(APART) else label
