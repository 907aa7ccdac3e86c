"""Command line of sbatch and the script that it names, as the field `sbatch` of a submission.

It needs only the standard library, so that any Python of a node or an image can run it.
"""

import getpass
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.slurm.options.input_variables import words_of_variables
from loadmaster.slurm.options.reading import (
    COMMAND_LINE,
    GivenOption,
    ScriptError,
    merged,
    read_script,
    read_words,
)
from loadmaster.slurm.options.values import exported
from loadmaster.slurm.scripts.script_bytes import text_of

STANDARD_INPUT = "-"
OWN = ("LOADMASTER_", "SLURM_")
"""Beginnings of variables that are not exported: a job gets its own where it runs."""


@dataclass(frozen=True, slots=True)
class SbatchWords:
    """Command line of sbatch: words of its options, which `given` are; the script's own words.

    `script`: its path, "-" for standard input, "" if none is named.
    """

    script: str
    options: tuple[str, ...]
    given: tuple[GivenOption, ...]
    arguments: tuple[str, ...]

    @property
    def wraps(self) -> bool:
        """Return True if a command of `--wrap` stands for the script."""
        return any(given.name == "wrap" for given in self.given)


def read_sbatch(words: Sequence[str], variables: Mapping[str, str] = os.environ) -> SbatchWords:
    """Read `run.sh -n 4 its own words` or, as sbatch does, `-n 4 run.sh its own words`.

    Raises ScriptError at a wrong option.
    """
    script = ""
    if words and (words[0] == STANDARD_INPUT or not words[0].startswith("-")):
        script = words[0]
        words = words[1:]
    given, rest = read_words(words, COMMAND_LINE)
    options = words[: len(words) - len(rest)]

    # Variables such as SBATCH_TIMELIMIT stand for options that the command line does not give.
    of_variables = words_of_variables(variables, {option.name for option in given})
    given_by_variables, _ = read_words(of_variables, COMMAND_LINE)
    options = [*of_variables, *options]
    given = [*given_by_variables, *given]
    if rest and not script:
        script = rest[0]
        rest = rest[1:]
    return SbatchWords(script, tuple(options), tuple(given), tuple(rest))


def sbatch_job(words: SbatchWords) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the job that sbatch's words describe, and the names of the options in force.

    Raises ScriptError if the script cannot be read. Without a script and without `--wrap` it is
    read from standard input.
    """
    script = ""
    if words.script not in ("", STANDARD_INPUT):
        try:
            script = text_of(Path(words.script).read_bytes())
        except OSError as error:
            raise ScriptError([f"{words.script}: {error.strerror}"]) from None
    elif not words.wraps:
        script = text_of(sys.stdin.buffer.read())
    in_force = _in_force(script, words.given)
    given = {
        "script": script,
        "name": Path(words.script).name if words.script != STANDARD_INPUT else "",
        "options": list(words.options),
        "arguments": list(words.arguments),
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "user": _user_name(),
        "environment": _environment(in_force, os.environ),
    }
    return {"sbatch": given}, frozenset(in_force)


def _user_name() -> str:
    """Return the name of this process' user; "" if the machine knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _in_force(script: str, options: Sequence[GivenOption]) -> Mapping[str, GivenOption]:
    """Return the options in force of a script and a command line."""
    of_script = list[GivenOption]()
    # The server will name the problems of a script.
    with suppress(ScriptError):
        of_script = read_script(script)
    return merged(of_script, options)[0]


def _environment(in_force: Mapping[str, GivenOption], own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `--export` asks for."""
    if "export" not in in_force:
        return {}
    wanted = exported(in_force["export"].value)
    if not wanted.all:
        return {name: value for name, value in own.items() if name in wanted.names}
    names = [name for name in own if name.isidentifier() and not name.startswith(OWN)]
    return {name: own[name] for name in names}
