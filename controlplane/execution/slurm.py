"""Variables and names of files that scripts for Slurm see of a launch."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import ceil

from jobs.models import Assignment, Job
from loadmaster.protocol import Host
from loadmaster.slurm.scripts.file_names import filled
from loadmaster.slurm.scripts.nodelists import compress

NO_INDEX = "4294967294"
"""Slurm's `%a` outside of an array."""


def variables_of(assignment: Assignment) -> dict[str, str]:
    """Variables of the script that a launch runs."""
    job = assignment.job
    launch = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    seats = list(launch.select_related("node").order_by("rank"))
    tasks = [seat.units for seat in seats]
    cores = [units * job.cores for units in tasks]
    if job.exclusive:
        # It has whole nodes, and runs as many tasks as these hold unless its script says how many.
        cores = [seat.node.cores - seat.node.reserved_cores for seat in seats]
        if "SLURM_NTASKS" not in job.environment:
            tasks = [max(1, int(of_node / job.cores)) for of_node in cores]
    hosts = []
    for seat, units in zip(seats, tasks, strict=True):
        hosts.append(Host(seat.node.name, units=units))
    return variables(job, hosts, assignment.fence, cores)


def variables(
    job: Job, hosts: Sequence[Host], fence: int, cores: Sequence[float]
) -> dict[str, str]:
    """Variables of a script on its first host.

    `hosts`: the launch's, with the number of tasks as units. `fence`: the launch's number. `cores`:
    those of the job on each host. The script's own options about tasks and memory are in the job's
    environment already.
    """
    number = str(job.number)
    nodes = compress([host.name for host in hosts])
    values = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), number),
        "SLURM_JOB_NAME": job.name,
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), nodes),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(hosts))),
        "SLURM_TASKS_PER_NODE": repeated(host.units for host in hosts),
        "SLURM_JOB_CPUS_PER_NODE": repeated(map(ceil, cores)),
        "SLURM_CPUS_ON_NODE": str(ceil(cores[0])),
        "SLURM_JOB_PARTITION": job.cluster.name,
        "SLURM_CLUSTER_NAME": job.cluster.name,
        "SLURM_JOB_USER": job.user.get_username(),
        **dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS"), "0"),
        **dict.fromkeys(("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"), hosts[0].name),
    }
    array = job.array
    if array is not None:
        values["SLURM_ARRAY_JOB_ID"] = str(array.number)
        values["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
        values["SLURM_ARRAY_TASK_COUNT"] = str(array.size)
        values["SLURM_ARRAY_TASK_MIN"] = str(array.lowest)
        values["SLURM_ARRAY_TASK_MAX"] = str(array.highest)
        values["SLURM_ARRAY_TASK_STEP"] = str(array.step)
    if "SLURM_TASKS_PER_NODE" in job.environment:
        # Tasks that share the GPUs of a node: the script's options say how many.
        values["SLURM_TASKS_PER_NODE"] = str(job.environment["SLURM_TASKS_PER_NODE"])
    if fence > 1:
        values["SLURM_RESTART_COUNT"] = str(fence - 1)
    return values


def file_name(pattern: str, job: Job, node: str) -> str:
    """Name of a file with Slurm's fields filled in, such as %j, %x, %u, %N, %A_%a or %4a."""
    if "%" not in pattern:
        return pattern
    values = {
        **dict.fromkeys("jJ", str(job.number)),
        "A": str(job.number if job.array is None else job.array.number),
        "a": NO_INDEX if job.array_index is None else str(job.array_index),
        **dict.fromkeys("nt", "0"),
        "N": node,
        "s": "batch",
        "u": job.user.get_username(),
        "x": job.name,
    }
    return filled(pattern, values)


def repeated(amounts: Iterable[int]) -> str:
    """Amounts by node as Slurm writes them: of 2, 2, 1 the text 2(x2),1."""
    runs = [(amount, len(list(run))) for amount, run in groupby(amounts)]
    texts = []
    for amount, times in runs:
        texts.append(f"{amount}(x{times})" if times > 1 else str(amount))
    return ",".join(texts)
