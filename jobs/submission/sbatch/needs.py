"""Size of a job by its options: tasks, nodes, cores, GPUs, memory and other resources."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from jobs.submission.sbatch.reader import Reader, Submitted
from loadmaster.slurm.options import constraints, values

GPU_OPTIONS = (
    "gpus", "gres", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu",
)  # fmt: skip
"""Options that ask for GPUs."""

_STEP = re.compile(r"^[ \t]*srun\s", re.MULTILINE)


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
class Size:
    """Tasks of a job, and the equal units that they are run as.

    `units_of_node`: units over which the memory and resources of a node are divided.
    `gpus_of_unit`, `tasks_of_unit`: GPUs and tasks of each unit. `nodes_that_share`: nodes over
    which the tasks are spread if they share the GPUs of their node, else 0.
    """

    tasks: int
    units: int
    units_of_node: int
    gpus_of_unit: int
    tasks_of_unit: int = 1
    nodes_that_share: int = 0


def put_size(reader: Reader) -> Size:
    """Put units, nodes, cores and GPUs, and return the units.

    Each task is a unit if the GPUs divide evenly over the tasks. Otherwise all tasks of a node
    share its GPUs: they are one unit, or, if the nodes have different numbers of GPUs, each GPU
    is a unit.
    """
    # 1. Number of tasks and nodes.
    per_node = reader.read("ntasks-per-node", values.count, 0)
    nodes = _nodes(reader)
    request = _gpu_request(reader)
    tasks = reader.read("ntasks", values.count, 0)
    if not tasks:
        tasks = _implied_tasks(reader, request, nodes, per_node)
    if nodes > tasks:
        reader.warn("nodes", f"takes {tasks} nodes, one for each task; {nodes} have no use")
        nodes = tasks
    if tasks > 1 and nodes != 1 and _STEP.search(reader.parts["script"]):
        limit = "srun starts tasks on the script's own node alone; --nodes=1 keeps all on one"
        reader.result.warnings.append(f"script: {limit}")

    # 2. Units: tasks, or what shares GPUs.
    tasks_of_node = per_node or divided_up(tasks, nodes or 1)
    nodes_in_use = nodes or divided_up(tasks, tasks_of_node)
    if nodes or per_node or tasks == 1:
        request = _of_whole_nodes(reader, request)
    gpus = _gpus_of_job(reader, request, tasks, nodes_in_use)
    if gpus % tasks:
        size = _shared_size(reader, request, tasks, nodes_in_use, gpus)
    else:
        size = Size(tasks, units=tasks, units_of_node=tasks_of_node, gpus_of_unit=gpus // tasks)
        reader.put_number("units_per_node", per_node, "ntasks-per-node")
        reader.put_number("nodes", nodes, "nodes")

    # 3. The fields of the job.
    if size.units > 1:
        reader.put("units", size.units, "ntasks")
    reader.put_number("gpus", gpus, request.option)
    if request.types:
        reader.put("allowed_types", list(dict.fromkeys(request.types)), request.option)
    reader.put("cores", _cores(reader, size), "cpus-per-task")
    reader.put("exclusive", "exclusive" in reader.options, "exclusive")
    return size


def _nodes(reader: Reader) -> int:
    """Return the number of nodes: of a range the one that the site chooses, else the least."""
    least, most = reader.read("nodes", values.nodes, (0, 0))
    nodes = reader.site.nodes or least
    if most > least:
        reader.result.node_range = (least, most)
        reader.warn("nodes", f"takes {nodes} of {least} to {most} nodes, as few as can hold it")
    return nodes


def _of_whole_nodes(reader: Reader, request: _GpuRequest) -> _GpuRequest:
    """Return the request with all GPUs of each node for `--exclusive`, as Slurm gives them."""
    if "exclusive" not in reader.options or reader.options["exclusive"].value:
        return request
    labels = reader.read("constraint", constraints.labels, list[str]())
    gpus = reader.site.gpus_of_node(request.types, labels)
    if gpus:
        return replace(request, of_job=0, of_task=0, of_node=gpus)
    if request.option:
        reader.warn("exclusive", "gets the GPUs asked for; nodes have different numbers of them")
    return request


def _gpu_request(reader: Reader) -> _GpuRequest:
    """Add up the GPUs that the options ask for."""
    no_gpus: tuple[int, list[str]] = (0, [])
    no_resources: tuple[int, list[str], dict[str, float]] = (0, [], {})
    of_job, types = reader.read("gpus", values.gpus, no_gpus)
    of_node, types_of_gres, _ = reader.read("gres", values.gres, no_resources)
    more_of_node, types_of_node = reader.read("gpus-per-node", values.gpus, no_gpus)
    of_socket, types_of_socket = reader.read("gpus-per-socket", values.gpus, no_gpus)
    of_task, types_of_task = reader.read("gpus-per-task", values.gpus, no_gpus)
    if of_socket:
        of_node += of_socket * reader.read("sockets-per-node", values.count, 1)
    options = [name for name in GPU_OPTIONS if name in reader.options]
    return _GpuRequest(
        of_job=of_job,
        of_node=of_node + more_of_node,
        of_task=of_task,
        types=(*types, *types_of_gres, *types_of_node, *types_of_socket, *types_of_task),
        option=options[0] if options else "",
    )


def _implied_tasks(reader: Reader, request: _GpuRequest, nodes: int, per_node: int) -> int:
    """Return the tasks of a job that gives no number of them."""
    if per_node:
        return max(1, nodes) * per_node
    gpus = request.of_job or request.of_node * max(1, nodes)
    per_gpu = reader.read("ntasks-per-gpu", values.count, 0)
    if per_gpu:
        return max(1, gpus) * per_gpu
    if request.of_job and request.of_task:
        return max(1, request.of_job // request.of_task)
    return max(1, nodes)


def _gpus_of_job(reader: Reader, request: _GpuRequest, tasks: int, nodes: int) -> int:
    """Return the GPUs of the whole job."""
    if request.of_job:
        return request.of_job
    if request.of_task:
        return request.of_task * tasks
    if request.of_node:
        return request.of_node * nodes
    per_gpu = reader.read("ntasks-per-gpu", values.count, 0)
    return divided_up(tasks, per_gpu) if per_gpu else 0


def _shared_size(reader: Reader, request: _GpuRequest, tasks: int, nodes: int, gpus: int) -> Size:
    """Put units for tasks that share the GPUs of their node."""
    if gpus < nodes:
        remedy = f"ask for {nodes}, or for fewer nodes"
        problem = f"{gpus} GPUs are too few for {nodes} nodes; {remedy}"
        reader.problems.append(f"{reader.options[request.option]}: {problem}")
    if nodes > 1:
        reader.put("nodes", nodes, "nodes")

    # 1. Nodes with different numbers of GPUs: a unit for each GPU. Any of them may be the only one
    # on its node, so it has the memory of a whole node.
    if gpus % nodes:
        if "mem" in reader.options:
            reader.warn("mem", "is given for each GPU, for the nodes have different numbers")
        return Size(
            tasks,
            units=gpus,
            units_of_node=1,
            gpus_of_unit=1,
            tasks_of_unit=divided_up(tasks, gpus),
            nodes_that_share=nodes,
        )

    # 2. Else a unit for each node.
    if nodes > 1:
        reader.put("units_per_node", 1)
    return Size(
        tasks,
        units=nodes,
        units_of_node=1,
        gpus_of_unit=gpus // nodes,
        tasks_of_unit=divided_up(tasks, nodes),
        nodes_that_share=nodes,
    )


def _cores(reader: Reader, size: Size) -> int:
    """Return the cores of a unit: those of its tasks, or of its GPUs if these need more."""
    reader.exclude("cpus-per-gpu", "cpus-per-task")
    of_tasks = reader.read("cpus-per-task", values.count, 1) * size.tasks_of_unit
    of_gpus = reader.read("cpus-per-gpu", values.count, 0) * size.gpus_of_unit
    return max(of_tasks, of_gpus)


def put_memory(reader: Reader, size: Size) -> None:
    """Put the memory of each unit."""
    reader.exclude("mem", "mem-per-cpu", "mem-per-gpu")
    reader.exclude("mem-per-cpu", "mem-per-gpu")
    per_core = reader.read("mem-per-cpu", values.memory_gb, 0.0)
    per_gpu = reader.read("mem-per-gpu", values.memory_gb, 0.0)
    per_node = reader.read("mem", values.memory_gb, 0.0)
    if per_core:
        reader.put("memory_gb", per_core * reader.result.fields["cores"], "mem-per-cpu")
    elif per_gpu and size.gpus_of_unit:
        reader.put("memory_gb", per_gpu * size.gpus_of_unit, "mem-per-gpu")
    elif per_node:
        units = min(size.units, size.units_of_node)
        reader.put("memory_gb", values.shares(per_node, units), "mem")
    elif "mem" in reader.options and not reader.problems:
        # The value is 0: a wrong one would be a problem.
        reader.warn("mem", "0 asks for all of a node; it has the node for itself")
        reader.put("exclusive", True, "mem")


def put_resources(reader: Reader, size: Size) -> None:
    """Put amounts of other resources, divided by the units of a node, and labels."""
    no_resources: tuple[int, list[str], dict[str, float]] = (0, [], {})
    _, _, amounts = reader.read("gres", values.gres, no_resources)
    if amounts:
        units = min(size.units, size.units_of_node)
        if units > 1:
            reader.warn("gres", "gives each task its part; amounts of a node are divided")
        of_unit = {name: amount / units for name, amount in amounts.items()}
        reader.put("resources", of_unit, "gres")
    labels = reader.read("constraint", constraints.labels, list[str]())
    if labels:
        reader.put("labels", labels, "constraint")
        text = reader.options["constraint"].value
        if "[" in text and "|" in text and reader.result.fields.get("nodes", 1) > 1:
            reader.warn("constraint", "its nodes may satisfy different alternatives")


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
    known = {name.casefold() for name in gpu_types}
    kept: list[str] = []
    for entry in fields.get("labels", []):
        names = entry.split(constraints.ALTERNATIVE)
        are_types = all(name.casefold() in known and name not in labels for name in names)
        if are_types and "allowed_types" not in fields:
            fields["allowed_types"] = names
            submitted.places["allowed_types"] = submitted.places["labels"]
        else:
            kept.append(entry)
    fields["labels"] = kept
