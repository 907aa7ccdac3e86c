"""Labels of nodes as `--constraint` asks for them: a&b, a|b, (a|b)&c.

Labels are in conjunctive form: each entry is a label, or alternatives such as a100|v100, and a node
must satisfy all entries.
"""

import re
from collections import deque
from collections.abc import Iterable

from loadmaster.slurm.options.values import ValueFormatError

ALTERNATIVE = "|"
MOST_ENTRIES = 100
LONGEST = 1000
MOST_BRACKETS = 20
_TOKEN = re.compile(r"[^&|,()\[\]*!\s]+|[&|,()\[\]*!]")
_CLOSING = {"(": ")", "[": "]"}


def labels(text: str) -> list[str]:
    """Return the labels of an expression, from left to right as Slurm reads it.

    Raises ValueFormatError for counts of nodes (a*2), negations, and what is no expression.
    """
    if not text.strip():
        return []
    if len(text) > LONGEST or text.count("(") + text.count("[") > MOST_BRACKETS:
        limit = f"may have {LONGEST} characters and {MOST_BRACKETS} brackets"
        raise ValueFormatError(f"{text[:60]!r}... {limit}; write a shorter one")
    if "*" in text:
        remedy = "submit a job for each kind of node"
        raise ValueFormatError(
            f"{text[:60]!r}: nodes of one job are not counted by label; {remedy}"
        )
    tokens = deque(_TOKEN.findall(text))
    try:
        entries = _entries(tokens)
    except IndexError:
        entries = None
    if entries is None or tokens:
        forms = "a&b, a|b or (a|b)&c"
        raise ValueFormatError(f"{text[:60]!r} is no constraint; write labels such as {forms}")
    if len(entries) > MOST_ENTRIES:
        raise ValueFormatError(f"it has more than {MOST_ENTRIES} alternatives; write fewer")
    return [ALTERNATIVE.join(sorted(entry)) for entry in entries]


def satisfied(wanted: Iterable[str], offered: Iterable[str]) -> bool:
    """Return True if a node that offers these labels satisfies every wanted entry."""
    offered = set(offered)
    for entry in wanted:
        if entry not in offered and offered.isdisjoint(entry.split(ALTERNATIVE)):
            return False
    return True


def _entries(tokens: deque[str]) -> list[frozenset[str]] | None:
    """Take an expression up to its end or closing bracket; None if it is none."""
    entries = _operand(tokens)
    while entries is not None and tokens and tokens[0] in ("&", "|", ","):
        operator = tokens.popleft()
        other = _operand(tokens)
        if other is None:
            return None
        if operator == "|":
            entries = _either(entries, other)
        else:
            entries = list(dict.fromkeys([*entries, *other]))
    return entries


def _operand(tokens: deque[str]) -> list[frozenset[str]] | None:
    token = tokens.popleft()
    if token in _CLOSING:
        inner = _entries(tokens)
        return inner if tokens.popleft() == _CLOSING[token] else None
    if re.fullmatch(r"[&|,)\]*!]", token):
        return None
    return [frozenset([token])]


def _either(entries: list[frozenset[str]], others: list[frozenset[str]]) -> list[frozenset[str]]:
    """Distribute: (a and b) or (c and d) is (a|c) and (a|d) and (b|c) and (b|d)."""
    if len(entries) * len(others) > 10 * MOST_ENTRIES:
        raise ValueFormatError(f"it has more than {MOST_ENTRIES} alternatives; write fewer")
    either = list[frozenset[str]]()
    for entry in entries:
        for other in others:
            either.append(entry | other)
    return list(dict.fromkeys(either))
