"""`sbatch` inside a batch script: submits another one for the script's user, in its team."""

import sys
from pathlib import Path

from loadmaster.cli.sbatch import sbatch_job
from loadmaster.slurm.options import COMMAND_LINE, ScriptError, read_words
from loadmaster.slurm.server import Server, ServerError

STDIN = Path("/dev/stdin")


def main() -> int:
    """Submit the script of the command line, or of the input, and print its number."""
    words = sys.argv[1:]
    try:
        given, rest = read_words(words, COMMAND_LINE)
        options = {one.name for one in given}
        own = words[: len(words) - len(rest)]
        path = Path(rest[0]) if rest else STDIN
        submission = sbatch_job(path, [*own, *rest[1:]])
        if path == STDIN:
            submission["sbatch"]["name"] = ""
        answer = Server.of_script().submit(submission)
    except (ScriptError, ServerError) as error:
        print(f"sbatch: error: {error}", file=sys.stderr)
        return 1
    for warning in answer["warnings"]:
        print(f"sbatch: warning: {warning}", file=sys.stderr)
    if "parsable" in options:
        print(answer["number"])
    elif "quiet" not in options:
        print(f"Submitted batch job {answer['number']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
