"""`srun` inside a batch script: reads a command line and runs its step on the script's own node."""

import getpass
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loadmaster.slurm.options import values
from loadmaster.slurm.options.containers import image_name, mount_list
from loadmaster.slurm.options.reading import COMMAND_LINE, ScriptError, read_words
from loadmaster.slurm.options.srun_table import SRUN
from loadmaster.slurm.scripts.environment import exported_to_step
from loadmaster.slurm.steps.gpus import AMOUNTS, StepGpus, step_gpus
from loadmaster.slurm.steps.multi_prog import ProgramsError, commands_of
from loadmaster.slurm.steps.running import Account, Step, run, say
from loadmaster.version import __version__

USED = frozenset({
    *AMOUNTS, "chdir", "container-image", "container-mounts", "container-name",
    "container-workdir", "cpus-per-task", "error", "exact", "exclusive", "export", "gpu-bind",
    "input", "job-name", "jobid", "kill-on-bad-exit", "label", "mpi", "multi-prog", "nodelist",
    "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "open-mode", "output", "overcommit",
    "overlap", "relative", "tasks", "tasks-per-node", "time",
})  # fmt: skip  # a long list of names
"""Options that have a meaning here."""

SILENT = frozenset({
    "container-env", "container-writable", "cpu-bind", "cpus-per-gpu", "disable-status",
    "distribution", "gres-flags", "hint", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu",
    "no-container-entrypoint", "no-container-mount-home", "no-container-remap-root", "quiet",
    "unbuffered", "verbose", "wait-all-nodes", "whole",
})  # fmt: skip  # a long list of names
"""Options that ask for the behaviour that srun has anyway, or change no result.

A warning names all others that are in neither set.
"""

ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}
"""Other names of options."""

FROM_ENVIRONMENT = {
    "SLURM_EXACT": "exact",
    "SLURM_EXPORT_ENV": "export",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_SOCKET": "gpus-per-socket",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPU_BIND": "gpu-bind",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_OVERCOMMIT": "overcommit",
    "SLURM_OVERLAP": "overlap",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
}
"""Variables that stand for options which the command line does not give."""

FLAGS = frozenset({"exact", "label", "overcommit", "overlap"})
"""Options without a value: their variable is 0 if they are off."""

REPEATED_OPTIONS = {
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_JOB_NAME": "job-name",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}
"""Variables of a step that repeat an option's value, if it is given."""

IMAGE = "LOADMASTER_IMAGE"
"""Variable with the image that a script runs in; not set for scripts on the node itself."""

MOUNTS = "LOADMASTER_MOUNTS"
"""Variable with the mounts of the script's container, as its job has them, with commas between."""

BAD_OPTION = 255
"""Exit code for an unknown option, as of Slurm."""


class StepError(Exception):
    """Step that cannot run here; the message names the remedy."""


def main() -> int:
    """Run the step of the command line; return its exit code."""
    # 1. Read the command line.
    words = sys.argv[1:]
    if words[:1] in (["-V"], ["--version"]):
        print(f"loadmaster {__version__}")
        return 0
    env = os.environ
    try:
        if "SLURM_JOB_ID" not in env or "LOADMASTER_RUN_DIR" not in env:
            raise StepError("it runs inside a batch script alone; submit one that calls it")
        options, step = read_step(words, env)
        unmounted = other_mounts(options, env)
    except ScriptError as error:
        say(f"error: {error}")
        return BAD_OPTION
    except (StepError, ProgramsError, values.ValueFormatError) as error:
        say(f"error: {error}")
        return 1

    # 2. Warn of options that change nothing here.
    for name in sorted(options.keys() - USED - SILENT):
        say(f"warning: --{name} has no meaning here and is left out")
    for mount in unmounted:
        say(f"warning: {mount} is no mount of the job; give --container-mounts to sbatch")

    # 3. Hold the step's cores and GPUs, once other steps of the job leave enough. A step that
    #    shares those of others holds none, and sees as many GPUs as it asks for, from the first on.
    account = Account(Path(env["LOADMASTER_RUN_DIR"]) / "steps")
    is_shared = step.cores == 0
    gpus = account.take(
        cores=(step.cores, _number(env, "SLURM_CPUS_ON_NODE")),
        gpus=(0 if is_shared else step.gpus.count, len(_devices(env))),
        tell=lambda: say("waits for cores or GPUs that other steps of the job hold"),
    )
    if is_shared:
        gpus = list(range(step.gpus.count))

    # 4. Number the step, name its GPUs to each task, and run it.
    number = str(account.next_number())
    variables = {**step.variables, "SLURM_STEP_ID": number, "SLURM_STEPID": number}
    variables_by_task = [gpu_variables(step, task, gpus, env) for task in range(step.tasks)]
    step = replace(step, variables=variables, task_variables=tuple(variables_by_task))
    return run(step, env["SLURMD_NODENAME"], _file_name_fields(env, number))


def read_step(words: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], Step]:
    """Return the options of the command line, and the step that they ask for.

    `env`: variables of the script. Raises ScriptError, StepError, ProgramsError, ValueFormatError.
    """
    # 1. Options: the command line's hold over those of the environment.
    given_options, command = read_words(words, COMMAND_LINE, SRUN)
    of_command_line: dict[str, str] = {}
    for option in given_options:
        name = ALIASES.get(option.name, option.name)
        of_command_line[name] = option.value
    if not command:
        raise StepError("no program is given; write it behind the options")
    _refuse(of_command_line, env)
    _refuse_other_container(of_command_line, env)
    options = {**_from_environment(of_command_line, env), **of_command_line}

    # 2. The step.
    tasks = _tasks(options, env)
    if options.get("mpi", "none") != "none" and tasks > 1:
        raise StepError(f"--mpi={options['mpi']} is not done here: start MPI programs by mpirun")
    cores = _cores(options, env, tasks)
    exported = values.exported(options["export"]) if "export" in options else None
    variables = exported_to_step(exported, env)
    variables.update(_slurm_variables(options, env, tasks, cores))
    variables.pop("SLURM_GPUS_ON_NODE", None)  # the job's; a step with GPUs gets its own
    step = Step(
        commands=_commands(options, command, tasks),
        cores=cores,
        gpus=_gpus(options, env, tasks),
        variables=variables,
        folder=options.get("chdir", options.get("container-workdir", ".")),
        label="label" in options,
        output=options.get("output", ""),
        error=options.get("error", ""),
        appends=options.get("open-mode", "").startswith("a"),
        source=options.get("input", ""),
        stops_at_failure=options.get("kill-on-bad-exit", "0") != "0",
        limit_s=_limit_s(options),
    )
    return of_command_line, step


def _refuse(options: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Raise StepError for an option without which the step would do something else."""
    if options.get("relative", "0") != "0":
        reason = "it starts tasks on the script's own node alone; leave it out"
        raise StepError(f"--relative is not done here: {reason}")
    own_ids = {env["SLURM_JOB_ID"], env.get("SLURM_ARRAY_JOB_ID")}
    if options.get("jobid", env["SLURM_JOB_ID"]) not in own_ids:
        reason = f"--jobid={options['jobid']} is another job's, and a script starts its own steps"
        raise StepError(f"{reason}; leave it out")


def _refuse_other_container(options: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Raise StepError for another image than that of the script's own container."""
    if not {"container-image", "container-name"} & options.keys():
        return
    own_image = env.get(IMAGE, "")
    if not own_image:
        reason = "the script runs without an image"
        raise StepError(f"{reason}; give --container-image to sbatch, or as an #SBATCH line")

    # A name alone stands for the container of an earlier step, which is the job's.
    image = options.get("container-image")
    if image is not None and image_name(image) != image_name(own_image):
        reason = f"{image[:80]} is not the job's image, {own_image}"
        raise StepError(f"{reason}; submit a job of its own for it")


def other_mounts(options: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return the mounts of a step whose targets are no mounts of the script's container.

    Their sources are not compared: variables such as PWD differ between container and node.
    """
    own_mounts = [mount for mount in env.get(MOUNTS, "").split(",") if mount]
    own_targets = {_target_of(mount) for mount in own_mounts}
    mounts = mount_list(options.get("container-mounts", ""), env.get("SLURM_SUBMIT_DIR", ""))
    return [mount for mount in mounts if _target_of(mount) not in own_targets]


def _target_of(mount: str) -> str:
    """Return the folder in the container of SOURCE:TARGET or SOURCE:TARGET:ro."""
    return mount.split(":")[1]


def _from_environment(of_command_line: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the options that variables stand for.

    Those about GPUs are left out if the command line itself asks for GPUs.
    """
    asks_for_gpus = any(option in of_command_line for option in AMOUNTS)
    options: dict[str, str] = {}
    for variable, option in FROM_ENVIRONMENT.items():
        value = env.get(variable, "")
        is_given = value != "" and not (option in FLAGS and value == "0")
        is_of_gpus = option in AMOUNTS or option == "ntasks-per-gpu"
        is_replaced = is_of_gpus and asks_for_gpus
        if is_given and not is_replaced:
            options[option] = value
    return options


def _commands(
    options: Mapping[str, str], command: Sequence[str], tasks: int
) -> tuple[tuple[str, ...], ...]:
    """Return the command of each task."""
    if "multi-prog" in options:
        return commands_of(Path(options.get("chdir", ".")) / command[0], tasks)
    return (tuple(command),) * tasks


def _tasks(options: Mapping[str, str], env: Mapping[str, str]) -> int:
    """Return the number of tasks; raise StepError if some of them would be on other nodes."""
    # 1. The number: of the options or of the job, else by tasks per GPU, else by tasks per node.
    nodes = _number(env, "SLURM_JOB_NUM_NODES")
    if "nodes" in options:
        nodes, _ = values.nodes(options["nodes"])
    per_node = _count(options, "ntasks-per-node") or _number(env, "SLURM_NTASKS_PER_NODE")
    tasks = _count(options, "ntasks") or _number(env, "SLURM_NTASKS", 0)
    if tasks and "ntasks-per-node" in options and tasks != nodes * per_node:
        reason = f"--ntasks-per-node={per_node} does not fit {tasks} tasks on {nodes} nodes"
        say(f"warning: {reason} and is left out")
    if not tasks and "ntasks-per-gpu" in options:
        gpus = step_gpus(options, 1, len(_devices(env))).count
        tasks = _count(options, "ntasks-per-gpu") * gpus
    if not tasks:
        tasks = nodes * per_node

    # 2. The nodes, which must be the script's own: Slurm starts at least one task on each.
    node = env["SLURMD_NODENAME"]
    nodes_in_use = min(tasks, nodes)
    other_nodes = ""
    if nodes_in_use != 1:
        other_nodes = f"{nodes_in_use} nodes"
    if options.get("nodelist", node) != node:
        other_nodes = options["nodelist"]
    if other_nodes:
        reason = f"its tasks would be on {other_nodes}, and it starts tasks on {node} alone"
        remedy = "start them by mpirun or ssh over LOADMASTER_HOSTS, or submit processes: each"
        raise StepError(f"{reason}; give -N1, {remedy}")
    return tasks


def _cores(options: Mapping[str, str], env: Mapping[str, str], tasks: int) -> int:
    """Return the cores that the step holds: those that it asks for, or all of the job.

    0 for a step that shares cores and GPUs with others.
    """
    job_cores = _number(env, "SLURM_CPUS_ON_NODE")
    task_cores = _count(options, "cpus-per-task") or _number(env, "SLURM_CPUS_PER_TASK")
    needed = tasks * task_cores
    if needed > job_cores and "overcommit" not in options:
        needs = f"{tasks} tasks of {task_cores} cores need {needed}"
        reason = f"{needs}, and the job has {job_cores} here"
        raise StepError(f"{reason}; give fewer, ask for more at submission, or add --overcommit")
    # A step inside another step would wait for ever for cores that the outer one holds.
    if "overlap" in options or "SLURM_STEP_ID" in env:
        return 0
    if {"exact", "exclusive", "cpus-per-task"} & options.keys():
        return min(needed, job_cores)
    return job_cores


def _gpus(options: Mapping[str, str], env: Mapping[str, str], tasks: int) -> StepGpus:
    """Return the GPUs of the step; raise StepError if its job has too few here, or others."""
    job_gpus = len(_devices(env))
    gpus = step_gpus(options, tasks, job_gpus)
    own_type = env.get("LOADMASTER_GPU_TYPE", "")
    other_types = [name for name in gpus.types if name.casefold() != own_type.casefold()]
    if gpus.count and job_gpus and other_types:
        reason = f"GPUs of the type {other_types[0]} are asked for, and the job has {own_type}"
        raise StepError(f"{reason}; leave the type out")
    if gpus.count > job_gpus:
        reason = f"{gpus.count} GPUs are asked for, and the job has {job_gpus} here"
        raise StepError(f"{reason}; give fewer, or ask for more at submission")
    return gpus


def _devices(env: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the job's GPUs on this node."""
    return [device for device in env.get("LOADMASTER_DEVICES", "").split(",") if device]


def gpu_variables(
    step: Step, task: int, gpus: Sequence[int], env: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables by which a task sees only its own GPUs.

    `gpus`: places of the step's GPUs among its job's.
    """
    # 1. UUIDs of the task's GPUs.
    devices = _devices(env)
    if not devices:
        return {}
    chosen = step.gpus.binding.of_task(task, gpus)
    uuids = ",".join(devices[place] for place in chosen)
    variables = {
        "LOADMASTER_DEVICES": uuids,
        "LOADMASTER_GPUS": str(len(chosen)),
        "CUDA_VISIBLE_DEVICES": uuids,
    }
    # With emulated GPUs the job's own variable is empty, and stays so.
    if env.get("CUDA_VISIBLE_DEVICES") == "":
        variables["CUDA_VISIBLE_DEVICES"] = ""

    # 2. Numbers of the same GPUs on the node. A step inside a step chooses from the outer one's.
    outer = "SLURM_STEP_GPUS" if "SLURM_STEP_ID" in env else "SLURM_JOB_GPUS"
    numbers = env.get(outer, "").split(",")
    if chosen and len(numbers) == len(devices):
        variables["SLURM_STEP_GPUS"] = ",".join(numbers[place] for place in chosen)
    if gpus:
        variables["SLURM_GPUS_ON_NODE"] = str(len(gpus))
    return variables


def _limit_s(options: Mapping[str, str]) -> float | None:
    """Return the seconds after which the step is ended, in whole minutes as of Slurm.

    None: never.
    """
    if "time" not in options:
        return None
    limit_s = values.time_s(options["time"])
    if limit_s is None:
        return None
    return math.ceil(limit_s / 60) * 60.0


def _slurm_variables(
    options: Mapping[str, str], env: Mapping[str, str], tasks: int, cores: int
) -> dict[str, str]:
    """Return Slurm's variables of all tasks of a step, except its number."""
    # 1. Variables that each step has.
    number_of_tasks = str(tasks)
    node = env["SLURMD_NODENAME"]
    address = env.get("LOADMASTER_HOST_ADDRESSES", "").split(",")[0] or "127.0.0.1"
    variables = {
        "SLURM_NTASKS": number_of_tasks,
        "SLURM_NPROCS": number_of_tasks,
        "SLURM_STEP_NUM_TASKS": number_of_tasks,
        "SLURM_TASKS_PER_NODE": number_of_tasks,
        "SLURM_STEP_TASKS_PER_NODE": number_of_tasks,
        "SLURM_NNODES": "1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": node,
        "SLURM_TOPOLOGY_ADDR": node,
        "SLURM_LAUNCH_NODE_IPADDR": address,
        "SLURM_SRUN_COMM_HOST": address,
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(str(task) for task in range(tasks)),
        "SLURM_DISTRIBUTION": options.get("distribution", "block"),
        "SLURM_UMASK": f"{_umask():04o}",
    }

    # 2. Variables that depend on the job and the options.
    if "SLURM_JOB_CPUS_PER_NODE" in env:
        variables["SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0"] = env["SLURM_JOB_CPUS_PER_NODE"]
    if cores:
        variables["SLURM_CPUS_ON_NODE"] = str(cores)
    if "label" in options:
        variables["SLURM_LABELIO"] = "1"
    for variable, option in REPEATED_OPTIONS.items():
        if option in options:
            variables[variable] = options[option]
    return variables


def _umask() -> int:
    """Return the process' umask, which can be read only by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _file_name_fields(env: Mapping[str, str], number: str) -> dict[str, str]:
    """Return the values of fields such as %j in names of files, by letter; `number`: the step's."""
    job = env["SLURM_JOB_ID"]
    return {
        "j": job,
        "J": f"{job}.{number}",
        "A": env.get("SLURM_ARRAY_JOB_ID", job),
        "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),  # Slurm's number for none
        "N": env["SLURMD_NODENAME"],
        "n": "0",
        "s": number,
        "u": env.get("SLURM_JOB_USER", getpass.getuser()),
        "x": env.get("SLURM_JOB_NAME", ""),
    }


def _count(options: Mapping[str, str], name: str) -> int:
    """Return the number that an option gives, 0 without it. Raises StepError."""
    try:
        return values.count(options[name]) if name in options else 0
    except values.ValueFormatError as problem:
        raise StepError(f"--{name}: {problem}") from None


def _number(env: Mapping[str, str], name: str, default: int = 1) -> int:
    """Return the number in a variable; the default if it is not set or no number."""
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


if __name__ == "__main__":
    sys.exit(main())
