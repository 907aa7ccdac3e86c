"""Batch scripts for Slurm: options of a script and a command line become fields of a job."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from loadmaster.slurm import values
from loadmaster.slurm.options import (
    COMMAND_LINE,
    MAX_SCRIPT,
    NAMED,
    Given,
    ScriptError,
    late_lines,
    merged,
    read_script,
    read_words,
)
from loadmaster.slurm.values import ValueFormatError

T = TypeVar("T")

PARTS = ("script", "name", "options", "arguments", "folder", "host", "environment")
"""Fields of `sbatch`."""

MEANT = frozenset({
    "array", "begin", "chdir", "constraint", "cpus-per-task", "dependency", "error", "exclusive",
    "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "hold", "job-name", "mem",
    "mem-per-cpu", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "output", "requeue",
    "signal", "time",
})  # fmt: skip
"""Options that become something; all others are named in a warning."""

_NO_INDICES = "has no indices; write some, such as 0-9, or remove it"
GPU_OPTIONS = ("gpus", "gres", "gpus-per-node", "gpus-per-task")
_STEP = re.compile(r"^[ \t]*srun\s", re.MULTILINE)
SILENT = frozenset({"parsable", "quiet", "verbose"})
DEFAULT_NAME = "sbatch"


@dataclass(slots=True)
class Submitted:
    """Fields of a job, with the places in the script that they come from, and warnings."""

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def job_fields(given: object, now: datetime) -> Submitted:
    """Read {script, options, arguments, name, folder, host, environment}: what sbatch is given.

    `options` is the command line's, `name` the script's file, `folder` and `host` where it is
    submitted, `environment` the variables there that `--export` asks for. Times without a date
    are in the zone of `now`. Raises ScriptError with every problem found.
    """
    parts = _parts(given)
    options, rest = read_words(parts["options"], COMMAND_LINE)
    if rest:
        said = f"{rest[0]!r} is no option; the script's own words belong into arguments"
        raise ScriptError([f"{COMMAND_LINE}: {said}"])
    in_force, warnings = merged(read_script(parts["script"]), options)
    warnings += late_lines(parts["script"])
    return _Reading(parts, in_force, warnings, now).submitted()


def _parts(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ScriptError(["must be an object such as {script: text, options: [], ...}"])
    if wrong := [str(name)[:60] for name in given if name not in PARTS]:
        raise ScriptError([f"has no field {wrong[0]!r}; its fields are {', '.join(PARTS)}"])
    parts: dict[str, Any] = {"script": "", "options": [], "arguments": [], "environment": {}}
    parts = {"name": "", "folder": "", "host": "", **parts, **given}
    for name in ("script", "name", "folder", "host"):
        if not isinstance(parts[name], str):
            raise ScriptError([f"{name} must be text"])
    for name in ("options", "arguments"):
        if not isinstance(parts[name], list) or not all(isinstance(w, str) for w in parts[name]):
            raise ScriptError([f'{name} must be a list of texts, such as ["-n", "4"]'])
    if (length := sum(map(len, parts["options"]))) > MAX_SCRIPT:
        said = f"options have {length} characters and may have {MAX_SCRIPT}"
        raise ScriptError([f"{said}; give long values in environment or files"])
    if not isinstance(parts["environment"], dict):
        raise ScriptError(['environment must be an object such as {"NAME": "value"}'])
    return parts


class _Reading:
    def __init__(
        self,
        parts: Mapping[str, Any],
        options: Mapping[str, Given],
        warnings: list[str],
        now: datetime,
    ) -> None:
        self.parts, self.options, self.now = parts, options, now
        self.problems: list[str] = []
        self.done = Submitted(warnings=warnings)

    def submitted(self) -> Submitted:
        units, seats = self._units()
        self._memory(units, seats)
        self._gpus(units, seats)
        self._times()
        self._where()
        self._restarts()
        self.done.fields["environment"] = self._environment()
        self._unmeant()
        if self.problems:
            raise ScriptError(list(dict.fromkeys(self.problems)))
        return self.done

    # -- reading

    def _read(self, option: str, reader: Callable[[str], T], default: T) -> T:
        given = self.options.get(option)
        if given is None:
            return default
        try:
            return reader(given.value)
        except ValueFormatError as problem:
            self.problems.append(f"{given}: {problem}")
            return default

    def _put(self, name: str, value: Any, option: str = "") -> None:
        if value == "":
            return
        self.done.fields[name] = value
        if option in self.options:
            self.done.places[name] = str(self.options[option])

    def _warn(self, option: str, text: str) -> None:
        self.done.warnings.append(f"{self.options[option]}: {text}")

    def _unmeant(self) -> None:
        for name in sorted(self.options.keys() - MEANT - SILENT):
            self._warn(name, "has no meaning here and is left out")

    # -- how much

    def _units(self) -> tuple[int, int]:
        """Put units and nodes; return the units, and how many of them a node has at most."""
        per_node = self._read("ntasks-per-node", values.count, 0)
        nodes, most = self._read("nodes", values.nodes, (0, 0))
        if most > nodes:
            self._warn("nodes", f"takes {nodes} nodes, not up to {most}")
        units = self._read("ntasks", values.count, max(1, nodes) * max(1, per_node))
        self._put("cores", self._read("cpus-per-task", values.count, 1), "cpus-per-task")
        for name, value, option in (
            ("units", units, "ntasks"),
            ("units_per_node", per_node, "ntasks-per-node"),
            ("nodes", min(nodes, units), "nodes"),
        ):
            if value > (name == "units"):
                self._put(name, value, option)
        if nodes > units:
            self._warn("nodes", f"takes {units} nodes, one for each task; {nodes} have no use")
        if units > 1 and nodes != 1 and _STEP.search(self.parts["script"]):
            said = "srun starts tasks on the script's own node alone; --nodes=1 keeps all on one"
            self.done.warnings.append(f"script: {said}")
        self._put("exclusive", "exclusive" in self.options, "exclusive")
        return units, per_node or -(-units // (nodes or 1))

    def _memory(self, units: int, seats: int) -> None:
        cores = self.done.fields["cores"]
        per_core = self._read("mem-per-cpu", values.memory_gb, 0.0)
        per_node = self._read("mem", values.memory_gb, 0.0)
        if per_core and per_node:
            self.problems.append(f"{self.options['mem']}: goes without --mem-per-cpu; remove one")
        if per_core:
            self._put("memory_gb", per_core * cores, "mem-per-cpu")
        elif per_node:
            self._put("memory_gb", values.shares(per_node, min(units, seats)), "mem")
        elif "mem" in self.options and not self.problems:
            self._warn("mem", "0 asks for all of a node; it has the node for itself")
            self._put("exclusive", True, "mem")

    def _gpus(self, units: int, seats: int) -> None:
        none: tuple[int, list[str]] = (0, [])
        no_gres: tuple[int, list[str], dict[str, int]] = (0, [], {})
        of_all, types = self._read("gpus", values.gpus, none)
        a_node, more, others = self._read("gres", values.gres, no_gres)
        for option, factor in (("gpus-per-node", 0), ("gpus-per-task", units)):
            number, these = self._read(option, values.gpus, none)
            types = types + these
            of_all, a_node = of_all + number * factor, a_node + number * (not factor)
        nodes = self.done.fields.get("nodes") or -(-units // seats)
        source = next((name for name in GPU_OPTIONS if name in self.options), "")
        if gpus := of_all or a_node * nodes:
            self._put("gpus", gpus, source)
        if types or more:
            self._put("allowed_types", list(dict.fromkeys([*types, *more])), source)
        if others:
            if units > 1 and seats > 1:
                self._warn("gres", "gives each task its part; amounts of a node are divided")
            self._put("resources", {n: a / min(units, seats) for n, a in others.items()}, "gres")
        if labels := self._read("constraint", values.labels, list[str]()):
            self._put("labels", labels, "constraint")

    # -- when and where

    def _times(self) -> None:
        if (limit_s := self._read("time", values.time_s, None)) is not None:
            self._put("walltime", limit_s, "time")
        if signal := self._read("signal", values.end_signal, None):
            self._put("signal", str(signal), "signal")
        if "begin" in self.options:
            begin = self._read("begin", lambda text: values.begin(text, self.now), self.now)
            if begin > self.now:
                self._put("begin", begin.isoformat(), "begin")
        if waits := self._read("dependency", values.dependencies, list[str]()):
            self._put("dependencies", waits, "dependency")
        if "array" in self.options:
            if not self.options["array"].value.strip():
                self.problems.append(f"{self.options['array']}: {_NO_INDICES}")
            self._put("array", self.options["array"].value, "array")
        if "hold" in self.options:
            self._put("hold", True, "hold")

    def _where(self) -> None:
        parts, file = self.parts, PurePosixPath(self.parts["name"] or DEFAULT_NAME).name
        given = self._read("job-name", str, file or DEFAULT_NAME)
        self._put("name", given, "job-name")
        self._put("script", parts["script"])
        self._put("command", list(parts["arguments"]))
        if folder := self._read("chdir", str, ""):
            folder = str(PurePosixPath(parts["folder"] or "/") / folder)
        folder = folder or parts["folder"]
        if folder:
            self._put("folder", folder, "chdir")
        default = "slurm-%A_%a.out" if "array" in self.options else "slurm-%j.out"
        self._put("output", self._read("output", str, default if folder else ""), "output")
        self._put("error_output", self._read("error", str, ""), "error")

    def _restarts(self) -> None:
        """Slurm runs a script again after a lost node or a pre-emption, never after its failure."""
        self._put("preemptible", "requeue" in self.options, "requeue")
        if {"requeue", "no-requeue"} <= self.options.keys():
            self.problems.append(
                f"{self.options['requeue']}: goes without --no-requeue; remove one"
            )

    # -- what it sees

    def _environment(self) -> dict[str, Any]:
        """Variables of `--export`, and those that repeat what the options say."""
        wanted = self._read("export", values.exported, values.Exported())
        given = self.parts["environment"].items()
        found = {name: value for name, value in given if wanted.all or name in wanted.names}
        missing = sorted(wanted.names - found.keys())
        for name in missing[:NAMED]:
            self._warn("export", f"{name} is not set where it was submitted, and left out")
        if len(missing) > NAMED:
            self._warn("export", f"{len(missing) - NAMED} more names are not set there either")
        return {**found, **wanted.values, **self._told()}

    def _told(self) -> dict[str, str]:
        fields, given, told = self.done.fields, self.options, dict[str, str]()
        if {"ntasks", "ntasks-per-node"} & given.keys():
            told |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(fields.get("units", 1)))
        for option, name in (
            ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
            ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ):
            if option in given:
                told[name] = given[option].value
        for option, name in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU")):
            if amount := self._read(option, values.memory_gb, 0.0):
                told[name] = str(-(-round(amount * 1e9) // 2**20))
        submitted = {"SLURM_SUBMIT_DIR": self.parts["folder"]}
        submitted["SLURM_SUBMIT_HOST"] = self.parts["host"]
        return {**told, **{name: value for name, value in submitted.items() if value}}
