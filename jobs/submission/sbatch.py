"""Batch scripts for Slurm: options of a script and a command line become fields of a job."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from loadmaster.slurm import constraints, values
from loadmaster.slurm.moments import moment
from loadmaster.slurm.options import (
    COMMAND_LINE,
    MAX_SCRIPT,
    NAMED,
    Given,
    ScriptError,
    late_lines,
    lines_of_other_systems,
    merged,
    read_script,
    read_words,
)
from loadmaster.slurm.sbatch_options import REASONS, TREATMENTS, Treatment
from loadmaster.slurm.values import ValueFormatError

T = TypeVar("T")

PARTS = ("script", "name", "options", "arguments", "folder", "host", "environment")
"""Fields of `sbatch`."""

TOLD = {
    "account": "SLURM_JOB_ACCOUNT",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "distribution": "SLURM_DISTRIBUTION",
    "gpu-bind": "SLURM_GPU_BIND",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "hint": "SLURM_HINT",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "qos": "SLURM_JOB_QOS",
    "reservation": "SLURM_JOB_RESERVATION",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
}
"""Variables that repeat an option's value where it is given, as Slurm sets them."""

GPU_OPTIONS = ("gpus", "gres", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_STEP = re.compile(r"^[ \t]*srun\s", re.MULTILINE)
DEFAULT_NAME = "sbatch"
NAME_OF_WRAP = "wrap"
_NO_INPUT = ("none", "/dev/null")


@dataclass(slots=True)
class Submitted:
    """Fields of a job, with the places in the script that they come from, and warnings.

    `test_only`: the job is to be forecast, and not submitted.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    test_only: bool = False


def job_fields(given: object, now: datetime) -> Submitted:
    """Read {script, options, arguments, name, folder, host, environment}: what sbatch is given.

    `options` is the command line's, `name` the script's file, `folder` and `host` where it is
    submitted, `environment` the variables there that `--export` asks for. Times without a date
    are in the zone of `now`. Raises ScriptError with every problem found.
    """
    parts = _parts(given)
    options, rest = read_words(parts["options"], COMMAND_LINE)
    if rest:
        remedy = "the script's own words belong into arguments"
        raise ScriptError([f"{COMMAND_LINE}: {rest[0]!r} is no option; {remedy}"])
    _wrap(parts, options)
    in_force, warnings = merged(read_script(parts["script"]), options)
    warnings += late_lines(parts["script"])
    if "ignore-pbs" not in in_force:
        warnings += lines_of_other_systems(parts["script"])
    return _Reading(parts, in_force, warnings, now).submitted()


def _wrap(parts: dict[str, Any], options: Sequence[Given]) -> None:
    """Make a script of the command that the command line's `--wrap` gives, as sbatch does."""
    commands = [option.value for option in options if option.name == "wrap"]
    if not commands:
        return
    if parts["script"] or parts["arguments"]:
        raise ScriptError([f"{COMMAND_LINE}: --wrap: goes without a script; remove one of them"])
    parts["script"] = f"#!/bin/sh\n# This script was made of sbatch --wrap.\n\n{commands[-1]}\n"
    parts["name"] = parts["name"] or NAME_OF_WRAP


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


@dataclass(frozen=True, slots=True)
class _GpuRequest:
    """GPUs that the options ask for: of the job, of each node, of each task; and their types."""

    of_job: int = 0
    of_node: int = 0
    of_task: int = 0
    types: tuple[str, ...] = ()
    option: str = ""


@dataclass(frozen=True, slots=True)
class _Size:
    """Equal units of a job, with `tasks_of_unit` tasks and `gpus_of_unit` GPUs each.

    `units_of_node` is the greatest number of units on a node.
    """

    tasks: int
    units: int
    units_of_node: int
    gpus_of_unit: int
    tasks_of_unit: int = 1


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
        self.done = Submitted(warnings=warnings, test_only="test-only" in options)

    def submitted(self) -> Submitted:
        size = self._size()
        self._memory(size)
        self._resources(size)
        self._times()
        self._dependencies()
        self._where()
        self._restarts()
        self.done.fields["environment"] = self._environment(size)
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
        """Warn of options that are left out; refuse those without which a script goes wrong."""
        for name in sorted(self.options):
            if TREATMENTS[name] is Treatment.REFUSED:
                self.problems.append(f"{self.options[name]}: is refused: {REASONS[name]}")
            elif TREATMENTS[name] is Treatment.LEFT:
                self._warn(name, "has no meaning here and is left out")
        if "wrap" in self.options and self.options["wrap"].place != COMMAND_LINE:
            self._warn("wrap", "has no meaning in a script and is left out")
        if self._read("input", str, "none") not in _NO_INPUT:
            remedy = "write exec < FILE into the script"
            self.problems.append(f"{self.options['input']}: a script has no input; {remedy}")

    def _exclude(self, option: str, *others: str) -> None:
        """Note a problem if an option stands beside one that contradicts it."""
        for other in others:
            if {option, other} <= self.options.keys():
                problem = f"{self.options[option]}: goes without --{other}; remove one"
                self.problems.append(problem)

    # -- how much

    def _size(self) -> _Size:
        """Put units, nodes, cores and GPUs, and return the units.

        A task is a unit where the GPUs divide evenly over the tasks. Else the tasks of a node,
        which share its GPUs, are one.
        """
        per_node = self._read("ntasks-per-node", values.count, 0)
        nodes, most_nodes = self._read("nodes", values.nodes, (0, 0))
        if most_nodes > nodes:
            self._warn("nodes", f"takes {nodes} nodes, not up to {most_nodes}")
        request = self._gpu_request()
        tasks = self._read("ntasks", values.count, 0)
        tasks = tasks or self._implied_tasks(request, nodes, per_node)
        if nodes > tasks:
            self._warn("nodes", f"takes {tasks} nodes, one for each task; {nodes} have no use")
            nodes = tasks
        if tasks > 1 and nodes != 1 and _STEP.search(self.parts["script"]):
            limit = "srun starts tasks on the script's own node alone; --nodes=1 keeps all on one"
            self.done.warnings.append(f"script: {limit}")

        tasks_of_node = per_node or -(-tasks // (nodes or 1))
        nodes_in_use = nodes or -(-tasks // tasks_of_node)
        gpus = self._gpus_of_job(request, tasks, nodes_in_use)
        is_shared = gpus % tasks != 0
        if is_shared:
            size = self._shared_size(request, tasks, nodes_in_use, gpus)
        else:
            size = _Size(tasks, tasks, tasks_of_node, gpus // tasks)
            self._put_number("units_per_node", per_node, "ntasks-per-node")
            self._put_number("nodes", nodes, "nodes")

        if size.units > 1:
            self._put("units", size.units, "ntasks")
        self._put_number("gpus", gpus, request.option)
        if request.types:
            self._put("allowed_types", list(dict.fromkeys(request.types)), request.option)
        self._put("cores", self._cores(size), "cpus-per-task")
        self._put("exclusive", "exclusive" in self.options, "exclusive")
        return size

    def _put_number(self, name: str, value: int, option: str) -> None:
        if value:
            self._put(name, value, option)

    def _gpu_request(self) -> _GpuRequest:
        nothing: tuple[int, list[str]] = (0, [])
        no_resources: tuple[int, list[str], dict[str, float]] = (0, [], {})
        of_job, types = self._read("gpus", values.gpus, nothing)
        of_node, types_of_gres, _ = self._read("gres", values.gres, no_resources)
        more_of_node, types_of_node = self._read("gpus-per-node", values.gpus, nothing)
        of_socket, types_of_socket = self._read("gpus-per-socket", values.gpus, nothing)
        of_task, types_of_task = self._read("gpus-per-task", values.gpus, nothing)
        if of_socket:
            of_node += of_socket * self._read("sockets-per-node", values.count, 1)
        return _GpuRequest(
            of_job,
            of_node + more_of_node,
            of_task,
            (*types, *types_of_gres, *types_of_node, *types_of_socket, *types_of_task),
            next((name for name in GPU_OPTIONS if name in self.options), ""),
        )

    def _implied_tasks(self, request: _GpuRequest, nodes: int, per_node: int) -> int:
        """Return the tasks of a job that gives no number of them."""
        if per_node:
            return max(1, nodes) * per_node
        gpus = request.of_job or request.of_node * max(1, nodes)
        if per_gpu := self._read("ntasks-per-gpu", values.count, 0):
            return max(1, gpus) * per_gpu
        if request.of_job and request.of_task:
            return max(1, request.of_job // request.of_task)
        return max(1, nodes)

    def _gpus_of_job(self, request: _GpuRequest, tasks: int, nodes: int) -> int:
        if request.of_job:
            return request.of_job
        if request.of_task:
            return request.of_task * tasks
        if request.of_node:
            return request.of_node * nodes
        per_gpu = self._read("ntasks-per-gpu", values.count, 0)
        return -(-tasks // per_gpu) if per_gpu else 0

    def _shared_size(self, request: _GpuRequest, tasks: int, nodes: int, gpus: int) -> _Size:
        """Put one unit for each node, whose tasks share its GPUs."""
        if gpus % nodes:
            even = "give --gpus-per-node, or another number of nodes"
            problem = f"{gpus} GPUs cannot be divided evenly over {nodes} nodes; {even}"
            self.problems.append(f"{self.options[request.option]}: {problem}")
        if nodes > 1:
            self._put("units_per_node", 1)
            self._put("nodes", nodes, "nodes")
        return _Size(tasks, nodes, 1, gpus // nodes, -(-tasks // nodes))

    def _cores(self, size: _Size) -> int:
        """Cores of a unit: those of its tasks, or of its GPUs if these need more."""
        self._exclude("cpus-per-gpu", "cpus-per-task")
        of_tasks = self._read("cpus-per-task", values.count, 1) * size.tasks_of_unit
        of_gpus = self._read("cpus-per-gpu", values.count, 0) * size.gpus_of_unit
        return max(of_tasks, of_gpus)

    def _memory(self, size: _Size) -> None:
        self._exclude("mem", "mem-per-cpu", "mem-per-gpu")
        self._exclude("mem-per-cpu", "mem-per-gpu")
        per_core = self._read("mem-per-cpu", values.memory_gb, 0.0)
        per_gpu = self._read("mem-per-gpu", values.memory_gb, 0.0)
        per_node = self._read("mem", values.memory_gb, 0.0)
        if per_core:
            self._put("memory_gb", per_core * self.done.fields["cores"], "mem-per-cpu")
        elif per_gpu and size.gpus_of_unit:
            self._put("memory_gb", per_gpu * size.gpus_of_unit, "mem-per-gpu")
        elif per_node:
            units = min(size.units, size.units_of_node)
            self._put("memory_gb", values.shares(per_node, units), "mem")
        elif "mem" in self.options and not self.problems:
            self._warn("mem", "0 asks for all of a node; it has the node for itself")
            self._put("exclusive", True, "mem")

    def _resources(self, size: _Size) -> None:
        """Put amounts of other resources, divided by the units of a node, and labels."""
        no_resources: tuple[int, list[str], dict[str, float]] = (0, [], {})
        _, _, amounts = self._read("gres", values.gres, no_resources)
        if amounts:
            units = min(size.units, size.units_of_node)
            if units > 1:
                self._warn("gres", "gives each task its part; amounts of a node are divided")
            each = {name: amount / units for name, amount in amounts.items()}
            self._put("resources", each, "gres")
        labels = self._read("constraint", constraints.labels, list[str]())
        if labels:
            self._put("labels", labels, "constraint")
            text = self.options["constraint"].value
            if "[" in text and "|" in text and self.done.fields.get("nodes", 1) > 1:
                self._warn("constraint", "its nodes may satisfy different alternatives")

    # -- when and where

    def _times(self) -> None:
        if (limit_s := self._read("time", values.time_s, None)) is not None:
            self._put("walltime", limit_s, "time")
        if signal := self._read("signal", values.end_signal, None):
            self._put("signal", str(signal), "signal")
        self._moment("begin")
        self._moment("deadline")
        if self._read("array", str.strip, ""):
            self._put("array", values.array_text(self.options["array"].value), "array")
        if "hold" in self.options:
            self._put("hold", True, "hold")

    def _moment(self, name: str) -> None:
        """Put the moment of an option, `begin` only if it is still to come."""
        at = self._read(name, lambda text: moment(text, self.now), None)
        if at is not None and (at > self.now or name != "begin"):
            self._put(name, at.isoformat(), name)

    def _dependencies(self) -> None:
        if waits := self._read("dependency", values.dependencies, list[str]()):
            self._put("dependencies", waits, "dependency")

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
        default = "slurm-%A_%a.out" if "array" in self.done.fields else "slurm-%j.out"
        self._put("output", self._read("output", str, default if folder else ""), "output")
        self._put("error_output", self._read("error", str, ""), "error")

    def _restarts(self) -> None:
        """Slurm runs a script again after a lost node or a pre-emption, never after its failure."""
        self._put("preemptible", "requeue" in self.options, "requeue")

    # -- what it sees

    def _environment(self, size: _Size) -> dict[str, Any]:
        """Variables of `--export`, and those that repeat what the options say."""
        wanted = self._read("export", values.exported, values.Exported())
        given = self.parts["environment"].items()
        found = {name: value for name, value in given if wanted.all or name in wanted.names}
        missing = sorted(wanted.names - found.keys())
        for name in missing[:NAMED]:
            self._warn("export", f"{name} is not set where it was submitted, and left out")
        if len(missing) > NAMED:
            self._warn("export", f"{len(missing) - NAMED} more names are not set there either")
        return {**found, **wanted.values, **self._told(size)}

    def _told(self, size: _Size) -> dict[str, str]:
        """Variables that repeat the options; the tasks of each node where they share GPUs."""
        given, told = self.options, dict[str, str]()
        if {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & given.keys():
            told |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(size.tasks))
        if size.tasks_of_unit > 1:
            told["SLURM_TASKS_PER_NODE"] = _tasks_by_node(size)
        for option, name in TOLD.items():
            if option in given:
                told[name] = given[option].value
        for option, name in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU")):
            if amount := self._read(option, values.memory_gb, 0.0):
                told[name] = str(-(-round(amount * 1e9) // 2**20))
        submitted = {"SLURM_SUBMIT_DIR": self.parts["folder"]}
        submitted["SLURM_SUBMIT_HOST"] = self.parts["host"]
        return {**told, **{name: value for name, value in submitted.items() if value}}


def _tasks_by_node(size: _Size) -> str:
    """Tasks of each node as Slurm writes them: of 8 on 3 nodes the text 3(x2),2."""
    least, nodes_with_one_more = divmod(size.tasks, size.units)
    runs = list[str]()
    for amount, nodes in (
        (least + 1, nodes_with_one_more),
        (least, size.units - nodes_with_one_more),
    ):
        if nodes:
            runs.append(f"{amount}(x{nodes})" if nodes > 1 else str(amount))
    return ",".join(runs)
