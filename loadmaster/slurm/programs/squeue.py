"""`squeue` inside a batch script: lists the jobs of the script's user in its team."""

import sys
from collections.abc import Mapping, Sequence

from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.programs import listing
from loadmaster.slurm.programs.columns import FormatError
from loadmaster.slurm.programs.listing import Row, state_of
from loadmaster.slurm.programs.server import Server, ServerError

SQUEUE = Program.of(
    "squeue",
    """
    a:all r:array federation h:noheader hide i:iterate? l:long local me only-job-state array-unique
    expand-patterns sibling start s:steps? v:verbose V:version json? yaml?
    """,
    """
    A:account M:clusters o:format O:Format j:jobs L:licenses n:name w:nodelist p:partition
    P:priority q:qos R:reservation S:sort t:states u:user U:users
    """,
)
USED = frozenset({
    "Format", "all", "array", "array-unique", "format", "hide", "jobs", "long", "me", "name",
    "nodelist", "noheader", "partition", "sort", "start", "states", "user", "users", "verbose",
})  # fmt: skip  # a long list of names
"""Options that have a meaning here; a warning names all others."""

LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
"""Columns of --long."""

START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
"""Columns of --start."""


def main() -> int:
    """Print the jobs that the command line asks for; return the exit code."""
    try:
        given_options, rest = read_words(sys.argv[1:], COMMAND_LINE, SQUEUE)
        options = {option.name: option.value for option in given_options}
        if rest:
            raise ScriptError([f"{rest[0]!r} is no option; give numbers of jobs by -j"])
        numbers = [part for part in options.get("jobs", "").split(",") if part]
        rows = Server.of_script().jobs(numbers)
        if numbers and not rows:
            raise ServerError("Invalid job id specified")
        for line in _lines(_wanted(rows, options), options):
            print(line)
    except (ScriptError, ServerError, FormatError) as error:
        print(f"squeue: error: {error}", file=sys.stderr)
        return 1
    for name in sorted(options.keys() - USED):
        print(f"squeue: warning: --{name} has no meaning here", file=sys.stderr)
    return 0


def _wanted(rows: Sequence[Row], options: Mapping[str, str]) -> list[Row]:
    """Return the rows that fit the options; without states those that are not over, as in Slurm."""
    states = {word.upper() for word in options.get("states", "").split(",") if word}
    fitting = []
    for row in rows:
        short, long = state_of(row)
        is_over = row["ended_s"] is not None
        if states and "ALL" not in states and not {short, long} & states:
            continue
        if not states and is_over:
            continue
        if _differs(options, "name", row["name"]) or _differs(options, "partition", row["cluster"]):
            continue
        if _differs(options, "user", row["user"]) or _differs(options, "users", row["user"]):
            continue
        if "nodelist" in options and options["nodelist"] not in row["nodes"]:
            continue
        fitting.append(row)
    if "array" in options or "array-unique" in options:
        return fitting
    return listing.folded(fitting)


def _differs(options: Mapping[str, str], name: str, value: str) -> bool:
    """Return True if an option gives a list without this value."""
    return name in options and value not in options[name].split(",")


def _lines(rows: Sequence[Row], options: Mapping[str, str]) -> list[str]:
    """Return the lines about these jobs, in the columns that the options ask for."""
    heads = "noheader" not in options
    if "Format" in options:
        return listing.long_table(rows, options["Format"], heads=heads)
    default = listing.FORMAT
    if "start" in options:
        default = START
    if "long" in options:
        default = LONG
    return listing.table(rows, options.get("format", default), heads=heads)


if __name__ == "__main__":
    sys.exit(main())
