"""`scancel` inside a batch script: cancels own jobs, or signals the script's own steps."""

import contextlib
import os
import signal as signals
import sys
from collections.abc import Mapping
from pathlib import Path

from loadmaster.slurm.listing import id_of, state_of
from loadmaster.slurm.options import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.server import Server, ServerError
from loadmaster.slurm.values import ValueFormatError, end_signal

SCANCEL = Program.of(
    "scancel",
    "b:batch ctld cron f:full H:hurry i:interactive me Q:quiet v:verbose V:version",
    "A:account M:clusters n:name jobname p:partition q:qos R:reservation sibling s:signal t:state "
    "u:user w:nodelist wckey",
)
CHOOSING = ("me", "name", "jobname", "partition", "state", "user")
"""Options that choose jobs without naming their numbers."""

ENDING = ("KILL", "TERM")
"""Signals that end a job anywhere."""


def main() -> int:
    """Do as the command line says; the exit code."""
    try:
        given, references = read_words(sys.argv[1:], COMMAND_LINE, SCANCEL)
        options = {one.name: one.value for one in given}
        name = end_signal(options["signal"]).name if "signal" in options else "KILL"
        if not references and not any(choice in options for choice in CHOOSING):
            raise ScriptError(["no job is named; give its number, or --name or --me"])
        return _cancel(options, references, name)
    except (ScriptError, ServerError, ValueFormatError) as error:
        print(f"scancel: error: {error}", file=sys.stderr)
        return 1


def _cancel(options: Mapping[str, str], references: list[str], name: str) -> int:
    """Cancel or signal the jobs that are meant; 1 if one of them could not be."""
    own = {os.environ.get("SLURM_JOB_ID", "")}
    own |= {f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"}
    is_plain = name in ENDING and not {"batch", "full"} & options.keys()
    if not is_plain and set(references) <= own:
        _signal_own(name, options)
        return 0
    if name not in ENDING:
        said = f"SIG{name} reaches steps of this script alone; leave --signal out to cancel others"
        raise ServerError(said)
    server = Server.of_script()
    failed = 0
    for reference in references or _chosen(server, options):
        try:
            server.act(reference, "cancel")
        except ServerError as error:
            if "quiet" not in options:
                print(f"scancel: error: {reference}: {error}", file=sys.stderr)
            failed = 1
    return failed


def _chosen(server: Server, options: Mapping[str, str]) -> list[str]:
    """Numbers of the own jobs that fit the options."""
    found = []
    wanted = {"name": options.get("name", options.get("jobname"))}
    wanted |= {"user": options.get("user"), "cluster": options.get("partition")}
    states = {word.upper() for word in options.get("state", "").split(",") if word}
    for row in server.jobs():
        fits = all(text is None or row[part] in text.split(",") for part, text in wanted.items())
        if fits and (not states or states & set(state_of(row))):
            found.append(id_of(row))
    return found


def _signal_own(name: str, options: Mapping[str, str]) -> None:
    """Signal the steps of this script; with --batch the script instead, with --full both."""
    number = signals.Signals[f"SIG{name}"]
    job = os.environ["SLURM_JOB_ID"].encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            variables = (entry / "environ").read_bytes().split(b"\0")
            if b"SLURM_JOB_ID=" + job not in variables or pid == os.getpid():
                continue
            is_step = any(variable.startswith(b"SLURM_STEP_ID=") for variable in variables)
            is_script = b"SLURM_TASK_PID=%d" % pid in variables and not is_step
            if (is_step and "batch" not in options) or (
                is_script and {"batch", "full"} & options.keys()
            ):
                os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
