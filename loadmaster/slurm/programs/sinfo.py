"""`sinfo` inside a batch script: lists the nodes of its cluster, which is one partition."""

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import loadmaster
from loadmaster.slurm.options.reading import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.programs.columns import FormatError, letters_of, line_of, long_line
from loadmaster.slurm.programs.server import Server, ServerError
from loadmaster.slurm.scripts.nodelists import NodeListError, compress, expand

Row = Mapping[str, Any]
"""Node as `jobs.rest.script_rows` answers with it."""

SINFO = Program.of(
    "sinfo",
    """
    a:all d:dead e:exact F:future federation h:noheader hide json? yaml? R:list-reasons l:long local
    N:Node noconvert r:responding s:summarize T:reservation v:verbose V:version usage
    """,
    "i:iterate M:clusters n:nodes o:format O:Format p:partition S:sort t:states",
)
USED = frozenset({
    "Format", "Node", "all", "dead", "exact", "format", "hide", "list-reasons", "local", "long",
    "noconvert", "nodes", "noheader", "partition", "responding", "states", "summarize", "verbose",
})  # fmt: skip  # a long list of names
"""Options that have a meaning here; a warning names all others."""

STATES = {
    "down": "down", "drng": "draining", "drain": "drained", "mix": "mixed", "alloc": "allocated",
    "idle": "idle",
}  # fmt: skip  # a table, to be read by columns
"""Slurm's long word for each short one, in the order in which sinfo prints them."""

FILTERS = {
    "ALLOC": ("alloc",), "ALLOCATED": ("alloc",), "DOWN": ("down",), "DRAIN": ("drng", "drain"),
    "DRAINED": ("drain",), "DRAINING": ("drng",), "DRNG": ("drng",), "IDLE": ("idle",),
    "MIX": ("mix",), "MIXED": ("mix",),
}  # fmt: skip  # a table, to be read by columns
"""States by the words of --states."""

OTHER_STATES = frozenset({
    "CLOUD", "COMP", "COMPLETING", "FAIL", "FAILING", "FUTR", "FUTURE", "INVAL", "MAINT",
    "NO_RESPOND", "NPC", "PERFCTRS", "PLANNED", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP",
    "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "RESV", "UNK",
    "UNKNOWN",
})  # fmt: skip  # a long list of names
"""Slurm's other states, in which no node is here."""

COLUMNS = {
    "A": "nodes_ai", "B": "max_cpus", "C": "cpus_aiot", "D": "nodes", "E": "reason",
    "F": "nodes_aiot", "G": "gres", "H": "timestamp", "I": "one", "L": "default_time",
    "M": "preempt", "N": "nodelist", "O": "load", "P": "partition", "R": "partition_name",
    "S": "alloc_nodes", "T": "long_state", "U": "user", "V": "cluster", "X": "sockets",
    "Y": "cores", "Z": "threads", "a": "available", "b": "active_features", "c": "cpus",
    "d": "disk", "e": "free", "f": "features", "g": "groups", "h": "oversubscribe", "l": "limit",
    "m": "memory", "n": "hostnames", "o": "addresses", "p": "tier", "r": "root", "s": "size",
    "t": "state", "u": "user", "v": "version", "w": "weight", "z": "sct",
}  # fmt: skip  # a table, to be read by columns
"""Columns by the letters of --format."""

HEADS = {
    "active_features": "ACTIVE_FEATURES", "addresses": "NODE_ADDR", "alloc_nodes": "ALLOCNODES",
    "available": "AVAIL", "cluster": "CLUSTER", "cores": "CORES", "cpus": "CPUS",
    "cpus_aiot": "CPUS(A/I/O/T)", "default_time": "DEFAULTTIME", "disk": "TMP_DISK",
    "features": "AVAIL_FEATURES", "free": "FREE_MEM", "gres": "GRES", "groups": "GROUPS",
    "hostnames": "HOSTNAMES", "limit": "TIMELIMIT", "load": "CPU_LOAD", "long_state": "STATE",
    "max_cpus": "MAX_CPUS_PER_NODE", "memory": "MEMORY", "nodelist": "NODELIST", "nodes": "NODES",
    "nodes_ai": "NODES(A/I)", "nodes_aiot": "NODES(A/I/O/T)", "one": "PRIO_JOB_FACTOR",
    "oversubscribe": "OVERSUBSCRIBE", "partition": "PARTITION", "partition_name": "PARTITION",
    "preempt": "PREEMPT_MODE", "reason": "REASON", "root": "ROOT", "sct": "S:C:T",
    "size": "JOB_SIZE", "sockets": "SOCKETS", "state": "STATE", "threads": "THREADS",
    "tier": "PRIO_TIER", "timestamp": "TIMESTAMP", "user": "USER", "version": "VERSION",
    "weight": "WEIGHT",
}  # fmt: skip  # a table, to be read by columns
"""First line of each column."""

LONG_NAMES = {
    "available": "available", "cores": "cores", "cpus": "cpus", "cpusload": "load",
    "cpusstate": "cpus_aiot", "defaulttime": "default_time", "disk": "disk",
    "features": "features", "features_act": "active_features", "freemem": "free", "gres": "gres",
    "groups": "groups", "memory": "memory", "nodeaddr": "addresses", "nodeai": "nodes_ai",
    "nodeaiot": "nodes_aiot", "nodehost": "hostnames", "nodelist": "nodelist", "nodes": "nodes",
    "oversubscribe": "oversubscribe", "partition": "partition", "partitionname": "partition_name",
    "reason": "reason", "root": "root", "size": "size", "socketcorethread": "sct",
    "sockets": "sockets", "statecompact": "state", "statelong": "long_state",
    "threads": "threads", "time": "limit", "timestamp": "timestamp", "user": "user",
    "version": "version", "weight": "weight",
}  # fmt: skip  # a table, to be read by columns
"""Columns by the names of --Format."""

CONSTANTS = {
    "alloc_nodes": "all", "available": "up", "default_time": "n/a", "disk": "0", "free": "N/A",
    "cores": "1", "groups": "all", "limit": "infinite", "load": "N/A", "max_cpus": "UNLIMITED",
    "one": "1", "oversubscribe": "NO", "preempt": "OFF", "root": "no", "size": "1-infinite",
    "threads": "1", "tier": "1", "timestamp": "Unknown", "user": "Unknown", "weight": "1",
    "version": loadmaster.__version__,
}  # fmt: skip  # a table, to be read by columns
"""Texts that are the same for all nodes."""

LEAST_WIDTH = 9
"""Least width of a column that is as wide as its longest name."""


COMPARED_COLUMNS = (
    "state", "long_state", "reason", "gres", "features", "active_features", "hostnames",
    "addresses", "cpus", "sockets", "memory", "sct",
)  # fmt: skip  # a long list of names
"""Columns in which nodes differ: those with the same texts there are listed in one line."""

LEAST_COLUMNS = ("cpus", "sockets", "memory", "sct")
"""Columns that say the least of several nodes, such as 8+, unless --exact is given."""


def main() -> int:
    """Print the nodes that the command line asks for; return the exit code."""
    try:
        given_options, _ = read_words(sys.argv[1:], COMMAND_LINE, SINFO)
        options = {option.name: option.value for option in given_options}
        for line in lines_of(Server.of_script().nodes(), options):
            print(line)
    except (ScriptError, ServerError, FormatError, NodeListError) as error:
        print(f"sinfo: error: {error}", file=sys.stderr)
        return 1
    for name in sorted(options.keys() - USED):
        print(f"sinfo: warning: --{name} has no meaning here", file=sys.stderr)
    return 0


def lines_of(rows: Sequence[Row], options: Mapping[str, str]) -> list[str]:
    """Return the lines that sinfo prints with these options."""
    # 1. The nodes, and the columns.
    states = _states(options.get("states", "all"))
    nodes = [row for row in rows if _is_wanted(row, options) and state_of(row) in states]
    format_text = options.get("format", _usual_format(options))
    columns = _columns(format_text, options)

    # 2. Nodes whose texts are the same in all columns are one line. A partition without nodes has
    #    a line as well.
    texts_by_line = [texts_of(group) for group in _groups(nodes, columns, options)]
    if not texts_by_line and "Node" not in options and "list-reasons" not in options:
        partitions = {row["cluster"] for row in rows if _is_of_partition(row, options)}
        texts_by_line = [_texts_without_nodes(partition) for partition in sorted(partitions)]
    if "noheader" not in options:
        texts_by_line.insert(0, HEADS)

    # 3. The lines.
    if "Format" in options:
        long_format = options["Format"]
        return [long_line(texts, LONG_NAMES, long_format, "sinfo") for texts in texts_by_line]
    format_text = _with_widths(format_text, texts_by_line)
    return [line_of(texts, COLUMNS, format_text, "sinfo") for texts in texts_by_line]


def _columns(format_text: str, options: Mapping[str, str]) -> set[str]:
    """Return the columns of --Format, or else of this format; "" for each unknown one."""
    columns = set()
    if "Format" in options:
        for field in options["Format"].split(","):
            name = field.partition(":")[0].strip().lower()
            columns.add(LONG_NAMES.get(name, ""))
    else:
        for letter in letters_of(format_text):
            columns.add(COLUMNS.get(letter, ""))
    return columns


def _usual_format(options: Mapping[str, str]) -> str:
    """Return the format of sinfo without --format; `#` stands for the width of the names."""
    if "list-reasons" in options:
        return "%20E %12U %19H %6t %N" if "long" in options else "%20E %9u %19H %N"
    if "Node" in options and "long" in options:
        return "%#N %.6D %.#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
    if "Node" in options:
        return "%#N %.6D %.#P %6t"
    if "summarize" in options:
        return "%#P %.5a %.10l %.16F %N"
    if "long" in options:
        return "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
    return "%#P %.5a %.10l %.6D %.6t %N"


def _with_widths(format_text: str, texts_by_line: Sequence[Mapping[str, str]]) -> str:
    """Replace each `#` of a format by the width of the longest text of its column."""
    for letter in ("N", "P"):
        width = LEAST_WIDTH
        for texts in texts_by_line:
            width = max(width, len(texts[COLUMNS[letter]]))
        for dot in ("", "."):
            format_text = format_text.replace(f"%{dot}#{letter}", f"%{dot}{width}{letter}")
    return format_text


def _is_wanted(row: Row, options: Mapping[str, str]) -> bool:
    """Return True for a node that satisfies the options other than --states."""
    if not _is_of_partition(row, options):
        return False
    if "nodes" in options and row["name"] not in expand(options["nodes"]):
        return False
    if "dead" in options and not _is_dead(row):
        return False
    if "responding" in options and _is_dead(row):
        return False
    has_reason = state_of(row) in ("down", "drng", "drain")
    return has_reason or "list-reasons" not in options


def _is_dead(row: Row) -> bool:
    """Return True for a node whose agent does not answer."""
    return bool(row["is_silent"]) or row["state"] == "lost"


def _is_of_partition(row: Row, options: Mapping[str, str]) -> bool:
    return "partition" not in options or row["cluster"] in options["partition"].split(",")


def _states(text: str) -> set[str]:
    """Return the states that --states names. ScriptError for a word that is none."""
    if text.lower() == "all":
        return set(STATES)
    states = set[str]()
    for word in re.split("[,&]", text.upper()):
        if word not in FILTERS and word not in OTHER_STATES:
            known = ", ".join(FILTERS).lower()
            raise ScriptError([f"Bad state string: {word.lower()!r}; there are {known}"])
        states.update(FILTERS.get(word, ()))
    return states


def _texts_without_nodes(partition: str) -> dict[str, str]:
    """Return the texts of a partition of which no node is wanted."""
    empty_texts = dict.fromkeys(HEADS, "")
    return {
        **empty_texts,
        **CONSTANTS,
        "long_state": "n/a",
        "nodes": "0",
        "partition": f"{partition}*",
        "partition_name": partition,
        "state": "n/a",
    }


def state_of(row: Row) -> str:
    """Return Slurm's short word for the state of a node."""
    if row["state"] == "lost":
        return "down"
    in_use = row["used_cores"] > 0 or row["used_gpus"] > 0
    if row["state"] in ("cordoned", "draining"):
        return "drng" if in_use else "drain"
    if not in_use:
        return "idle"
    return "alloc" if row["used_cores"] >= row["cores"] else "mix"


def _groups(
    rows: Sequence[Row], columns: set[str], options: Mapping[str, str]
) -> list[Sequence[Row]]:
    """Return the nodes that are listed together, in sinfo's order of states."""
    if "Node" in options:
        return [[row] for row in rows]

    # 1. The columns in which they must be the same.
    compared = [column for column in COMPARED_COLUMNS if column in columns]
    if "exact" not in options:
        compared = [column for column in compared if column not in LEAST_COLUMNS]

    # 2. Groups by the texts in these columns.
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        texts = texts_of([row])
        key = tuple(texts[column] for column in compared)
        groups.setdefault(key, []).append(row)
    order = list(STATES)
    return sorted(groups.values(), key=lambda group: order.index(state_of(group[0])))


def texts_of(group: Sequence[Row]) -> dict[str, str]:
    """Return the texts of all columns for nodes that are listed together, by column."""
    first = group[0]
    suffix = "*" if _is_dead(first) else ""
    state = state_of(first)
    cpus = _least(group, lambda row: int(row["cores"]))
    features = ",".join(first["labels"]) or "(null)"
    return {
        **CONSTANTS,
        "active_features": features,
        "addresses": ",".join(row["address"] or row["name"] for row in group),
        "cluster": first["cluster"],
        "cpus": cpus,
        "cpus_aiot": _cpus_by_use(group),
        "features": features,
        "gres": gres_of(first),
        "hostnames": ",".join(row["name"] for row in group),
        "long_state": STATES[state] + suffix,
        "memory": _least(group, lambda row: int(row["memory_gb"] * 1e9 / 2**20)),
        "nodelist": compress([row["name"] for row in group]),
        "nodes": str(len(group)),
        "partition": f"{first['cluster']}*",
        "partition_name": first["cluster"],
        "reason": first["reason"] or "none",
        "sct": f"{cpus}:1:1",
        "sockets": cpus,
        "state": state + suffix,
        **_nodes_by_use(group),
    }


def gres_of(row: Row) -> str:
    """Return GPUs and other resources of a node: gpu:V100:4,mic:2, or (null)."""
    texts = []
    if row["gpus"]:
        texts.append(f"gpu:{row['gpu_type']}:{row['gpus']}")
    for name, amount in sorted(row["resources"].items()):
        texts.append(f"{name}:{amount:g}")
    return ",".join(texts) or "(null)"


def _least(group: Sequence[Row], amount: Callable[[Row], int]) -> str:
    """Return the least amount of these nodes, with + if others have more."""
    amounts = {amount(row) for row in group}
    suffix = "+" if len(amounts) > 1 else ""
    return f"{min(amounts)}{suffix}"


def _cpus_by_use(group: Sequence[Row]) -> str:
    """Return the cores of these nodes as ALLOCATED/IDLE/OTHER/ALL; other: cordoned or lost."""
    allocated = 0
    idle = 0
    other = 0
    for row in group:
        cores = int(row["cores"])
        used = min(cores, math.ceil(row["used_cores"]))
        allocated += used
        if state_of(row) in ("idle", "mix", "alloc"):
            idle += cores - used
        else:
            other += cores - used
    return f"{allocated}/{idle}/{other}/{allocated + idle + other}"


def _nodes_by_use(group: Sequence[Row]) -> dict[str, str]:
    """Return the two columns with the numbers of allocated, idle, other and all nodes."""
    states = Counter(state_of(row) for row in group)
    allocated = states["alloc"] + states["mix"] + states["drng"]
    idle = states["idle"]
    other = len(group) - allocated - idle
    return {
        "nodes_ai": f"{allocated}/{idle}",
        "nodes_aiot": f"{allocated}/{idle}/{other}/{len(group)}",
    }


if __name__ == "__main__":
    sys.exit(main())
