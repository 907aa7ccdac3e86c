"""Lists of nodes as Slurm writes them: n[1-2,4],gpu stands for n1, n2, n4 and gpu."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

MOST_NAMES = 100_000
"""Names that a list is written out to: a longer one is a mistake."""

_NAME = re.compile(r"(.*?)(\d{1,9})?")
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class NodeListError(ValueError):
    """List that cannot be written out; the message says why."""


def expand(text: str) -> list[str]:
    """Names of a list, in its order: of n[1-2,4],gpu-[01-02] the names n1 n2 n4 gpu-01 gpu-02."""
    names: list[str] = []
    for part in _parts(text):
        names += _names(part)
        if len(names) > MOST_NAMES:
            raise NodeListError(f"{text[:40]!r} stands for more than {MOST_NAMES:,} nodes")
    return names


def _parts(text: str) -> list[str]:
    """Parts of a list between commas that are in no brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _names(part: str) -> list[str]:
    """Names of one part: its first brackets, each with every name of what stands behind them."""
    match = _BRACKETS.fullmatch(part)
    if match is None:
        if "[" in part or "]" in part:
            raise NodeListError(f"{part[:40]!r} has a bracket too many; write such as n[1-3]")
        return [part]
    prefix, spans, rest = match.groups()
    ends = _names(rest) if rest else [""]
    names: list[str] = []
    for number in _numbers(spans):
        names += [prefix + number + end for end in ends]
        if len(names) > MOST_NAMES:
            raise NodeListError(f"{part[:40]!r} stands for more than {MOST_NAMES:,} nodes")
    return names


def _numbers(spans: str) -> Iterator[str]:
    """Numbers of 1-3,5, as wide as the first of their span."""
    for span in spans.split(","):
        match = _SPAN.fullmatch(span)
        if match is None:
            raise NodeListError(f"[{spans[:40]}] holds no numbers; write such as [1-3,5]")
        first = match[1]
        last = match[2] or first
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def compress(names: Iterable[str]) -> str:
    """Names in their order as Slurm writes them: of n1, n2, n4 and gpu the text n[1-2,4],gpu."""
    texts = []
    for (prefix, _), group in groupby(_runs(names), key=lambda run: (run[0], run[1] != "")):
        runs = [(first, last) for _, first, last in group]
        spans = ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
        is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
        texts.append(prefix + (spans if is_one else f"[{spans}]"))
    return ",".join(texts)


def _runs(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Prefix, first and last number of names that follow each other."""
    found = list[tuple[str, str, str]]()
    for match in filter(None, map(_NAME.fullmatch, names)):
        prefix = match[1]
        digits = match[2] or ""
        before = found[-1] if found else ("", "", "")
        if digits and before[0] == prefix and before[2] and digits == _next(before[2]):
            found[-1] = prefix, before[1], digits
        else:
            found.append((prefix, digits, digits))
    return found


def _next(digits: str) -> str:
    """Number after this one, as wide as it where it begins with 0."""
    width = len(digits) if digits.startswith("0") else 0
    return f"{int(digits) + 1:0{width}d}"
