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
    """Return the names of a list in order: n1 n2 n4 gpu-01 gpu-02 of n[1-2,4],gpu-[01-02]."""
    names: list[str] = []
    for part in _parts(text):
        names += _names(part)
        if len(names) > MOST_NAMES:
            raise NodeListError(f"{text[:40]!r} stands for more than {MOST_NAMES:,} nodes")
    return names


def _parts(text: str) -> list[str]:
    """Return the parts of a list between commas outside brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _names(part: str) -> list[str]:
    """Return the names of one part, such as r[1-2]n[1-2]."""
    match = _BRACKETS.fullmatch(part)
    if match is None:
        if "[" in part or "]" in part:
            raise NodeListError(f"{part[:40]!r} has a bracket too many; write such as n[1-3]")
        return [part]
    prefix, spans, rest = match.groups()
    # Each number of the first brackets goes with each name of the rest.
    ends = _names(rest) if rest else [""]
    names: list[str] = []
    for number in _numbers(spans):
        names += [prefix + number + end for end in ends]
        if len(names) > MOST_NAMES:
            raise NodeListError(f"{part[:40]!r} stands for more than {MOST_NAMES:,} nodes")
    return names


def _numbers(spans: str) -> Iterator[str]:
    """Yield the numbers of spans such as 1-3,5, each as wide as the first of its span."""
    for span in spans.split(","):
        match = _SPAN.fullmatch(span)
        if match is None:
            raise NodeListError(f"[{spans[:40]}] holds no numbers; write such as [1-3,5]")
        first = match[1]
        last = match[2] or first
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def compress(names: Iterable[str]) -> str:
    """Return names in their order as Slurm writes them: n1, n2, n4 and gpu as n[1-2,4],gpu."""
    texts = []
    # Neighbours with one prefix share brackets, unless one of them has no number.
    for (prefix, _), group in groupby(_runs(names), key=lambda run: (run[0], run[1] != "")):
        spans: list[str] = []
        is_one_name = True
        for _, first, last in group:
            is_one_name = first == last and not spans
            spans.append(first if first == last else f"{first}-{last}")
        numbers = ",".join(spans)
        texts.append(prefix + numbers if is_one_name else f"{prefix}[{numbers}]")
    return ",".join(texts)


def _runs(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return (prefix, first number, last number) of names that follow each other; "" for none."""
    runs = list[tuple[str, str, str]]()
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue  # a line break, which no name has
        prefix = match[1]
        digits = match[2] or ""
        if digits and runs:
            run_prefix, first, last = runs[-1]
            if run_prefix == prefix and last and digits == _next(last):
                runs[-1] = (prefix, first, digits)
                continue
        runs.append((prefix, digits, digits))
    return runs


def _next(digits: str) -> str:
    """Return the number after this one, with as many digits if this one begins with 0."""
    width = len(digits) if digits.startswith("0") else 0
    return f"{int(digits) + 1:0{width}d}"
