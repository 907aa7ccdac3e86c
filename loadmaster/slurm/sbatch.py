"""`sbatch` inside a batch script: submits another one for the script's user, in its team."""

import sys

import typer

from loadmaster.cli.sbatch import read_sbatch, sbatch_job
from loadmaster.slurm.server import Server, ServerError


def main() -> int:
    """Submit the script of the command line, or of the input, and print its number."""
    try:
        job, in_force = sbatch_job(read_sbatch(sys.argv[1:]))
        answer = Server.of_script().submit(job)
    except typer.Exit as end:  # what is wrong has been said
        return end.exit_code
    except ServerError as error:
        print(f"sbatch: error: {error}", file=sys.stderr)
        return 1
    for warning in answer["warnings"]:
        print(f"sbatch: warning: {warning}", file=sys.stderr)
    if "parsable" in in_force:
        print(answer["number"])
    elif "quiet" not in in_force:
        print(f"Submitted batch job {answer['number']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
