"""`scontrol` inside a batch script: writes out lists of nodes, shows and changes own jobs."""

import os
import sys
from collections import deque
from collections.abc import Sequence

from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.programs.listing import (
    Row,
    dependency_of,
    exit_code_of,
    long_duration,
    moment,
    reason_of,
    state_of,
    values_of,
)
from loadmaster.slurm.programs.server import Server, ServerError
from loadmaster.slurm.scripts.nodelists import NodeListError, compress, expand

SCONTROL = Program.of(
    "scontrol",
    "a:all d:details F:future hide json? local o:oneliner Q:quiet sibling v:verbose V:version",
    "M:clusters u:uid",
)
LISTS = ("hostnames", "hostlist", "hostlistsorted")
"""Lists of nodes that `scontrol show` writes out."""

ACTIONS = {
    "cancel": "cancel",
    "hold": "hold",
    "release": "release",
    "requeue": "requeue",
    "requeuehold": "hold",
    "uhold": "hold",
}
"""Action of the server for each of scontrol's words."""


UPDATES = {
    ("priority", "0"): "hold",
    ("priority", "-1"): "release",
}
"""Actions of the server that changes of a job by `scontrol update` stand for."""

OPTIONS_OF_CHANGES = {
    "arraytaskthrottle": "--array",
    "dependency": "--dependency",
    "eligibletime": "--begin",
    "features": "--constraint",
    "gres": "--gres",
    "jobname": "--job-name",
    "minmemorycpu": "--mem-per-cpu",
    "minmemorynode": "--mem",
    "name": "--job-name",
    "numcpus": "--ntasks",
    "numnodes": "--nodes",
    "numtasks": "--ntasks",
    "requeue": "--requeue",
    "starttime": "--begin",
    "timelimit": "--time",
    "workdir": "--chdir",
}
"""Options of sbatch by what `scontrol update` calls the same."""


def main() -> int:
    """Do as the command line says; return the exit code."""
    try:
        given_options, words = read_words(sys.argv[1:], COMMAND_LINE, SCONTROL)
        names = {option.name for option in given_options}
        _do(words, is_one_line="oneliner" in names)
    except (ScriptError, ServerError, NodeListError) as error:
        print(f"scontrol: error: {error}", file=sys.stderr)
        return 1
    return 0


def _do(words: Sequence[str], *, is_one_line: bool) -> None:
    """Do what the words after the options say. Raises ScriptError for other words."""
    verb = words[0] if words else ""
    rest = list(words[1:])
    entity = rest[0] if rest else ""
    if verb == "show" and entity in LISTS:
        _show_list(entity, rest[1:])
    elif verb == "show" and entity in ("job", "jobs"):
        _show_jobs(rest[1:], is_one_line=is_one_line)
    elif verb == "update" and rest:
        _update(rest)
    elif verb in ACTIONS and rest:
        server = Server.of_script()
        for reference in ",".join(rest).split(","):
            server.act(reference.removeprefix("JobId="), ACTIONS[verb])
    else:
        known = "show hostnames, show hostlist, show job, hold, release, requeue and update"
        raise ScriptError([f"{' '.join(words)[:60]!r} is not done here; there are {known}"])


def _update(words: Sequence[str]) -> None:
    """Hold or release the named jobs; all else of a job is as it was submitted."""
    # 1. The jobs, and what is to change.
    changes: dict[str, str] = {}
    references: list[str] = []
    remaining = deque(words)
    while remaining:
        name, equals, value = remaining.popleft().partition("=")
        if not equals and remaining:
            value = remaining.popleft()  # Slurm takes JobId 12, too
        if name.lower() in ("jobid", "job"):
            references += value.split(",")
        else:
            changes[name] = value
    if not references:
        raise ScriptError(["update is for jobs here; name them by JobId="])
    if not changes:
        raise ScriptError(["No changes specified"])

    # 2. Refuse what cannot be changed before anything is.
    actions = [_action_of(name, value, references[0]) for name, value in changes.items()]
    server = Server.of_script()
    for reference in references:
        for action in actions:
            server.act(reference, action)


def _action_of(name: str, value: str, reference: str) -> str:
    """Return the action that a change stands for. Raises ScriptError for any other change."""
    action = UPDATES.get((name.lower(), value.lower()))
    if action is not None:
        return action
    option = OPTIONS_OF_CHANGES.get(name.lower())
    remedy = f"cancel {reference}, and submit it again"
    if option is not None:
        remedy += f" with {option}={value[:40]}"
    raise ScriptError([f"{name[:40]} of a job stays as it was submitted; {remedy}"])


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
    first = f"JobId={row['number']}"
    if row["array"] is not None:
        first += f" ArrayJobId={row['array']} ArrayTaskId={row['index']}"
    limit_s = row["walltime_s"]
    limit = "UNLIMITED" if limit_s is None else long_duration(limit_s)
    return [
        f"{first} JobName={row['name']}",
        f"UserId={row['user']}",
        f"Priority={row['priority']} Account=(null) QOS=(null)",
        f"JobState={state_of(row)[1]} Reason={reason_of(row)} Dependency={dependency_of(row)}",
        f"Requeue={int(row['preemptible'])} Restarts={row['restarts']} BatchFlag=1"
        f" ExitCode={exit_code_of(row)}",
        f"RunTime={long_duration(row['run_s'])} TimeLimit={limit}",
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


if __name__ == "__main__":
    sys.exit(main())
