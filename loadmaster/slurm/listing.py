"""Jobs in Slurm's words: states, reasons, times, and the columns of squeue."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from loadmaster.slurm.nodelists import compress
from loadmaster.slurm.steps import ranges

Row = Mapping[str, Any]
"""Job as `jobs.rest.script_api` tells it."""

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
"""Slurm's words for why a job waits; for all others Resources."""

FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
"""Columns of squeue as Slurm has them."""

COLUMNS = {
    "A": "number", "C": "cpus", "D": "nodes", "E": "dependency", "F": "array", "K": "index",
    "L": "left", "M": "used", "N": "nodelist", "P": "partition", "Q": "priority", "R": "where",
    "S": "start", "T": "state", "V": "submitted", "Z": "folder", "a": "account", "b": "gres",
    "e": "end", "i": "id", "j": "name", "l": "limit", "m": "memory", "n": "name", "p": "priority",
    "q": "qos", "r": "reason", "t": "short", "u": "user",
}  # fmt: skip
"""Columns by the letters of squeue's --format."""

HEADS = {
    "account": "ACCOUNT", "array": "ARRAY_JOB_ID", "cpus": "CPUS", "dependency": "DEPENDENCY",
    "end": "END_TIME", "folder": "WORK_DIR", "gres": "TRES_PER_NODE", "id": "JOBID",
    "index": "ARRAY_TASK_ID", "left": "TIME_LEFT", "limit": "TIME_LIMIT", "memory": "MIN_MEMORY",
    "name": "NAME", "nodelist": "NODELIST", "nodes": "NODES", "number": "JOBID",
    "partition": "PARTITION", "priority": "PRIORITY", "qos": "QOS", "reason": "REASON",
    "short": "ST", "start": "START_TIME", "state": "STATE", "submitted": "SUBMIT_TIME",
    "used": "TIME", "user": "USER", "where": "NODELIST(REASON)",
}  # fmt: skip

LONG_NAMES = {
    "account": "account", "arrayjobid": "array", "arraytaskid": "index", "dependency": "dependency",
    "endtime": "end", "jobarrayid": "id", "jobid": "number", "minmemory": "memory", "name": "name",
    "nodelist": "nodelist", "numcpus": "cpus", "numnodes": "nodes", "partition": "partition",
    "priority": "priority", "prioritylong": "priority", "qos": "qos", "reason": "reason",
    "reasonlist": "where", "starttime": "start", "state": "state", "statecompact": "short",
    "submittime": "submitted", "timeleft": "left", "timelimit": "limit", "timeused": "used",
    "tres-per-node": "gres", "username": "user", "workdir": "folder",
}  # fmt: skip
"""Columns by the names of squeue's --Format."""

_FIELD = re.compile(r"%(\.)?(\d{1,4})?([A-Za-z%])")
_LONG = re.compile(r"([A-Za-z-]+)(?::(\.)?(\d{1,4})?)?")


class FormatError(ValueError):
    """Format that squeue has not; the message names the remedy."""


def state_of(row: Row) -> tuple[str, str]:
    """Slurm's short and long word for a job's state."""
    if row["state"] == "failed" and "walltime" in row["failure"]:
        return TIMEOUT
    return STATES.get(row["state"], ("PD", "PENDING"))


def reason_of(row: Row) -> str:
    """Slurm's word for why a job waits; None for one that does not."""
    if row["state"] == "held":
        return "JobHeldUser"
    if state_of(row)[0] != "PD":
        return "None"
    return REASONS.get(row["waiting"], "Resources")


def id_of(row: Row) -> str:
    """Number of a job, of an element ARRAY_INDEX."""
    return str(row["number"]) if row["array"] is None else f"{row['array']}_{row['index']}"


def values_of(row: Row) -> dict[str, str]:
    """Texts of all columns of a job."""
    short, long = state_of(row)
    reason = reason_of(row)
    nodelist = compress(row["nodes"])
    limit_s = row["walltime_s"]
    end_s = row["ended_s"]
    if end_s is None and row["started_s"] is not None and limit_s is not None:
        end_s = row["started_s"] + limit_s
    return {
        "account": "(null)",
        "array": str(row["array"] or row["number"]),
        "cpus": str(int(row["cores"] + 0.999)),
        "dependency": "(null)",
        "end": moment(end_s),
        "folder": row["folder"] or "(null)",
        "gres": f"gres:gpu:{row['gpus']}" if row["gpus"] else "N/A",
        "id": id_of(row),
        "index": "N/A" if row["index"] is None else _plain_index(row["index"]),
        "left": "UNLIMITED" if limit_s is None else duration(max(0.0, limit_s - row["run_s"])),
        "limit": "UNLIMITED" if limit_s is None else duration(limit_s),
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
        "where": nodelist if nodelist and short != "PD" else f"({reason})",
    }


def _plain_index(index: object) -> str:
    """Index of an element; of several that wait as one row without brackets: 1-3."""
    return str(index).strip("[]").partition("%")[0]


def duration(seconds: float) -> str:
    """Time as Slurm writes it: 0:05, 1:02:03, 2-00:00:00."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest_s:02}"
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def moment(seconds: float | None) -> str:
    """Time of day in the node's zone, N/A if there is none."""
    if seconds is None:
        return "N/A"
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%dT%H:%M:%S}"


def table(rows: Sequence[Row], format_text: str, *, heads: bool) -> list[str]:
    """Lines of squeue's --format, such as "%.18i %j"; `heads`: a line of names first."""
    lines = [_line(HEADS, format_text)] if heads else []
    return [*lines, *(_line(values_of(row), format_text) for row in rows)]


def _line(texts: Mapping[str, str], format_text: str) -> str:
    def text(match: re.Match[str]) -> str:
        is_right, width, letter = match.groups()
        if letter == "%":
            return "%"
        if letter not in COLUMNS:
            known = ", ".join(f"%{known}" for known in COLUMNS)
            raise FormatError(f"squeue has no %{letter} here; there are {known}")
        return _padded(texts[COLUMNS[letter]], width, is_right)

    return _FIELD.sub(text, format_text).rstrip()


def long_table(rows: Sequence[Row], names: str, *, heads: bool) -> list[str]:
    """Lines of squeue's --Format, such as JobID:10,State; a column without a width has 20."""
    columns = []
    for name in names.split(","):
        match = _LONG.fullmatch(name.strip())
        column = LONG_NAMES.get(match[1].lower()) if match else None
        if match is None or column is None:
            known = ", ".join(LONG_NAMES)
            raise FormatError(f"squeue has no column {name} here; there are {known}")
        columns.append((column, match[3] or "20", match[2]))
    texts = [HEADS] if heads else []
    return [
        "".join(_padded(of[column], width, right) for column, width, right in columns).rstrip()
        for of in [*texts, *map(values_of, rows)]
    ]


def _padded(text: str, width: str | None, is_right: str | None) -> str:
    if not width:
        return text
    size = int(width)
    return text[:size].rjust(size) if is_right else text[:size].ljust(size)


def folded(rows: Sequence[Row]) -> list[Row]:
    """Rows in which the elements of an array that wait for one reason are one: 7_[1-3,5%2]."""
    found: list[Row] = []
    waiting: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row["array"] is not None and state_of(row)[0] == "PD":
            waiting.setdefault((row["array"], reason_of(row)), []).append(row)
        else:
            found.append(row)
    together = []
    for elements in waiting.values():
        indices = ranges(sorted(row["index"] for row in elements))
        limit = f"%{elements[0]['at_once']}" if elements[0]["at_once"] else ""
        together.append({**elements[0], "index": f"[{indices}{limit}]"})
    return [*together, *found]
