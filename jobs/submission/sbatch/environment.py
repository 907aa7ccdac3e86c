"""Variables of a script: those of the place of submission, and those that repeat its options."""

from typing import Any

from jobs.submission.sbatch.needs import Size, divided_up
from jobs.submission.sbatch.script_job import ScriptJob
from loadmaster.slurm.options import values
from loadmaster.slurm.options.reading import NAMED

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

OF_THE_HOST = frozenset({
    "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "PWD", "PYTHONHOME",
    "PYTHONPATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
})  # fmt: skip  # a long list of names
"""Variables of the place of submission that `--export=ALL` does not bring into an image.

They name folders and programs of another machine; those of the image hold.
"""


def set_environment(job: ScriptJob, size: Size, *, in_container: bool) -> None:
    """Set the variables of `--export`, and those that repeat what the options say.

    Warns of names that are not set at the place of submission.
    """
    variables = exported_variables(job, in_container=in_container)
    wanted = job.option_value("export", values.exported, values.Exported())
    missing = sorted(wanted.names - variables.keys())
    for name in missing[:NAMED]:
        job.warn("export", f"{name} is not set where it was submitted, and left out")
    if len(missing) > NAMED:
        job.warn("export", f"{len(missing) - NAMED} more names are not set there either")
    job.set_field("environment", {**variables, **_slurm_variables(job, size)})


def exported_variables(job: ScriptJob, *, in_container: bool) -> dict[str, Any]:
    """Return the variables that `--export` asks for, with their values.

    In a container the user has the name of the place of submission: scripts name folders by it.
    """
    wanted = job.option_value("export", values.exported, values.Exported())
    named = {*wanted.names, *job.option_value("container-env", str, "").split(",")}
    variables: dict[str, Any] = {}
    if in_container and job.parts["user"]:
        variables["USER"] = job.parts["user"]
    for name, value in job.parts["environment"].items():
        is_of_host = in_container and name in OF_THE_HOST
        if name in named or (wanted.all and not is_of_host):
            variables[name] = value
    return {**variables, **wanted.values}


def _slurm_variables(job: ScriptJob, size: Size) -> dict[str, str]:
    """Return Slurm's variables about options, tasks and the place of submission."""
    variables = dict[str, str]()
    if {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & job.options.keys():
        variables["SLURM_NTASKS"] = str(size.tasks)
        variables["SLURM_NPROCS"] = str(size.tasks)
    # Without shared GPUs each task is a unit, whose node tells the number.
    if size.nodes_that_share:
        variables["SLURM_TASKS_PER_NODE"] = _tasks_by_node(size.tasks, size.nodes_that_share)
    for option, name in REPEATED_OPTIONS.items():
        if option in job.options:
            variables[name] = job.options[option].value
    for option, name in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU")):
        memory_gb = job.option_value(option, values.memory_gb, 0.0)
        if memory_gb:
            variables[name] = str(divided_up(round(memory_gb * 1e9), 2**20))  # MiB
    if job.parts["folder"]:
        variables["SLURM_SUBMIT_DIR"] = job.parts["folder"]
    if job.parts["host"]:
        variables["SLURM_SUBMIT_HOST"] = job.parts["host"]
    return variables


def _tasks_by_node(tasks: int, nodes: int) -> str:
    """Return the tasks of each node as Slurm writes them: 8 on 3 nodes as 3(x2),2."""
    least, nodes_with_one_more = divmod(tasks, nodes)
    others = nodes - nodes_with_one_more
    texts = list[str]()
    for of_node, equal_nodes in ((least + 1, nodes_with_one_more), (least, others)):
        if equal_nodes == 1:
            texts.append(str(of_node))
        elif equal_nodes > 1:
            texts.append(f"{of_node}(x{equal_nodes})")
    return ",".join(texts)
