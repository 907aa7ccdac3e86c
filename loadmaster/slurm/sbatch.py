"""`sbatch` inside a batch script: submits another one for the script's user, in its team."""

import sys
import time

import typer

from loadmaster.cli.sbatch import read_sbatch, sbatch_job
from loadmaster.slurm.server import Server, ServerError

POLL_S = 2.0
"""How often `--wait` looks whether the job is over."""


def main() -> int:
    """Submit the script of the command line, or of the input, and print its number."""
    try:
        submission, in_force = sbatch_job(read_sbatch(sys.argv[1:]))
        server = Server.of_script()
        answer = server.submit(submission)
    except typer.Exit as end:  # what is wrong has been said
        return end.exit_code
    except ServerError as error:
        print(f"sbatch: error: {error}", file=sys.stderr)
        return 1
    for warning in answer["warnings"]:
        print(f"sbatch: warning: {warning}", file=sys.stderr)
    if "parsable" in in_force:
        print(answer["number"], flush=True)
    elif "quiet" not in in_force:
        print(f"Submitted batch job {answer['number']}", flush=True)
    return _ended(server, str(answer["number"])) if "wait" in in_force else 0


def _ended(server: Server, number: str) -> int:
    """Wait until a job, or all of an array, is over; return 0 if all completed, else 1 or more."""
    while True:
        try:
            rows = server.jobs([number])
        except ServerError as error:
            print(f"sbatch: error: {error}", file=sys.stderr)
            return 1
        if all(row["ended_s"] is not None for row in rows):
            codes = [0 if row["state"] == "completed" else row["exit_code"] or 1 for row in rows]
            return max(codes, default=1)
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
