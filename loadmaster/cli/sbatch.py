"""`loadmaster submit --sbatch run.sh -n 4 words of the script`: what sbatch is given."""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from loadmaster.cli.output import USAGE, fail
from loadmaster.slurm.options import COMMAND_LINE, ScriptError, merged, read_script, read_words
from loadmaster.slurm.values import exported

OPTION = "--sbatch"
OWN = ("LOADMASTER_", "SLURM_")
"""Beginnings of variables that are not exported: they are given to a job where it runs."""


class SubmitCommand(TyperCommand):
    """Command that leaves all words after `--sbatch SCRIPT` to be read as sbatch reads them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after the script in `ctx.meta`."""
        for place, word in enumerate(args):
            name, equals, _ = word.partition("=")
            if name == OPTION:
                end = place + 1 if equals else place + 2
                ctx.meta[OPTION] = args[end:]
                args = args[:end]
                break
        return super().parse_args(ctx, args)


def sbatch_job(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """The job of a script's file with the command line's words; ends the program without it."""
    try:
        script = path.read_bytes().decode()
    except OSError as error:
        fail(f"{path}: {error.strerror}", USAGE)
    except UnicodeDecodeError:
        fail(f"{path}: is no text in UTF-8; a script is text", USAGE)
    try:
        rest = read_words(words, COMMAND_LINE)[1]
    except ScriptError as error:
        fail(str(error), USAGE)
    options = list(words[: len(words) - len(rest)])
    given = {
        "script": script,
        "name": path.name,
        "options": options,
        "arguments": rest,
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "environment": _environment(script, options, os.environ),
    }
    return {"sbatch": given}


def _environment(script: str, options: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """Variables that `--export` asks for; the server names what is wrong with a script."""
    with suppress(ScriptError):
        in_force, _ = merged(read_script(script), read_words(options, COMMAND_LINE)[0])
        if "export" in in_force:
            wanted = exported(in_force["export"].value)
            every = {n: v for n, v in own.items() if n.isidentifier() and not n.startswith(OWN)}
            return every if wanted.all else {n: v for n, v in own.items() if n in wanted.names}
    return {}
