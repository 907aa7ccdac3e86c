"""Labels of nodes as `--constraint` asks for them: a&b, a|b, (a|b)&c.

Labels are in conjunctive form: each entry is a label, or alternatives such as a100|v100, and a node
must satisfy all entries.
"""

import re
from collections import deque
from collections.abc import Iterable

from loadmaster.slurm.options.values import ValueFormatError

ALTERNATIVE = "|"
"""Separator of the alternatives of an entry."""

MOST_ENTRIES = 100
MOST_BRACKETS = 20
LONGEST = 1000
"""Characters of an expression."""

_TOKEN = re.compile(r"[^&|,()\[\]*!\s]+|[&|,()\[\]*!]")
_OPERATORS = ("&", "|", ",")
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
        limit = "nodes of one job are not counted by label"
        raise ValueFormatError(f"{text[:60]!r}: {limit}; submit a job for each kind of node")

    # Parse it: a problem is an empty operand, or tokens that are left over.
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
    """Take an expression up to its end or closing bracket; None if it is no expression.

    Raises IndexError at the end of the tokens.
    """
    entries = _operand(tokens)
    while entries is not None and tokens and tokens[0] in _OPERATORS:
        operator = tokens.popleft()
        other = _operand(tokens)
        if other is None:
            return None
        if operator == "|":
            entries = _either(entries, other)
        else:
            entries = list(dict.fromkeys([*entries, *other]))  # each entry once
    return entries


def _operand(tokens: deque[str]) -> list[frozenset[str]] | None:
    """Take a label, or an expression in brackets; None for anything else."""
    token = tokens.popleft()
    if token in _CLOSING:
        inner = _entries(tokens)
        is_closed = tokens.popleft() == _CLOSING[token]
        return inner if is_closed else None
    if re.fullmatch(r"[&|,)\]*!]", token):
        return None
    return [frozenset([token])]


def _either(entries: list[frozenset[str]], others: list[frozenset[str]]) -> list[frozenset[str]]:
    """Return the entries of "one or the other": (a&b)|(c&d) is (a|c)&(a|d)&(b|c)&(b|d)."""
    if len(entries) * len(others) > 10 * MOST_ENTRIES:
        raise ValueFormatError(f"it has more than {MOST_ENTRIES} alternatives; write fewer")
    either = list[frozenset[str]]()
    for entry in entries:
        for other in others:
            either.append(entry | other)
    return list(dict.fromkeys(either))
