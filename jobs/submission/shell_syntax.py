"""Syntax of shells in a command that no shell runs: found, named and warned about.

A command's words are split as a shell does, and that is all: operators, variables and patterns in
them reach the program as text. What is quoted, or handed to a shell's `-c`, is no mistake.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from loadmaster import shell_words

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash"})
COMMAND_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
"""Options of a shell with `-c` among them, whose next word is the shell's to read."""

BUILT_IN = frozenset({
    ".", "alias", "bg", "cd", "eval", "exec", "export", "fg", "set", "shift", "source", "trap",
    "ulimit", "umask", "unset", "wait", "case", "for", "function", "if", "select", "until",
    "while", "{", "(", "((", "[[", "!",
})  # fmt: skip  # a long list of names
"""First words that only a shell knows."""

OPERATOR = re.compile(r"&&|\|\||\|&|\d?>&\d|&>>?|\d?>>|<<<?|\d>|[|&;<>]")
EXPANSION = re.compile(r"\$(?:[A-Za-z_]\w*|\{[^}]*\}?|\([^)]*\)?)|`[^`]*`?")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
PATTERN = re.compile(r"\*|[\w./-]\?|[\w./-]\[[^\],\s]+\]|\{\w+\.\.\w+\}")
HOME = re.compile(r"~(?:/|$)")

MOST_NAMED = 5
LONGEST_NAME = 30


def shell_warnings(command: str | Sequence[str], runtime: str) -> Iterator[str]:
    """Yield the warning that a command, a string or a list, is written for a shell."""
    syntax = _in_text(command) if isinstance(command, str) else _in_list(command)
    found = list(dict.fromkeys(syntax))
    if not found:
        return
    assigns = any(ASSIGNMENT.match(name) for name in found)
    named = ", ".join(name[:LONGEST_NAME] for name in found[:MOST_NAMED])
    remedy = 'run ["sh", "-c", "..."]' if runtime == "docker" else "give its lines as script"
    variables = ", and variables as environment" if assigns else ""
    needed = f"command: no shell runs it, but one is needed for {named}"
    yield f"{needed}; {remedy}{variables}"


def _in_text(command: str) -> Iterator[str]:
    """Yield what a shell would carry out of a command in one string."""
    words = shell_words.words_with_syntax(command)
    of_shell = _texts_of_shells([word for word, _ in words])
    yield from _first_words([active for _, active in words])
    for place, (_, active) in enumerate(words):
        if place in of_shell:
            continue
        is_address = "://" in active
        if not is_address:
            yield from (found[0] for found in OPERATOR.finditer(active))
        yield from (found[0] for found in EXPANSION.finditer(active))
        is_value = "=" in active or is_address  # as of --include=*.py, which names no file either
        if HOME.match(active) or (PATTERN.search(active) and not is_value):
            yield active
    if shell_words.begins_another_line(command):
        yield "the end of a line"


def _in_list(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a list that are nothing but syntax of a shell."""
    of_shell = _texts_of_shells(words)
    yield from _first_words(words)
    for place, word in enumerate(words):
        if place not in of_shell and (OPERATOR.fullmatch(word) or EXPANSION.fullmatch(word)):
            yield word


def _first_words(words: Sequence[str]) -> Iterator[str]:
    """Yield assignments before the program, and a program that only shells know."""
    for word in words:
        assignment = ASSIGNMENT.match(word)
        if assignment is None:
            if word in BUILT_IN:
                yield word
            return
        yield assignment[0]


def _texts_of_shells(words: Sequence[str]) -> set[int]:
    """Return the places of the words that are read by a shell: those after its `-c`."""
    found = set[int]()
    for place, word in enumerate(words):
        if PurePosixPath(word).name not in SHELLS:
            continue
        after = place + 1
        while after < len(words) and words[after].startswith(("-", "+")):
            if COMMAND_OPTION.fullmatch(words[after]):
                found.add(after + 1)
                break
            takes_word = words[after].endswith("o")  # as in -euo pipefail
            after += 2 if takes_word else 1
    return found
