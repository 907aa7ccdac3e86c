"""Batch scripts for Slurm: options of a script and a command line become fields of a job."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from loadmaster.slurm.options import constraints, values
from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.reading import (
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
from loadmaster.slurm.options.sbatch_table import REASONS, TREATMENTS, Treatment
from loadmaster.slurm.options.values import ValueFormatError

T = TypeVar("T")

PARTS = ("script", "name", "options", "arguments", "folder", "host", "environment")
"""Fields of `sbatch`."""

REPEATED_OPTIONS = {
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
"""Slurm's variables that repeat the value of an option that is given."""

GPU_OPTIONS = (
    "gpus", "gres", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu",
)  # fmt: skip
"""Options that ask for GPUs."""

DEFAULT_NAME = "sbatch"
"""Name of a job whose script comes from standard input."""

NAME_OF_WRAP = "wrap"
_STEP = re.compile(r"^[ \t]*srun\s", re.MULTILINE)
_NO_INPUT = ("none", "/dev/null")


@dataclass(slots=True)
class Submitted:
    """Fields of a job as REST takes them, and warnings.

    `places`: for messages, the line and option that a field comes from. `test_only`: the job is to
    be forecast, and not submitted.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    test_only: bool = False


def job_fields(given: object, now: datetime) -> Submitted:
    """Turn the field `sbatch` of a submission, an object with the fields of PARTS, into a job.

    `options` are the words of the command line, `arguments` the script's own, `name` is the
    script's file; `folder` and `host` are where it is submitted, and `environment` has the
    variables there that `--export` asks for. Times of day are in the zone of `now`. Raises
    ScriptError with every problem found.
    """
    # 1. Read the options of the command line.
    parts = _parts(given)
    options, rest = read_words(parts["options"], COMMAND_LINE)
    if rest:
        remedy = "the script's own words belong into arguments"
        raise ScriptError([f"{COMMAND_LINE}: {rest[0]!r} is no option; {remedy}"])
    _wrap(parts, options)

    # 2. Read those of the script, over which the command line's hold.
    in_force, warnings = merged(read_script(parts["script"]), options)
    warnings += late_lines(parts["script"])
    if "ignore-pbs" not in in_force:
        warnings += lines_of_other_systems(parts["script"])

    # 3. Give them their meaning.
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
    """Check the types of the fields of `sbatch`, and fill in those that are left out."""
    if not isinstance(given, dict):
        raise ScriptError(["must be an object such as {script: text, options: [], ...}"])
    for name in given:
        if name not in PARTS:
            raise ScriptError(
                [f"has no field {str(name)[:60]!r}; its fields are {', '.join(PARTS)}"]
            )
    parts: dict[str, Any] = {"script": "", "options": [], "arguments": [], "environment": {}}
    parts = {"name": "", "folder": "", "host": "", **parts, **given}
    for name in ("script", "name", "folder", "host"):
        if not isinstance(parts[name], str):
            raise ScriptError([f"{name} must be text"])
    for name in ("options", "arguments"):
        words = parts[name]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ScriptError([f'{name} must be a list of texts, such as ["-n", "4"]'])
    length = sum(len(word) for word in parts["options"])
    if length > MAX_SCRIPT:
        limit = f"options have {length} characters and may have {MAX_SCRIPT}"
        raise ScriptError([f"{limit}; give long values in environment or files"])
    if not isinstance(parts["environment"], dict):
        raise ScriptError(['environment must be an object such as {"NAME": "value"}'])
    return parts


@dataclass(frozen=True, slots=True)
class _GpuRequest:
    """GPUs that the options ask for: of the job, of each node, of each task; 0: not asked for.

    `option` is the first of these options, for messages.
    """

    of_job: int = 0
    of_node: int = 0
    of_task: int = 0
    types: tuple[str, ...] = ()
    option: str = ""


@dataclass(frozen=True, slots=True)
class _Size:
    """Tasks of a job, and the equal units that they are run as.

    `units_of_node`: the greatest number of units on a node. `gpus_of_unit`, `tasks_of_unit`: GPUs
    and tasks of each unit.
    """

    tasks: int
    units: int
    units_of_node: int
    gpus_of_unit: int
    tasks_of_unit: int = 1


class _Reading:
    """One script being read: problems and fields are collected option by option."""

    def __init__(
        self,
        parts: Mapping[str, Any],
        options: Mapping[str, Given],
        warnings: list[str],
        now: datetime,
    ) -> None:
        self.parts = parts
        self.options = options
        self.now = now
        self.problems: list[str] = []
        self.result = Submitted(warnings=warnings, test_only="test-only" in options)

    def submitted(self) -> Submitted:
        """Return the job of the options. Raises ScriptError with all problems, each once."""
        size = self._size()
        self._memory(size)
        self._resources(size)
        self._times()
        self._dependencies()
        self._script_and_files()
        self._restarts()
        self.result.fields["environment"] = self._environment(size)
        self._options_without_meaning()
        if self.problems:
            raise ScriptError(list(dict.fromkeys(self.problems)))
        return self.result

    # -- reading

    def _read(self, option: str, reader: Callable[[str], T], default: T) -> T:
        """Return the value of an option; the default if it is not given or has a problem."""
        given = self.options.get(option)
        if given is None:
            return default
        try:
            return reader(given.value)
        except ValueFormatError as problem:
            self.problems.append(f"{given}: {problem}")
            return default

    def _put(self, name: str, value: Any, option: str = "") -> None:
        """Set a field of the job, unless its value is ""; `option` is where it comes from."""
        if value == "":
            return
        self.result.fields[name] = value
        if option in self.options:
            self.result.places[name] = str(self.options[option])

    def _warn(self, option: str, text: str) -> None:
        self.result.warnings.append(f"{self.options[option]}: {text}")

    def _options_without_meaning(self) -> None:
        """Warn of options that are left out; refuse those that a script cannot do without."""
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
        """Note a problem if an option is given with one that contradicts it."""
        for other in others:
            if {option, other} <= self.options.keys():
                problem = f"{self.options[option]}: goes without --{other}; remove one"
                self.problems.append(problem)

    # -- how much

    def _size(self) -> _Size:
        """Put units, nodes, cores and GPUs, and return the units.

        Each task is a unit if the GPUs divide evenly over the tasks. Otherwise all tasks of a node
        are one unit and share its GPUs.
        """
        # 1. Number of tasks and nodes.
        per_node = self._read("ntasks-per-node", values.count, 0)
        nodes, most_nodes = self._read("nodes", values.nodes, (0, 0))
        if most_nodes > nodes:
            self._warn("nodes", f"takes {nodes} nodes, not up to {most_nodes}")
        request = self._gpu_request()
        tasks = self._read("ntasks", values.count, 0)
        if not tasks:
            tasks = self._implied_tasks(request, nodes, per_node)
        if nodes > tasks:
            self._warn("nodes", f"takes {tasks} nodes, one for each task; {nodes} have no use")
            nodes = tasks
        if tasks > 1 and nodes != 1 and _STEP.search(self.parts["script"]):
            limit = "srun starts tasks on the script's own node alone; --nodes=1 keeps all on one"
            self.result.warnings.append(f"script: {limit}")

        # 2. Units: tasks, or nodes whose tasks share GPUs.
        tasks_of_node = per_node or _divided_up(tasks, nodes or 1)
        nodes_in_use = nodes or _divided_up(tasks, tasks_of_node)
        gpus = self._gpus_of_job(request, tasks, nodes_in_use)
        is_shared = gpus % tasks != 0
        if is_shared:
            size = self._shared_size(request, tasks, nodes_in_use, gpus)
        else:
            size = _Size(
                tasks, units=tasks, units_of_node=tasks_of_node, gpus_of_unit=gpus // tasks
            )
            self._put_number("units_per_node", per_node, "ntasks-per-node")
            self._put_number("nodes", nodes, "nodes")

        # 3. The fields of the job.
        if size.units > 1:
            self._put("units", size.units, "ntasks")
        self._put_number("gpus", gpus, request.option)
        if request.types:
            self._put("allowed_types", list(dict.fromkeys(request.types)), request.option)
        self._put("cores", self._cores(size), "cpus-per-task")
        self._put("exclusive", "exclusive" in self.options, "exclusive")
        return size

    def _put_number(self, name: str, value: int, option: str) -> None:
        """Set a field unless its value is 0."""
        if value:
            self._put(name, value, option)

    def _gpu_request(self) -> _GpuRequest:
        """Add up the GPUs that the options ask for."""
        no_gpus: tuple[int, list[str]] = (0, [])
        no_resources: tuple[int, list[str], dict[str, float]] = (0, [], {})
        of_job, types = self._read("gpus", values.gpus, no_gpus)
        of_node, types_of_gres, _ = self._read("gres", values.gres, no_resources)
        more_of_node, types_of_node = self._read("gpus-per-node", values.gpus, no_gpus)
        of_socket, types_of_socket = self._read("gpus-per-socket", values.gpus, no_gpus)
        of_task, types_of_task = self._read("gpus-per-task", values.gpus, no_gpus)
        if of_socket:
            of_node += of_socket * self._read("sockets-per-node", values.count, 1)
        options = [name for name in GPU_OPTIONS if name in self.options]
        return _GpuRequest(
            of_job=of_job,
            of_node=of_node + more_of_node,
            of_task=of_task,
            types=(*types, *types_of_gres, *types_of_node, *types_of_socket, *types_of_task),
            option=options[0] if options else "",
        )

    def _implied_tasks(self, request: _GpuRequest, nodes: int, per_node: int) -> int:
        """Return the tasks of a job that gives no number of them."""
        if per_node:
            return max(1, nodes) * per_node
        gpus = request.of_job or request.of_node * max(1, nodes)
        per_gpu = self._read("ntasks-per-gpu", values.count, 0)
        if per_gpu:
            return max(1, gpus) * per_gpu
        if request.of_job and request.of_task:
            return max(1, request.of_job // request.of_task)
        return max(1, nodes)

    def _gpus_of_job(self, request: _GpuRequest, tasks: int, nodes: int) -> int:
        """Return the GPUs of the whole job."""
        if request.of_job:
            return request.of_job
        if request.of_task:
            return request.of_task * tasks
        if request.of_node:
            return request.of_node * nodes
        per_gpu = self._read("ntasks-per-gpu", values.count, 0)
        return _divided_up(tasks, per_gpu) if per_gpu else 0

    def _shared_size(self, request: _GpuRequest, tasks: int, nodes: int, gpus: int) -> _Size:
        """Put one unit for each node, whose tasks share its GPUs."""
        if gpus % nodes:
            remedy = "give --gpus-per-node, or another number of nodes"
            problem = f"{gpus} GPUs cannot be divided evenly over {nodes} nodes; {remedy}"
            self.problems.append(f"{self.options[request.option]}: {problem}")
        if nodes > 1:
            self._put("units_per_node", 1)
            self._put("nodes", nodes, "nodes")
        return _Size(
            tasks,
            units=nodes,
            units_of_node=1,
            gpus_of_unit=gpus // nodes,
            tasks_of_unit=_divided_up(tasks, nodes),
        )

    def _cores(self, size: _Size) -> int:
        """Return the cores of a unit: those of its tasks, or of its GPUs if these need more."""
        self._exclude("cpus-per-gpu", "cpus-per-task")
        of_tasks = self._read("cpus-per-task", values.count, 1) * size.tasks_of_unit
        of_gpus = self._read("cpus-per-gpu", values.count, 0) * size.gpus_of_unit
        return max(of_tasks, of_gpus)

    def _memory(self, size: _Size) -> None:
        """Put the memory of each unit."""
        self._exclude("mem", "mem-per-cpu", "mem-per-gpu")
        self._exclude("mem-per-cpu", "mem-per-gpu")
        per_core = self._read("mem-per-cpu", values.memory_gb, 0.0)
        per_gpu = self._read("mem-per-gpu", values.memory_gb, 0.0)
        per_node = self._read("mem", values.memory_gb, 0.0)
        if per_core:
            self._put("memory_gb", per_core * self.result.fields["cores"], "mem-per-cpu")
        elif per_gpu and size.gpus_of_unit:
            self._put("memory_gb", per_gpu * size.gpus_of_unit, "mem-per-gpu")
        elif per_node:
            units = min(size.units, size.units_of_node)
            self._put("memory_gb", values.shares(per_node, units), "mem")
        elif "mem" in self.options and not self.problems:
            # The value is 0: a wrong one would be a problem.
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
            of_unit = {name: amount / units for name, amount in amounts.items()}
            self._put("resources", of_unit, "gres")
        labels = self._read("constraint", constraints.labels, list[str]())
        if labels:
            self._put("labels", labels, "constraint")
            text = self.options["constraint"].value
            if "[" in text and "|" in text and self.result.fields.get("nodes", 1) > 1:
                self._warn("constraint", "its nodes may satisfy different alternatives")

    # -- when and where

    def _times(self) -> None:
        """Put limits and moments, the indices of an array, and whether the job is held."""
        limit_s = self._read("time", values.time_s, None)
        if limit_s is not None:
            self._put("walltime", limit_s, "time")
        signal = self._read("signal", values.end_signal, None)
        if signal is not None:
            self._put("signal", str(signal), "signal")
        self._moment("begin")
        self._moment("deadline")
        indices = self._read("array", str.strip, "")
        if indices:
            self._put("array", values.array_text(indices), "array")
        if "hold" in self.options:
            self._put("hold", True, "hold")

    def _moment(self, name: str) -> None:
        """Put the moment of an option, `begin` only if it is still to come."""
        value = self._read(name, lambda text: moment(text, self.now), None)
        if value is not None and (value > self.now or name != "begin"):
            self._put(name, value.isoformat(), name)

    def _dependencies(self) -> None:
        references = self._read("dependency", values.dependencies, list[str]())
        if references:
            self._put("dependencies", references, "dependency")

    def _script_and_files(self) -> None:
        """Put the script with its name and arguments, its folder and its output files."""
        parts = self.parts
        file_name = PurePosixPath(parts["name"]).name or DEFAULT_NAME
        self._put("name", self._read("job-name", str, file_name), "job-name")
        self._put("script", parts["script"])
        self._put("command", list(parts["arguments"]))

        # A relative folder begins where the script is submitted.
        folder = parts["folder"]
        own_folder = self._read("chdir", str, "")
        if own_folder:
            folder = str(PurePosixPath(folder or "/") / own_folder)
        self._put("folder", folder, "chdir")

        default = "slurm-%j.out"
        if "array" in self.result.fields:
            default = "slurm-%A_%a.out"
        if not folder:
            default = ""
        self._put("output", self._read("output", str, default), "output")
        self._put("error_output", self._read("error", str, ""), "error")

    def _restarts(self) -> None:
        """Put whether the job starts again after a lost node or a pre-emption.

        Slurm never starts a script again after its own failure.
        """
        self._put("preemptible", "requeue" in self.options, "requeue")

    # -- what it sees

    def _environment(self, size: _Size) -> dict[str, Any]:
        """Return the variables of `--export`, and those that repeat what the options say."""
        wanted = self._read("export", values.exported, values.Exported())
        variables = dict(self.parts["environment"])
        if not wanted.all:
            variables = {name: variables[name] for name in variables if name in wanted.names}
        missing = sorted(wanted.names - variables.keys())
        for name in missing[:NAMED]:
            self._warn("export", f"{name} is not set where it was submitted, and left out")
        if len(missing) > NAMED:
            self._warn("export", f"{len(missing) - NAMED} more names are not set there either")
        return {**variables, **wanted.values, **self._slurm_variables(size)}

    def _slurm_variables(self, size: _Size) -> dict[str, str]:
        """Return Slurm's variables about options, tasks and the place of submission."""
        variables = dict[str, str]()
        if {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & self.options.keys():
            variables["SLURM_NTASKS"] = str(size.tasks)
            variables["SLURM_NPROCS"] = str(size.tasks)
        # Without shared GPUs each task is a unit, whose node tells the number.
        if size.tasks_of_unit > 1:
            variables["SLURM_TASKS_PER_NODE"] = _tasks_by_node(size)
        for option, name in REPEATED_OPTIONS.items():
            if option in self.options:
                variables[name] = self.options[option].value
        for option, name in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU")):
            memory_gb = self._read(option, values.memory_gb, 0.0)
            if memory_gb:
                variables[name] = str(_divided_up(round(memory_gb * 1e9), 2**20))  # MiB
        if self.parts["folder"]:
            variables["SLURM_SUBMIT_DIR"] = self.parts["folder"]
        if self.parts["host"]:
            variables["SLURM_SUBMIT_HOST"] = self.parts["host"]
        return variables


def _divided_up(amount: int, parts: int) -> int:
    """Return the amount of the largest of equal parts, rounded up."""
    return -(-amount // parts)


def _tasks_by_node(size: _Size) -> str:
    """Return the tasks of each node as Slurm writes them: 8 on 3 nodes as 3(x2),2."""
    least, nodes_with_one_more = divmod(size.tasks, size.units)
    others = size.units - nodes_with_one_more
    texts = list[str]()
    for tasks, nodes in ((least + 1, nodes_with_one_more), (least, others)):
        if nodes == 1:
            texts.append(str(tasks))
        elif nodes > 1:
            texts.append(f"{tasks}(x{nodes})")
    return ",".join(texts)
