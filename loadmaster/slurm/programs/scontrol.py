"""`scontrol` inside a batch script: writes out lists of nodes, shows and changes own jobs."""

import os
import sys
from collections.abc import Sequence

from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.programs.listing import Row, duration, moment, reason_of, state_of, values_of
from loadmaster.slurm.programs.server import Server, ServerError
from loadmaster.slurm.scripts.nodelists import NodeListError, compress, expand

SCONTROL = Program.of(
    "scontrol",
    "a:all d:details F:future hide json? local o:oneliner Q:quiet sibling v:verbose V:version",
    "M:clusters u:uid",
)
LISTS = ("hostnames", "hostlist", "hostlistsorted")
ACTIONS = {
    "cancel": "cancel",
    "hold": "hold",
    "release": "release",
    "requeue": "requeue",
    "requeuehold": "hold",
    "uhold": "hold",
}
"""Action of the server for each of scontrol's words."""


def main() -> int:
    """Do as the command line says; return the exit code."""
    try:
        given, words = read_words(sys.argv[1:], COMMAND_LINE, SCONTROL)
        options = {one.name for one in given}
        _do(words, is_one_line="oneliner" in options)
    except (ScriptError, ServerError, NodeListError) as error:
        print(f"scontrol: error: {error}", file=sys.stderr)
        return 1
    return 0


def _do(words: Sequence[str], *, is_one_line: bool) -> None:
    verb = words[0] if words else ""
    rest = list(words[1:])
    entity = rest[0] if rest else ""
    if verb == "show" and entity in LISTS:
        _show_list(entity, rest[1:])
    elif verb == "show" and entity in ("job", "jobs"):
        _show_jobs(rest[1:], is_one_line=is_one_line)
    elif verb in ACTIONS and rest:
        server = Server.of_script()
        for reference in ",".join(rest).split(","):
            server.act(reference.removeprefix("JobId="), ACTIONS[verb])
    else:
        known = "show hostnames, show hostlist, show job, hold, release and requeue"
        raise ScriptError([f"{' '.join(words)[:60]!r} is not done here; there are {known}"])


def _show_list(what: str, words: Sequence[str]) -> None:
    """Print nodes, by default the job's: a line for each, or all as one list."""
    text = os.environ.get("SLURM_JOB_NODELIST", "")
    if words:
        text = words[0]
    names = expand(text)
    if what == "hostlistsorted":
        names.sort()
    print("\n".join(names) if what == "hostnames" else compress(names))


def _show_jobs(words: Sequence[str], *, is_one_line: bool) -> None:
    """Print the named jobs as Slurm does; if none is named, those that are not over."""
    numbers = [word.removeprefix("JobId=") for word in words]
    rows = Server.of_script().jobs(numbers)
    if numbers and not rows:
        raise ServerError("Invalid job id specified")
    for row in rows:
        lines = job_lines(row)
        print(" ".join(lines) if is_one_line else "\n   ".join(lines) + "\n")


def job_lines(row: Row) -> list[str]:
    """Return the lines about a job, of pairs Name=value, as `scontrol show job` writes them."""
    values = values_of(row)
    # Slurm writes CODE:SIGNAL; a code below 0 is a signal's.
    code = row["exit_code"] or 0
    exit_code = f"{code}:0" if code >= 0 else f"0:{-code}"
    first = f"JobId={row['number']}"
    if row["array"] is not None:
        first += f" ArrayJobId={row['array']} ArrayTaskId={row['index']}"
    limit_s = row["walltime_s"]
    limit = "UNLIMITED" if limit_s is None else _long_duration(limit_s)
    return [
        f"{first} JobName={row['name']}",
        f"UserId={row['user']}",
        f"Priority={row['priority']} Account=(null) QOS=(null)",
        f"JobState={state_of(row)[1]} Reason={reason_of(row)} Dependency=(null)",
        f"Requeue={int(row['preemptible'])} Restarts={row['restarts']} BatchFlag=1"
        f" ExitCode={exit_code}",
        f"RunTime={_long_duration(row['run_s'])} TimeLimit={limit}",
        f"SubmitTime={values['submitted']} EligibleTime={moment(row['begin_s'])}",
        f"StartTime={values['start']} EndTime={values['end']}",
        f"Partition={row['cluster']}",
        f"NodeList={values['nodelist'] or '(null)'}",
        f"BatchHost={row['nodes'][0] if row['nodes'] else '(null)'}",
        f"NumNodes={row['node_count']} NumCPUs={values['cpus']} NumTasks={row['units']}",
        f"WorkDir={row['folder']}",
        f"StdErr={row['error_output']}",
        "StdIn=/dev/null",
        f"StdOut={row['output']}",
    ]


def _long_duration(seconds: float) -> str:
    """Return a time with all its parts: 00:01:05, or 2-00:00:00."""
    text = duration(seconds)
    if "-" in text:
        return text
    return "00:00:00"[: 8 - len(text)] + text


if __name__ == "__main__":
    sys.exit(main())
