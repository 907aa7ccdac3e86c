"""Jobs in Slurm's words: states, reasons, times, and the columns of squeue."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from loadmaster.slurm.programs.columns import line_of, long_line
from loadmaster.slurm.scripts.nodelists import compress
from loadmaster.slurm.steps.running import ranges

Row = Mapping[str, Any]
"""Job as `jobs.rest.script_api` answers with it."""

STATES = {
    "held": ("PD", "PENDING"),
    "profiling": ("PD", "PENDING"),
    "queued": ("PD", "PENDING"),
    "starting": ("CF", "CONFIGURING"),
    "running": ("R", "RUNNING"),
    "stopping": ("CG", "COMPLETING"),
    "cancelling": ("CG", "COMPLETING"),
    "completed": ("CD", "COMPLETED"),
    "failed": ("F", "FAILED"),
    "cancelled": ("CA", "CANCELLED"),
}
"""Slurm's short and long word for each state."""

TIMEOUT = ("TO", "TIMEOUT")
DEADLINE = ("DL", "DEADLINE")
FAILURES = {
    "oom": ("OOM", "OUT_OF_MEMORY"),
    "gpu": ("NF", "NODE_FAIL"),
    "node": ("NF", "NODE_FAIL"),
    "lease": ("NF", "NODE_FAIL"),
}
"""Slurm's words for a failed job, by the class of its last launch's failure."""

REASONS = {
    "array_limit": "JobArrayTaskLimit",
    "begins_later": "BeginTime",
    "dependency": "Dependency",
    "label_unavailable": "BadConstraints",
    "no_capacity": "Resources",
    "nodes_lost": "ReqNodeNotAvail",
    "nodes_unavailable": "ReqNodeNotAvail",
    "reserved": "Priority",
    "team_limit": "AssocGrpGRES",
}
"""Slurm's words for the codes of waiting jobs; Resources for all others."""

FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
"""Columns of squeue without an option, as of Slurm."""

COLUMNS = {
    "A": "number", "C": "cpus", "D": "nodes", "E": "dependency", "F": "array", "K": "index",
    "L": "left", "M": "used", "N": "nodelist", "P": "partition", "Q": "priority", "R": "where",
    "S": "start", "T": "state", "V": "submitted", "Z": "folder", "a": "account", "b": "gres",
    "e": "end", "i": "id", "j": "name", "l": "limit", "m": "memory", "n": "name", "p": "priority",
    "q": "qos", "r": "reason", "t": "short", "u": "user",
}  # fmt: skip  # a table, to be read by columns
"""Columns by the letters of squeue's --format."""

HEADS = {
    "account": "ACCOUNT", "array": "ARRAY_JOB_ID", "cpus": "CPUS", "dependency": "DEPENDENCY",
    "end": "END_TIME", "folder": "WORK_DIR", "gres": "TRES_PER_NODE", "id": "JOBID",
    "index": "ARRAY_TASK_ID", "left": "TIME_LEFT", "limit": "TIME_LIMIT", "memory": "MIN_MEMORY",
    "name": "NAME", "nodelist": "NODELIST", "nodes": "NODES", "number": "JOBID",
    "partition": "PARTITION", "priority": "PRIORITY", "qos": "QOS", "reason": "REASON",
    "short": "ST", "start": "START_TIME", "state": "STATE", "submitted": "SUBMIT_TIME",
    "used": "TIME", "user": "USER", "where": "NODELIST(REASON)",
}  # fmt: skip  # a table, to be read by columns
"""First line of each column."""

LONG_NAMES = {
    "account": "account", "arrayjobid": "array", "arraytaskid": "index", "dependency": "dependency",
    "endtime": "end", "jobarrayid": "id", "jobid": "number", "minmemory": "memory", "name": "name",
    "nodelist": "nodelist", "numcpus": "cpus", "numnodes": "nodes", "partition": "partition",
    "priority": "priority", "prioritylong": "priority", "qos": "qos", "reason": "reason",
    "reasonlist": "where", "starttime": "start", "state": "state", "statecompact": "short",
    "submittime": "submitted", "timeleft": "left", "timelimit": "limit", "timeused": "used",
    "tres-per-node": "gres", "username": "user", "workdir": "folder",
}  # fmt: skip  # a table, to be read by columns
"""Columns by the names of squeue's --Format."""


def state_of(row: Row) -> tuple[str, str]:
    """Return Slurm's short and long word for a job's state."""
    if row["state"] == "failed":
        if "walltime" in row["failure"]:
            return TIMEOUT
        if "deadline" in row["failure"]:
            return DEADLINE
        return FAILURES.get(row.get("blame", ""), STATES["failed"])
    return STATES.get(row["state"], ("PD", "PENDING"))


def reason_of(row: Row) -> str:
    """Return Slurm's word for why a job waits; the word None for one that does not."""
    if row["state"] == "held":
        return "JobHeldUser"
    if state_of(row)[0] != "PD":
        return "None"
    return REASONS.get(row["waiting"], "Resources")


def dependency_of(row: Row) -> str:
    """Return what a job still waits for: afterok:12(unfulfilled), or (null)."""
    conditions: list[str] = row.get("dependencies", [])
    texts = [condition.replace("?", "(unfulfilled)?") for condition in conditions]
    return ",".join(f"{text}(unfulfilled)" for text in texts) or "(null)"


def id_of(row: Row) -> str:
    """Return a job's number, or ARRAY_INDEX of an element."""
    if row["array"] is None:
        return str(row["number"])
    return f"{row['array']}_{row['index']}"


def values_of(row: Row) -> dict[str, str]:
    """Return the texts of all columns of a job by name."""
    short, long = state_of(row)
    nodelist = compress(row["nodes"])
    reason = reason_of(row)
    where = f"({reason})"
    if nodelist and short != "PD":
        where = nodelist

    # A job that runs ends at its time limit at the latest.
    limit_s = row["walltime_s"]
    limit = "UNLIMITED"
    left = "UNLIMITED"
    end_s = row["ended_s"]
    if limit_s is not None:
        limit = duration(limit_s)
        left = duration(max(0.0, limit_s - row["run_s"]))
        if end_s is None and row["started_s"] is not None:
            end_s = row["started_s"] + limit_s
    return {
        "account": "(null)",
        "array": str(row["array"] or row["number"]),
        "cpus": str(int(row["cores"] + 0.999)),  # rounded up
        "dependency": dependency_of(row),
        "end": moment(end_s),
        "folder": row["folder"] or "(null)",
        "gres": f"gres:gpu:{row['gpus']}" if row["gpus"] else "N/A",
        "id": id_of(row),
        "index": "N/A" if row["index"] is None else _plain_index(row["index"]),
        "left": left,
        "limit": limit,
        "memory": f"{row['memory_gb']:g}G",
        "name": row["name"],
        "nodelist": nodelist,
        "nodes": str(row["node_count"]),
        "number": str(row["number"]),
        "partition": row["cluster"],
        "priority": str(row["priority"]),
        "qos": "(null)",
        "reason": reason,
        "short": short,
        "start": moment(row["started_s"]),
        "state": long,
        "submitted": moment(row["submitted_s"]),
        "used": duration(row["run_s"]),
        "user": row["user"],
        "where": where,
    }


def _plain_index(index: object) -> str:
    """Return the index of an element, or 1-3 for the row [1-3%2] of several that wait."""
    return str(index).strip("[]").partition("%")[0]


def duration(seconds: float) -> str:
    """Return a time as Slurm writes it: 0:05, 1:02:03, 2-00:00:00."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest_s:02}"
    if hours:
        return f"{hours}:{minutes:02}:{rest_s:02}"
    return f"{minutes}:{rest_s:02}"


def long_duration(seconds: float) -> str:
    """Return a time with all its parts: 00:01:05, or 2-00:00:00."""
    text = duration(seconds)
    if "-" in text:
        return text
    return "00:00:00"[: 8 - len(text)] + text


def exit_code_of(row: Row) -> str:
    """Return CODE:SIGNAL as Slurm writes it; a code below 0 is a signal's."""
    code = row["exit_code"] or 0
    return f"{code}:0" if code >= 0 else f"0:{-code}"


def moment(seconds: float | None) -> str:
    """Return date and time in the node's zone, N/A if there is none."""
    if seconds is None:
        return "N/A"
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%dT%H:%M:%S}"


def table(rows: Sequence[Row], format_text: str, *, heads: bool) -> list[str]:
    """Return the lines of squeue's --format, such as "%.18i %j"; `heads`: a line of names first."""
    texts = [values_of(row) for row in rows]
    if heads:
        texts.insert(0, HEADS)
    return [line_of(texts_of_row, COLUMNS, format_text, "squeue") for texts_of_row in texts]


def long_table(rows: Sequence[Row], names: str, *, heads: bool) -> list[str]:
    """Return the lines of squeue's --Format, such as JobID:10,State, by default 20 wide each."""
    texts = [values_of(row) for row in rows]
    if heads:
        texts.insert(0, HEADS)
    return [long_line(texts_of_row, LONG_NAMES, names, "squeue") for texts_of_row in texts]


def folded(rows: Sequence[Row]) -> list[Row]:
    """Return rows with one for all elements of an array that wait for one reason: 7_[1-3,5%2]."""
    others: list[Row] = []
    waiting: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row["array"] is not None and state_of(row)[0] == "PD":
            waiting.setdefault((row["array"], reason_of(row)), []).append(row)
        else:
            others.append(row)
    together: list[Row] = []
    for elements in waiting.values():
        first = elements[0]
        indices = ranges(sorted(row["index"] for row in elements))
        limit = f"%{first['at_once']}" if first["at_once"] else ""
        together.append({**first, "index": f"[{indices}{limit}]"})
    return [*together, *others]
