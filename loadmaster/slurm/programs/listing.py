"""Jobs in Slurm's words: states, reasons, times, and the columns of squeue."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

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
"""First line of each column."""

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

# A dot puts the text at the right of its column: %.10j.
_FIELD = re.compile(r"%(\.)?(\d{1,4})?([A-Za-z%])")
_LONG = re.compile(r"([A-Za-z-]+)(?::(\.)?(\d{1,4})?)?")


class FormatError(ValueError):
    """Unknown column in a format; the message names those that there are."""


def state_of(row: Row) -> tuple[str, str]:
    """Return Slurm's short and long word for a job's state."""
    if row["state"] == "failed" and "walltime" in row["failure"]:
        return TIMEOUT
    return STATES.get(row["state"], ("PD", "PENDING"))


def reason_of(row: Row) -> str:
    """Return Slurm's word for why a job waits; the word None for one that does not."""
    if row["state"] == "held":
        return "JobHeldUser"
    if state_of(row)[0] != "PD":
        return "None"
    return REASONS.get(row["waiting"], "Resources")


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
        "dependency": "(null)",
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
    return [_line(texts_of_row, format_text) for texts_of_row in texts]


def _line(texts: Mapping[str, str], format_text: str) -> str:
    """Return a format with the texts of its columns. Raises FormatError."""

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
    """Return the lines of squeue's --Format, such as JobID:10,State, by default 20 wide each."""
    columns = []
    for name in names.split(","):
        match = _LONG.fullmatch(name.strip())
        column = LONG_NAMES.get(match[1].lower()) if match else None
        if match is None or column is None:
            known = ", ".join(LONG_NAMES)
            raise FormatError(f"squeue has no column {name} here; there are {known}")
        columns.append((column, match[3] or "20", match[2]))
    texts = [values_of(row) for row in rows]
    if heads:
        texts.insert(0, HEADS)
    lines = []
    for texts_of_row in texts:
        line = ""
        for column, width, is_right in columns:
            line += _padded(texts_of_row[column], width, is_right)
        lines.append(line.rstrip())
    return lines


def _padded(text: str, width: str | None, is_right: str | None) -> str:
    """Return a text cut or filled to a width; `is_right` is the dot of a format, if any."""
    if not width:
        return text
    size = int(width)
    cut = text[:size]
    return cut.rjust(size) if is_right else cut.ljust(size)


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
