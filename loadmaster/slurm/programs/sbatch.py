"""`sbatch` inside a batch script: submits another one for the script's user, in its team."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from loadmaster.slurm.options.reading import ScriptError
from loadmaster.slurm.programs.server import Server, ServerError
from loadmaster.slurm.scripts.submission import read_sbatch, sbatch_job

POLL_S = 2.0
"""Seconds between two looks of `--wait` whether the job is over."""


def main() -> int:
    """Submit the script of the command line, or of the input; print its number."""
    try:
        submission, in_force = sbatch_job(read_sbatch(sys.argv[1:]))
        server = Server.of_script()
        answer = server.submit(submission)
    except (ScriptError, ServerError) as error:
        print(f"sbatch: error: {error}", file=sys.stderr)
        return 1
    for warning in answer["warnings"]:
        print(f"sbatch: warning: {warning}", file=sys.stderr)
    if "parsable" in in_force:
        print(answer["number"], flush=True)
    elif "quiet" not in in_force:
        print(f"Submitted batch job {answer['number']}", flush=True)
    if "wait" in in_force:
        return _wait(server, str(answer["number"]))
    return 0


def _wait(server: Server, number: str) -> int:
    """Wait until a job, or all of an array, is over; return the highest of their exit codes."""
    while True:
        try:
            rows = server.jobs([number])
        except ServerError as error:
            print(f"sbatch: error: {error}", file=sys.stderr)
            return 1
        if all(row["ended_s"] is not None for row in rows):
            return max((_exit_code(row) for row in rows), default=1)
        time.sleep(POLL_S)


def _exit_code(row: Mapping[str, Any]) -> int:
    """Return the exit code of a job that is over: 1 after a signal, as of Slurm's `--wait`."""
    if row["state"] == "completed":
        return 0
    # A job that ended by a signal has a negative code, one that never ran has none.
    return max(1, row["exit_code"] or 0)


if __name__ == "__main__":
    sys.exit(main())
