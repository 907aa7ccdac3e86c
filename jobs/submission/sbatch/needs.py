"""Size of a job by its options: tasks, nodes, cores, GPUs, memory and other resources."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from jobs.submission.sbatch.script_job import ScriptJob, Submitted
from loadmaster.slurm.options import constraints, values

GPU_OPTIONS = (
    "gpus", "gres", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu",
)  # fmt: skip  # a list of names
"""Options that ask for GPUs."""

NO_RESOURCES: tuple[int, list[str], dict[str, float]] = (0, [], {})
"""Value of `--gres` if none is given: GPUs, their types, and amounts of other resources."""

SRUN_LINE = re.compile(r"^[ \t]*srun\s", re.MULTILINE)
"""Line of a script that starts a step of several tasks."""


@dataclass(frozen=True, slots=True)
class _GpuRequest:
    """GPUs that the options ask for: of the job, of each node, of each task; 0: not asked for.

    `types`: GPU types that the options name. `option`: the first option that asks for GPUs, for
    messages.
    """

    of_job: int = 0
    of_node: int = 0
    of_task: int = 0
    types: tuple[str, ...] = ()
    option: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """Tasks of a job, and the equal units that they are run as.

    `nodes`, `units_per_node`: on how many nodes and how many units of each; 0: the scheduler
    decides. `units_of_node`: units over which the memory and resources of a node are divided.
    `gpus_of_unit`, `tasks_of_unit`: GPUs and tasks of each unit. `nodes_that_share`: nodes over
    which the tasks are spread if they share the GPUs of their node, else 0.
    """

    tasks: int
    units: int
    nodes: int
    units_per_node: int
    units_of_node: int
    gpus_of_unit: int
    tasks_of_unit: int = 1
    nodes_that_share: int = 0


def set_size(job: ScriptJob) -> Size:
    """Set units, nodes, cores and GPUs of the job, and return its size.

    Each task is a unit if the GPUs divide evenly over the tasks. Otherwise all tasks of a node
    share its GPUs: they are one unit, or, if the nodes have different numbers of GPUs, each GPU
    is a unit.
    """
    # 1. Number of tasks and nodes.
    tasks_per_node = job.option_value("ntasks-per-node", values.count, 0)
    nodes = _nodes(job)
    request = _gpu_request(job)
    tasks = job.option_value("ntasks", values.count, 0)
    if not tasks:
        tasks = _implied_tasks(job, request, nodes, tasks_per_node)
    if nodes > tasks:
        job.warn("nodes", f"takes {tasks} nodes, one for each task; {nodes} have no use")
        nodes = tasks
    if tasks > 1 and nodes != 1 and SRUN_LINE.search(job.parts["script"]):
        limit = "srun starts tasks on the script's own node alone; --nodes=1 keeps all on one"
        job.submitted.warnings.append(f"script: {limit}")

    # 2. GPUs of the whole job. Without a number of nodes, its tasks are counted on as few as
    #    possible.
    tasks_of_node = tasks_per_node or divided_up(tasks, nodes or 1)
    nodes_in_use = nodes or divided_up(tasks, tasks_of_node)
    if nodes or tasks_per_node or tasks == 1:
        request = _of_whole_nodes(job, request)
    gpus = _gpus_of_job(job, request, tasks, nodes_in_use)

    # 3. Units: the tasks, or what shares GPUs.
    if gpus % tasks == 0:
        size = Size(
            tasks,
            units=tasks,
            nodes=nodes,
            units_per_node=tasks_per_node,
            units_of_node=tasks_of_node,
            gpus_of_unit=gpus // tasks,
        )
    else:
        if gpus < nodes_in_use:
            remedy = f"ask for {nodes_in_use}, or for fewer nodes"
            problem = f"{gpus} GPUs are too few for {nodes_in_use} nodes; {remedy}"
            job.refuse(request.option, problem)
        size = _size_with_shared_gpus(job, tasks, nodes_in_use, gpus)

    # 4. The fields of the job.
    if size.units > 1:
        job.set_field("units", size.units, "ntasks")
    job.set_field_unless_0("nodes", size.nodes, "nodes")
    job.set_field_unless_0("units_per_node", size.units_per_node, "ntasks-per-node")
    job.set_field_unless_0("gpus", gpus, request.option)
    if request.types:
        types = list(dict.fromkeys(request.types))
        job.set_field("allowed_types", types, request.option)
    job.set_field("cores", _cores_of_unit(job, size), "cpus-per-task")
    job.set_field("exclusive", "exclusive" in job.options, "exclusive")
    return size


def _nodes(job: ScriptJob) -> int:
    """Return the number of nodes: of a range the one that the site chooses, else the least.

    0 without `--nodes`.
    """
    least, most = job.option_value("nodes", values.nodes, (0, 0))
    nodes = job.site.nodes or least
    if most > least:
        job.submitted.node_range = (least, most)
        job.warn("nodes", f"takes {nodes} of {least} to {most} nodes, as few as can hold it")
    return nodes


def _gpu_request(job: ScriptJob) -> _GpuRequest:
    """Add up the GPUs that the options ask for."""
    no_gpus: tuple[int, list[str]] = (0, [])

    # 1. Each option with its number and types.
    of_job, types_of_job = job.option_value("gpus", values.gpus, no_gpus)
    of_gres, types_of_gres, _ = job.option_value("gres", values.gres, NO_RESOURCES)
    of_node, types_of_node = job.option_value("gpus-per-node", values.gpus, no_gpus)
    of_socket, types_of_socket = job.option_value("gpus-per-socket", values.gpus, no_gpus)
    of_task, types_of_task = job.option_value("gpus-per-task", values.gpus, no_gpus)

    # 2. Three of them ask for GPUs of each node.
    of_node += of_gres
    if of_socket:
        of_node += of_socket * job.option_value("sockets-per-node", values.count, 1)

    # 3. All together.
    options = [name for name in GPU_OPTIONS if name in job.options]
    return _GpuRequest(
        of_job=of_job,
        of_node=of_node,
        of_task=of_task,
        types=(*types_of_job, *types_of_gres, *types_of_node, *types_of_socket, *types_of_task),
        option=options[0] if options else "",
    )


def _implied_tasks(job: ScriptJob, request: _GpuRequest, nodes: int, tasks_per_node: int) -> int:
    """Return the tasks of a job without `--ntasks`: at least one, and one for each node."""
    least_nodes = max(1, nodes)
    if tasks_per_node:
        return least_nodes * tasks_per_node
    gpus = request.of_job or request.of_node * least_nodes
    tasks_per_gpu = job.option_value("ntasks-per-gpu", values.count, 0)
    if tasks_per_gpu:
        return max(1, gpus) * tasks_per_gpu
    if request.of_job and request.of_task:
        return max(1, request.of_job // request.of_task)
    return least_nodes


def _of_whole_nodes(job: ScriptJob, request: _GpuRequest) -> _GpuRequest:
    """Return the request with all GPUs of each node for `--exclusive`, as Slurm gives them.

    `--exclusive=user` and the like do not count.
    """
    if "exclusive" not in job.options or job.options["exclusive"].value:
        return request
    labels = job.option_value("constraint", constraints.labels, list[str]())
    gpus = job.site.gpus_of_node(request.types, labels)
    if gpus:
        return replace(request, of_job=0, of_task=0, of_node=gpus)
    if request.option:
        job.warn("exclusive", "gets the GPUs asked for; nodes have different numbers of them")
    return request


def _gpus_of_job(job: ScriptJob, request: _GpuRequest, tasks: int, nodes: int) -> int:
    """Return the GPUs of the whole job."""
    if request.of_job:
        return request.of_job
    if request.of_task:
        return request.of_task * tasks
    if request.of_node:
        return request.of_node * nodes
    tasks_per_gpu = job.option_value("ntasks-per-gpu", values.count, 0)
    return divided_up(tasks, tasks_per_gpu) if tasks_per_gpu else 0


def _size_with_shared_gpus(job: ScriptJob, tasks: int, nodes: int, gpus: int) -> Size:
    """Return the size of a job whose tasks share the GPUs of their node."""
    # 1. Nodes with equal numbers of GPUs: a unit for each node.
    if gpus % nodes == 0:
        return Size(
            tasks,
            units=nodes,
            nodes=nodes if nodes > 1 else 0,
            units_per_node=1 if nodes > 1 else 0,
            units_of_node=1,
            gpus_of_unit=gpus // nodes,
            tasks_of_unit=divided_up(tasks, nodes),
            nodes_that_share=nodes,
        )

    # 2. Nodes with different numbers of GPUs: a unit for each GPU. Any of them may be the only one
    #    on its node, so it has the memory of a whole node.
    if "mem" in job.options:
        job.warn("mem", "is given for each GPU, for the nodes have different numbers")
    return Size(
        tasks,
        units=gpus,
        nodes=nodes,
        units_per_node=0,
        units_of_node=1,
        gpus_of_unit=1,
        tasks_of_unit=divided_up(tasks, gpus),
        nodes_that_share=nodes,
    )


def _cores_of_unit(job: ScriptJob, size: Size) -> int:
    """Return the cores of a unit: those of its tasks, or of its GPUs if these need more."""
    job.exclude_together("cpus-per-gpu", "cpus-per-task")
    cores_of_tasks = job.option_value("cpus-per-task", values.count, 1) * size.tasks_of_unit
    cores_of_gpus = job.option_value("cpus-per-gpu", values.count, 0) * size.gpus_of_unit
    return max(cores_of_tasks, cores_of_gpus)


def set_memory(job: ScriptJob, size: Size) -> None:
    """Set the memory of each unit."""
    job.exclude_together("mem", "mem-per-cpu", "mem-per-gpu")
    job.exclude_together("mem-per-cpu", "mem-per-gpu")
    per_core_gb = job.option_value("mem-per-cpu", values.memory_gb, 0.0)
    per_gpu_gb = job.option_value("mem-per-gpu", values.memory_gb, 0.0)
    per_node_gb = job.option_value("mem", values.memory_gb, 0.0)
    if per_core_gb:
        memory_gb = per_core_gb * job.submitted.fields["cores"]
        job.set_field("memory_gb", memory_gb, "mem-per-cpu")
    elif per_gpu_gb and size.gpus_of_unit:
        job.set_field("memory_gb", per_gpu_gb * size.gpus_of_unit, "mem-per-gpu")
    elif per_node_gb:
        units_that_divide = min(size.units, size.units_of_node)
        job.set_field("memory_gb", values.shares(per_node_gb, units_that_divide), "mem")
    elif "mem" in job.options and not job.problems:
        # The value is 0: a wrong one would be a problem.
        job.warn("mem", "0 asks for all of a node; it has the node for itself")
        job.set_field("exclusive", True, "mem")


def set_resources(job: ScriptJob, size: Size) -> None:
    """Set amounts of other resources, divided by the units of a node, and labels."""
    _, _, amounts = job.option_value("gres", values.gres, NO_RESOURCES)
    if amounts:
        units_that_divide = min(size.units, size.units_of_node)
        if units_that_divide > 1:
            job.warn("gres", "gives each task its part; amounts of a node are divided")
        of_unit = {name: amount / units_that_divide for name, amount in amounts.items()}
        job.set_field("resources", of_unit, "gres")
    labels = job.option_value("constraint", constraints.labels, list[str]())
    if labels:
        job.set_field("labels", labels, "constraint")
        # In Slurm, all nodes of [a|b] have the same label.
        constraint = job.options["constraint"].value
        is_same_on_all = "[" in constraint and "|" in constraint
        if is_same_on_all and job.submitted.fields.get("nodes", 1) > 1:
            job.warn("constraint", "its nodes may satisfy different alternatives")


def divided_up(amount: int, parts: int) -> int:
    """Return the amount of the largest of equal parts, rounded up."""
    return -(-amount // parts)


def move_gpu_types(
    submitted: Submitted, gpu_types: Collection[str], labels: Collection[str]
) -> None:
    """Turn labels that name GPU types, such as v100 or a100|v100, into `allowed_types`.

    `gpu_types`: all that there are; `labels`: those of the cluster's nodes, which stay labels.
    """
    fields = submitted.fields
    if not fields.get("gpus") or "allowed_types" in fields:
        return
    known_types = {gpu_type.casefold() for gpu_type in gpu_types}
    remaining: list[str] = []
    for entry in fields.get("labels", []):
        names = entry.split(constraints.ALTERNATIVE)
        are_types = all(name.casefold() in known_types and name not in labels for name in names)
        # A job has one list of types: of several entries the first becomes it.
        if are_types and "allowed_types" not in fields:
            fields["allowed_types"] = names
            submitted.places["allowed_types"] = submitted.places["labels"]
        else:
            remaining.append(entry)
    fields["labels"] = remaining
