"""`scancel` inside a batch script: cancels own jobs, or signals the script's own steps."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.options.values import EndSignal, ValueFormatError, end_signal
from loadmaster.slurm.programs.listing import id_of, state_of
from loadmaster.slurm.programs.server import Server, ServerError

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
    """Do as the command line says; return the exit code."""
    try:
        given_options, references = read_words(sys.argv[1:], COMMAND_LINE, SCANCEL)
        options = {option.name: option.value for option in given_options}
        if not references and not any(choice in options for choice in CHOOSING):
            raise ScriptError(["no job is named; give its number, or --name or --me"])
        return _cancel(options, references, end_signal(options.get("signal", "KILL")))
    except (ScriptError, ServerError, ValueFormatError) as error:
        print(f"scancel: error: {error}", file=sys.stderr)
        return 1


def _cancel(options: Mapping[str, str], references: Sequence[str], signal: EndSignal) -> int:
    """Cancel or signal the jobs that are meant; return 1 if one of them could not be."""
    # 1. Only steps and script of this job get signals, and only if it alone is named.
    is_own = bool(references) and set(references) <= _own_references()
    is_plain_end = signal.name in ENDING and not {"batch", "full"} & options.keys()
    if is_own and not is_plain_end:
        _signal_own(signal.number, options)
        return 0
    if signal.name not in ENDING:
        reach = f"signal {signal.name} reaches steps of this script alone"
        raise ServerError(f"{reach}; leave --signal out to cancel others")

    # 2. Other jobs are cancelled by the server, each as far as it goes.
    server = Server.of_script()
    exit_code = 0
    for reference in references or _chosen(server, options):
        try:
            server.act(reference, "cancel")
        except ServerError as error:
            if "quiet" not in options:
                print(f"scancel: error: {reference}: {error}", file=sys.stderr)
            exit_code = 1
    return exit_code


def _own_references() -> set[str]:
    """Return the names of this script's job: its number, and ARRAY_INDEX of an element."""
    references = {os.environ.get("SLURM_JOB_ID", "")}
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        array = os.environ["SLURM_ARRAY_JOB_ID"]
        index = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        references.add(f"{array}_{index}")
    return references


def _chosen(server: Server, options: Mapping[str, str]) -> list[str]:
    """Return the numbers of the own jobs that fit the options."""
    # 1. The values that a job may have, by field of its row, and its states in Slurm's words.
    lists = {
        "name": options.get("name", options.get("jobname")),
        "user": options.get("user"),
        "cluster": options.get("partition"),
    }
    values = {field: text.split(",") for field, text in lists.items() if text is not None}
    states = {word.upper() for word in options.get("state", "").split(",") if word}

    # 2. The jobs that have them.
    chosen = []
    for row in server.jobs():
        has_values = all(row[field] in allowed for field, allowed in values.items())
        has_state = not states or not states.isdisjoint(state_of(row))
        if has_values and has_state:
            chosen.append(id_of(row))
    return chosen


def _signal_own(number: int, options: Mapping[str, str]) -> None:
    """Signal the steps of this script; with --batch the script instead, with --full both."""
    job = b"SLURM_JOB_ID=" + os.environ["SLURM_JOB_ID"].encode()
    signals_steps = "batch" not in options
    signals_script = "batch" in options or "full" in options
    for entry in Path("/proc").iterdir():
        # Entries that are no process have no number; processes of others cannot be read.
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            variables = (entry / "environ").read_bytes().split(b"\0")
            if job not in variables or pid == os.getpid():
                continue
            is_step = any(variable.startswith(b"SLURM_STEP_ID=") for variable in variables)
            # Children of the script inherit its SLURM_TASK_PID, which is not their own number.
            is_script = b"SLURM_TASK_PID=%d" % pid in variables and not is_step
            if (is_step and signals_steps) or (is_script and signals_script):
                os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
