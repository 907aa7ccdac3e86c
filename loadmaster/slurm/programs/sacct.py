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
BRIEF = "JobID,State,ExitCode"

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
_FIELD = re.compile(r"([A-Za-z]+)(?:%(-?\d{1,4}))?")
_BATCH = ".batch"


def main() -> int:
    """Print the jobs that the command line asks for; return the exit code."""
    try:
        given, rest = read_words(sys.argv[1:], COMMAND_LINE, SACCT)
        options = {one.name: one.value for one in given}
        if rest:
            raise ScriptError([f"{rest[0]!r} is no option; give numbers of jobs by -j"])
        if "helpformat" in options:
            lines = _help()
        else:
            now = datetime.now().astimezone()
            references = [part for part in options.get("jobs", "").split(",") if part]
            numbers = [reference.partition(".")[0] for reference in references]
            since_s = None if numbers else _start_s(options, now)
            rows = Server.of_script().jobs_with_usage(numbers, since_s)
            lines = lines_of(_wanted(rows, options, now), options, references)
        for line in lines:
            print(line)
    except (ScriptError, ServerError, FormatError, ValueFormatError, NodeListError) as error:
        print(f"sacct: error: {error}", file=sys.stderr)
        return 1
    for name in sorted(options.keys() - USED):
        print(f"sacct: warning: --{name} has no meaning here", file=sys.stderr)
    return 0


def _start_s(options: Mapping[str, str], now: datetime) -> float | None:
    """Return the beginning of the time that is asked for; None for now.

    Without an option it is midnight, with --state alone now.
    """
    if "starttime" in options:
        return moment(options["starttime"], now).timestamp()
    if "state" in options:
        return None
    return now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def _wanted(rows: Sequence[Row], options: Mapping[str, str], now: datetime) -> list[Row]:
    """Return the jobs that fit the options."""
    states = {word.upper() for word in options.get("state", "").split(",") if word}
    end_s = now.timestamp()
    if "endtime" in options:
        end_s = moment(options["endtime"], now).timestamp()
    nodes = set(expand(options.get("nodelist", "")))
    fitting = []
    for row in rows:
        texts = {
            "accounts": row["team"],
            "name": row["name"],
            "partition": row["cluster"],
            "uid": row["user"],
            "user": row["user"],
        }
        is_other = any(
            name in options and text not in options[name].split(",") for name, text in texts.items()
        )
        if is_other or row["submitted_s"] > end_s:
            continue
        if states and not states & set(state_of(row)):
            continue
        if nodes and nodes.isdisjoint(row["ran_on"]):
            continue
        fitting.append(row)
    return fitting


def lines_of(
    rows: Sequence[Row], options: Mapping[str, str], references: Sequence[str] = ()
) -> list[str]:
    """Return the lines that sacct prints of these jobs.

    `references` may name a job's script alone, such as 12.batch.
    """
    # 1. The fields, as (name, width).
    usual = BRIEF if "brief" in options else os.environ.get("SACCT_FORMAT", FORMAT)
    fields = _fields(options.get("format", usual))

    # 2. The texts of each line.
    texts = []
    of_scripts = {part.removesuffix(_BATCH) for part in references if part.endswith(_BATCH)}
    whole = {part for part in references if "." not in part}
    for row in rows:
        names = {id_of(row), str(row["number"]), str(row["array"])}
        is_script_alone = bool(names & of_scripts) and not names & whole
        if not is_script_alone:
            texts.append(texts_of(row))
        if row["started_s"] is not None and "allocations" not in options:
            texts.append(texts_of_script(row))

    # 3. The lines: with separators, or in columns.
    if "parsable" in options or "parsable2" in options:
        separator = options.get("delimiter") or "|"
        end = separator if "parsable2" not in options else ""
        lines = [separator.join(text[name] for name, _ in fields) + end for text in texts]
        head = separator.join(name for name, _ in fields) + end
        return lines if "noheader" in options else [head, *lines]
    lines = [_line([text[name] for name, _ in fields], fields) for text in texts]
    if "noheader" in options:
        return lines
    head = _line([name for name, _ in fields], fields)
    return [head, " ".join("-" * abs(width) for _, width in fields) + " ", *lines]


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


def _line(texts: Sequence[str], fields: Sequence[tuple[str, int]]) -> str:
    """Return texts in their columns; one that is cut ends with +, as of Slurm."""
    line = ""
    for text, (_, width) in zip(texts, fields, strict=True):
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


def texts_of(row: Row) -> dict[str, str]:
    """Return the texts of a job by field."""
    listed = listing.values_of(row)
    has_started = row["started_s"] is not None
    cpus = int(listed["cpus"])
    elapsed_s = int(row["run_s"])
    limit_s = row["walltime_s"]
    nodes = compress(row["ran_on"])
    node_count = len(row["ran_on"]) or row["node_count"]
    trackable = _trackable(row, cpus, node_count)
    return {
        "Account": row["team"],
        "AllocCPUS": str(cpus if has_started else 0),
        "AllocNodes": str(node_count if has_started else 0),
        "AllocTRES": trackable if has_started else "",
        "Cluster": row["cluster"],
        "CPUTime": long_duration(elapsed_s * cpus if has_started else 0),
        "CPUTimeRAW": str(elapsed_s * cpus if has_started else 0),
        "DerivedExitCode": exit_code_of(row),
        "Elapsed": long_duration(elapsed_s),
        "ElapsedRaw": str(elapsed_s),
        "Eligible": _moment(row["begin_s"] or row["submitted_s"]),
        "End": _moment(row["ended_s"]),
        "ExitCode": exit_code_of(row),
        "JobID": id_of(row),
        "JobIDRaw": str(row["number"]),
        "JobName": row["name"],
        "MaxRSS": "",
        "NCPUS": str(cpus if has_started else 0),
        "NNodes": str(node_count),
        "NodeList": nodes or "None assigned",
        "NTasks": "",
        "Partition": row["cluster"],
        "Priority": str(row["priority"]),
        "QOS": "",
        "Reason": listed["reason"],
        "ReqCPUS": str(cpus),
        "ReqMem": _memory(row["memory_gb"]),
        "ReqNodes": str(row["node_count"]),
        "ReqTRES": trackable,
        "Start": _moment(row["started_s"]),
        "State": _state(row),
        "Submit": _moment(row["submitted_s"]),
        "Timelimit": "UNLIMITED" if limit_s is None else long_duration(limit_s),
        "TimelimitRaw": "" if limit_s is None else str(int(limit_s // 60)),
        "User": row["user"],
        "WorkDir": row["folder"],
    }


def texts_of_script(row: Row) -> dict[str, str]:
    """Return the texts of a job's script by field, as of the step `batch`."""
    texts = texts_of(row)
    for field in ("Partition", "Priority", "QOS", "Reason", "Timelimit", "TimelimitRaw", "User"):
        texts[field] = ""
    peak_gb = row.get("peak_memory_gb")
    texts["JobID"] += _BATCH
    texts["JobIDRaw"] += _BATCH
    texts["JobName"] = "batch"
    texts["MaxRSS"] = "" if peak_gb is None else f"{round(peak_gb * 1e9 / 1024)}K"
    texts["NTasks"] = "1"
    return texts


def _state(row: Row) -> str:
    """Return Slurm's word; a job that is being stopped still runs, as sacct sees it."""
    state = state_of(row)[1]
    return "RUNNING" if state in ("CONFIGURING", "COMPLETING") else state


def _moment(seconds: float | None) -> str:
    """Return date and time in the node's zone; Unknown if there is none."""
    return "Unknown" if seconds is None else listing.moment(seconds)


def _memory(amount_gb: float) -> str:
    """Return GB (1e9 bytes) in MiB or GiB as Slurm writes them: 500M, 4G."""
    mib = max(1, round(amount_gb * 1e9 / 2**20))
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _trackable(row: Row, cpus: int, nodes: int) -> str:
    """Return what a job has in all: billing=4,cpu=4,gres/gpu=2,mem=8G,node=1."""
    parts = [f"billing={cpus}", f"cpu={cpus}"]
    if row["gpus"]:
        parts.append(f"gres/gpu={row['gpus']}")
    parts += [f"mem={_memory(row['memory_gb'])}", f"node={nodes}"]
    return ",".join(parts)


if __name__ == "__main__":
    sys.exit(main())
