"""Labels that the program derives: what a job needs of a node, and which nodes have it."""

from collections.abc import Iterable

RUNTIME = "runtime:"
"""Prefix of the label of a runtime, of nodes that offer it and jobs that need it."""

FEATURE = "agent:"
"""Prefix of the label of a feature of agents, of nodes that have it and jobs that need it."""

RUNS_GANGS = FEATURE + "gang"
"""Label of nodes whose agents say that they run ranks of gangs; needed only if some node has it."""

APART = "apart:"
"""Prefix and a node's id: label of every other node, and of jobs that should avoid that node."""

TEAM = "team:"
"""Prefix and a team's id: label of its jobs, and of nodes that may serve it."""


def runtime_label(name: str) -> str:
    return RUNTIME + name


def feature_label(name: str) -> str:
    return FEATURE + name


def apart_label(node: str) -> str:
    return APART + node


def team_label(team: str) -> str:
    return TEAM + team


def is_own(label: str) -> bool:
    """Return True for a label derived by the program, not set by people."""
    return ":" in label


def is_wish(label: str) -> bool:
    """Return True for a label that policies should heed, and whose lack breaks no rule."""
    return label.startswith(APART)


def runtime_of(labels: Iterable[str]) -> str:
    """Return the runtime that a job's labels ask for; "" if none."""
    for label in labels:
        if label.startswith(RUNTIME):
            return label.removeprefix(RUNTIME)
    return ""


def worded(label: str) -> str:
    """Return the property of nodes with this label, in words."""
    if label.startswith(RUNTIME):
        return f"the runtime {label.removeprefix(RUNTIME)}"
    if label.startswith(FEATURE):
        return "an agent that is recent enough"
    if label.startswith(TEAM):
        return "the right to serve its team"
    if label.startswith(APART):
        return "a history without failures of its job"
    alternatives = label.replace("|", " or ")
    return f"the label {alternatives}"
