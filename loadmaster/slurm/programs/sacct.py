"""`sacct` inside a batch script: lists jobs of the script's user in its team, ended ones too.

A job has a line of its own, and once it has started one for its script, `12.batch`. Its steps are
not listed.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.options.values import ValueFormatError
from loadmaster.slurm.programs import listing
from loadmaster.slurm.programs.columns import FormatError
from loadmaster.slurm.programs.listing import Row, exit_code_of, id_of, long_duration, state_of
from loadmaster.slurm.programs.server import Server, ServerError
from loadmaster.slurm.scripts.nodelists import NodeListError, compress, expand

SACCT = Program.of(
    "sacct",
    """
    L:allclusters X:allocations a:allusers B:batch-script b:brief c:completion D:duplicates env-vars
    federation e:helpformat json? local l:long noconvert n:noheader p:parsable P:parsable2
    T:truncate usage use-local-uid v:verbose V:version yaml? whole-hetjob?
    """,
    """
    A:accounts x:associations M:clusters C:constraints delimiter E:endtime f:file F:flags o:format
    g:gid group j:jobs name i:nnodes I:ncpus N:nodelist r:partition q:qos R:reason S:starttime
    s:state K:timelimit-max k:timelimit-min u:user uid units W:wckeys
    """,
)
USED = frozenset({
    "accounts", "allocations", "allusers", "brief", "delimiter", "duplicates", "endtime", "format",
    "helpformat", "jobs", "local", "name", "nodelist", "noconvert", "noheader", "parsable",
    "parsable2", "partition", "starttime", "state", "uid", "user", "verbose",
})  # fmt: skip  # a long list of names
"""Options that have a meaning here; a warning names all others."""

FORMAT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
"""Fields without an option, as of Slurm."""

BRIEF = "JobID,State,ExitCode"
"""Fields of --brief."""

WIDTHS = {
    "Account": 10, "AllocCPUS": 10, "AllocNodes": 10, "AllocTRES": 10, "Cluster": 10,
    "CPUTime": 10, "CPUTimeRAW": 10, "DerivedExitCode": 15, "Elapsed": 10, "ElapsedRaw": 10,
    "Eligible": 19, "End": 19, "ExitCode": 8, "JobID": -12, "JobIDRaw": -12, "JobName": 10,
    "MaxRSS": 10, "NCPUS": 10, "NNodes": 8, "NodeList": 15, "NTasks": 8, "Partition": 10,
    "Priority": 10, "QOS": 10, "Reason": 22, "ReqCPUS": 8, "ReqMem": 10, "ReqNodes": 8,
    "ReqTRES": 10, "Start": 19, "State": 10, "Submit": 19, "Timelimit": 10, "TimelimitRaw": 10,
    "User": 9, "WorkDir": 20,
}  # fmt: skip  # a table, to be read by columns
"""Width of each field, below 0 for texts at the left of their column."""

_NAMES = {name.lower(): name for name in WIDTHS}
"""Fields by their names in small letters."""

_FIELD = re.compile(r"([A-Za-z]+)(?:%(-?\d{1,4}))?")
"""Name and width of a field in a format: state%20."""

_BATCH = ".batch"
"""Suffix that makes of a job's number that of its script."""


def main() -> int:
    """Print the jobs that the command line asks for; return the exit code."""
    try:
        given_options, rest = read_words(sys.argv[1:], COMMAND_LINE, SACCT)
        options = {option.name: option.value for option in given_options}
        if rest:
            raise ScriptError([f"{rest[0]!r} is no option; give numbers of jobs by -j"])
        lines = _help() if "helpformat" in options else _listing(options)
        for line in lines:
            print(line)
    except (ScriptError, ServerError, FormatError, ValueFormatError, NodeListError) as error:
        print(f"sacct: error: {error}", file=sys.stderr)
        return 1
    for name in sorted(options.keys() - USED):
        print(f"sacct: warning: --{name} has no meaning here", file=sys.stderr)
    return 0


def _listing(options: Mapping[str, str]) -> list[str]:
    """Ask the server for the jobs that the options name, and return their lines."""
    now = datetime.now().astimezone()
    references = [reference for reference in options.get("jobs", "").split(",") if reference]
    numbers = [reference.partition(".")[0] for reference in references]  # 12 of 12.batch
    since_s = None if numbers else _start_s(options, now)
    jobs = Server.of_script().jobs_with_usage(numbers, since_s)
    return lines_of(_matching(jobs, options, now), options, references)


def _start_s(options: Mapping[str, str], now: datetime) -> float | None:
    """Return the beginning of the time that is asked for, in epoch seconds; None for now.

    Without an option it is midnight, with --state alone now.
    """
    if "starttime" in options:
        return moment(options["starttime"], now).timestamp()
    if "state" in options:
        return None
    return now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def _matching(jobs: Sequence[Row], options: Mapping[str, str], now: datetime) -> list[Row]:
    """Return the jobs that satisfy the options."""
    states = {word.upper() for word in options.get("state", "").split(",") if word}
    end_s = now.timestamp()
    if "endtime" in options:
        end_s = moment(options["endtime"], now).timestamp()
    nodes = set(expand(options.get("nodelist", "")))
    matching = []
    for job in jobs:
        if job["submitted_s"] > end_s or not _has_listed_values(job, options):
            continue
        if states and states.isdisjoint(state_of(job)):
            continue
        if nodes and nodes.isdisjoint(job["ran_on"]):
            continue
        matching.append(job)
    return matching


def _has_listed_values(job: Row, options: Mapping[str, str]) -> bool:
    """Return True unless an option lists values such as names, and not the job's own."""
    values = {
        "accounts": job["team"],
        "name": job["name"],
        "partition": job["cluster"],
        "uid": job["user"],
        "user": job["user"],
    }
    for option, value in values.items():
        if option in options and value not in options[option].split(","):
            return False
    return True


def lines_of(
    jobs: Sequence[Row], options: Mapping[str, str], references: Sequence[str] = ()
) -> list[str]:
    """Return the lines that sacct prints of these jobs.

    `references`: values of --jobs. One such as 12.batch names a job's script without the job.
    """
    # 1. The fields, as (name, width).
    usual = BRIEF if "brief" in options else os.environ.get("SACCT_FORMAT", FORMAT)
    fields = _fields(options.get("format", usual))

    # 2. The texts of each line.
    texts_by_line = []
    numbers_of_scripts = {part.removesuffix(_BATCH) for part in references if part.endswith(_BATCH)}
    numbers_of_jobs = {part for part in references if "." not in part}
    for job in jobs:
        numbers = {id_of(job), str(job["number"]), str(job["array"])}
        is_script_alone = numbers & numbers_of_scripts and not numbers & numbers_of_jobs
        if not is_script_alone:
            texts_by_line.append(texts_of(job))
        has_started = job["started_s"] is not None
        if has_started and "allocations" not in options:
            texts_by_line.append(texts_of_script(job))

    # 3. The lines, with separators between the fields ...
    names = [name for name, _ in fields]
    rows = [[texts[name] for name in names] for texts in texts_by_line]
    if "parsable" in options or "parsable2" in options:
        separator = options.get("delimiter") or "|"
        end = "" if "parsable2" in options else separator
        if "noheader" not in options:
            rows.insert(0, names)
        return [separator.join(row) + end for row in rows]

    # 4. ... or in columns.
    widths = [width for _, width in fields]
    lines = [_line(row, widths) for row in rows]
    if "noheader" in options:
        return lines
    rule = " ".join("-" * abs(width) for width in widths)
    return [_line(names, widths), f"{rule} ", *lines]


def _fields(text: str) -> list[tuple[str, int]]:
    """Return (name, width) of the fields of a format such as jobid,state%20. FormatError."""
    fields = []
    for part in text.split(","):
        match = _FIELD.fullmatch(part.strip())
        name = _NAMES.get(match[1].lower()) if match else None
        if match is None or name is None:
            known = ", ".join(WIDTHS)
            raise FormatError(f"sacct has no field {part.strip()[:40]} here; there are {known}")
        width = int(match[2]) if match[2] else WIDTHS[name]
        fields.append((name, width))
    return fields


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return texts in columns of these widths; one that is cut ends with +, as of Slurm."""
    line = ""
    for text, width in zip(texts, widths, strict=True):
        size = abs(width)
        if len(text) > size:
            text = text[: size - 1] + "+"
        line += text.ljust(size) if width < 0 else text.rjust(size)
        line += " "
    return line


def _help() -> list[str]:
    """Return the names of all fields, four in a line."""
    names = sorted(WIDTHS)
    lines = []
    for start in range(0, len(names), 4):
        lines.append(" ".join(name.ljust(19) for name in names[start : start + 4]).rstrip())
    return lines


def texts_of(job: Row) -> dict[str, str]:
    """Return the texts of a job's line by field."""
    listed = listing.values_of(job)
    has_started = job["started_s"] is not None
    cpus = int(listed["cpus"])
    elapsed_s = int(job["run_s"])
    limit_s = job["walltime_s"]
    nodes = compress(job["ran_on"])
    node_count = len(job["ran_on"]) or job["node_count"]
    resources = _resources(job, cpus, node_count)
    return {
        "Account": job["team"],
        "AllocCPUS": str(cpus if has_started else 0),
        "AllocNodes": str(node_count if has_started else 0),
        "AllocTRES": resources if has_started else "",
        "Cluster": job["cluster"],
        "CPUTime": long_duration(elapsed_s * cpus if has_started else 0),
        "CPUTimeRAW": str(elapsed_s * cpus if has_started else 0),
        "DerivedExitCode": exit_code_of(job),
        "Elapsed": long_duration(elapsed_s),
        "ElapsedRaw": str(elapsed_s),
        "Eligible": _moment(job["begin_s"] or job["submitted_s"]),
        "End": _moment(job["ended_s"]),
        "ExitCode": exit_code_of(job),
        "JobID": id_of(job),
        "JobIDRaw": str(job["number"]),
        "JobName": job["name"],
        "MaxRSS": "",
        "NCPUS": str(cpus if has_started else 0),
        "NNodes": str(node_count),
        "NodeList": nodes or "None assigned",
        "NTasks": "",
        "Partition": job["cluster"],
        "Priority": str(job["priority"]),
        "QOS": "",
        "Reason": listed["reason"],
        "ReqCPUS": str(cpus),
        "ReqMem": _memory(job["memory_gb"]),
        "ReqNodes": str(job["node_count"]),
        "ReqTRES": resources,
        "Start": _moment(job["started_s"]),
        "State": _state(job),
        "Submit": _moment(job["submitted_s"]),
        "Timelimit": "UNLIMITED" if limit_s is None else long_duration(limit_s),
        "TimelimitRaw": "" if limit_s is None else str(int(limit_s // 60)),
        "User": job["user"],
        "WorkDir": job["folder"],
    }


def texts_of_script(job: Row) -> dict[str, str]:
    """Return the texts of a job's script by field: those of Slurm's step `batch`."""
    texts = texts_of(job)
    for field in ("Partition", "Priority", "QOS", "Reason", "Timelimit", "TimelimitRaw", "User"):
        texts[field] = ""
    peak_gb = job.get("peak_memory_gb")
    texts["JobID"] += _BATCH
    texts["JobIDRaw"] += _BATCH
    texts["JobName"] = "batch"
    texts["MaxRSS"] = "" if peak_gb is None else f"{round(peak_gb * 1e9 / 1024)}K"
    texts["NTasks"] = "1"
    return texts


def _state(job: Row) -> str:
    """Return Slurm's long word; for sacct a job that starts or stops is running."""
    _, state = state_of(job)
    return "RUNNING" if state in ("CONFIGURING", "COMPLETING") else state


def _moment(seconds: float | None) -> str:
    """Return date and time in the node's zone; Unknown if there is none."""
    return "Unknown" if seconds is None else listing.moment(seconds)


def _memory(amount_gb: float) -> str:
    """Return GB (1e9 bytes) in MiB or GiB as Slurm writes them: 500M, 4G."""
    mib = max(1, round(amount_gb * 1e9 / 2**20))
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _resources(job: Row, cpus: int, nodes: int) -> str:
    """Return all resources of a job: billing=4,cpu=4,gres/gpu=2,mem=8G,node=1."""
    parts = [f"billing={cpus}", f"cpu={cpus}"]
    if job["gpus"]:
        parts.append(f"gres/gpu={job['gpus']}")
    parts += [f"mem={_memory(job['memory_gb'])}", f"node={nodes}"]
    return ",".join(parts)


if __name__ == "__main__":
    sys.exit(main())
