"""Warnings of shell syntax in a command that no shell runs.

A command is split into words as a shell does, and nothing else is done: the program gets operators,
variables and patterns in them as text. Syntax that is quoted, or in the text after a shell's `-c`,
is no mistake.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from loadmaster import shell_words

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash"})
"""Names of shells' programs."""

COMMAND_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
"""Options of a shell with `-c` among them: the shell reads the next word as its script."""

BUILT_IN = frozenset({
    ".", "alias", "bg", "cd", "eval", "exec", "export", "fg", "set", "shift", "source", "trap",
    "ulimit", "umask", "unset", "wait", "case", "for", "function", "if", "select", "until",
    "while", "{", "(", "((", "[[", "!",
})  # fmt: skip  # a long list of names
"""First words that only a shell knows."""

OPERATOR = re.compile(r"&&|\|\||\|&|\d?>&\d|&>>?|\d?>>|<<<?|\d>|[|&;<>]")
"""Operators that join, redirect or end commands, such as `&&`, `|` and `2>&1`."""

EXPANSION = re.compile(r"\$(?:[A-Za-z_]\w*|\{[^}]*\}?|\([^)]*\)?)|`[^`]*`?")
"""Variables and output of commands: `$NAME`, `${NAME}`, `$(command)` and `` `command` ``."""

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
"""Begin of a word that sets a variable, such as `NAME=`."""

PATTERN = re.compile(r"\*|[\w./-]\?|[\w./-]\[[^\],\s]+\]|\{\w+\.\.\w+\}")
"""Patterns of files' names: `*`, `a?`, `a[bc]` and `{1..3}`."""

HOME = re.compile(r"~(?:/|$)")
"""Begin of a path below the user's home folder."""

MOST_NAMED = 5
"""Most findings that a warning names."""

LONGEST_NAME = 30
"""Most characters of a finding in a warning."""


def shell_warnings(command: str | Sequence[str], runtime: str) -> Iterator[str]:
    """Yield a warning if a command, a string or a list, is written for a shell."""
    # 1. Syntax in the command, each text once, in its order.
    if isinstance(command, str):
        findings = _findings_in_text(command)
    else:
        findings = _findings_in_list(command)
    syntax = list(dict.fromkeys(findings))
    if not syntax:
        return

    # 2. The warning names it, and how to run the command by a shell.
    needed_for = ", ".join(text[:LONGEST_NAME] for text in syntax[:MOST_NAMED])
    remedy = 'run ["sh", "-c", "..."]' if runtime == "docker" else "give its lines as script"
    if any(ASSIGNMENT.match(text) for text in syntax):
        remedy = f"{remedy}, and variables as environment"
    yield f"command: no shell runs it, but one is needed for {needed_for}; {remedy}"


def _findings_in_text(command: str) -> Iterator[str]:
    """Yield the shell syntax in a command that is one string."""
    # Of each word: its text, and the part of it in which a shell reads syntax (not quoted).
    words = shell_words.words_with_syntax(command)
    scripts = _positions_of_scripts([word for word, _ in words])
    yield from _findings_at_begin([unquoted for _, unquoted in words])
    for position, (_, unquoted) in enumerate(words):
        if position in scripts:
            continue
        is_address = "://" in unquoted  # its & and ? are no operator and no pattern
        if not is_address:
            yield from OPERATOR.findall(unquoted)
        yield from EXPANSION.findall(unquoted)
        is_value = "=" in unquoted or is_address  # as of --include=*.py, which names no file either
        if HOME.match(unquoted) or (PATTERN.search(unquoted) and not is_value):
            yield unquoted
    if shell_words.begins_another_line(command):
        yield "the end of a line"


def _findings_in_list(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a list that are nothing but shell syntax."""
    scripts = _positions_of_scripts(words)
    yield from _findings_at_begin(words)
    for position, word in enumerate(words):
        if position in scripts:
            continue
        if OPERATOR.fullmatch(word) or EXPANSION.fullmatch(word):
            yield word


def _findings_at_begin(words: Sequence[str]) -> Iterator[str]:
    """Yield assignments before the program, and a program that only shells know."""
    for word in words:
        assignment = ASSIGNMENT.match(word)
        if assignment is None:
            if word in BUILT_IN:
                yield word
            return
        yield assignment[0]


def _positions_of_scripts(words: Sequence[str]) -> set[int]:
    """Return the positions of the words that a shell reads as a script: those after its `-c`."""
    positions = set[int]()
    for position, word in enumerate(words):
        if PurePosixPath(word).name not in SHELLS:
            continue

        # Go through the shell's options up to one with -c.
        option = position + 1
        while option < len(words) and words[option].startswith(("-", "+")):
            if COMMAND_OPTION.fullmatch(words[option]):
                positions.add(option + 1)
                break
            takes_word = words[option].endswith("o")  # as in -euo pipefail
            option += 2 if takes_word else 1
    return positions
