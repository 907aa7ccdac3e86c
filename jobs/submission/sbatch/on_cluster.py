"""Translation of a script's options where they depend on the nodes of the cluster."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from clusters.models import Cluster
from jobs.submission.feasibility import Demand, Infeasible, Inventory
from jobs.submission.fields import FieldError, gpu_types
from jobs.submission.sbatch.needs import move_gpu_types
from jobs.submission.sbatch.script_job import Site, Submitted
from jobs.submission.sbatch.translation import job_fields
from loadmaster.slurm.options.reading import ScriptError

MOST_TRIED = 100
"""Numbers of nodes of one range that are tried."""


def job_on_cluster(
    data: Mapping[str, Any], now: datetime, cluster: Cluster | None, inventory: Inventory
) -> Submitted:
    """Return the fields of a job whose `data` have a script. Raises ScriptError.

    Of a range of nodes it takes as few as could hold the job, and the least number if none could.
    """
    # 1. With the least number of nodes.
    if cluster is None:
        return job_fields(data["sbatch"], now, own=data)
    gpus_of_node = partial(inventory.gpus_of_nodes, cluster)
    submitted = job_fields(data["sbatch"], now, data, Site(gpus_of_node=gpus_of_node))

    # 2. With more, if these could never hold it.
    if submitted.node_range is not None and not _may_hold(cluster, inventory, submitted):
        least, most = submitted.node_range
        present = sum(node.count for node in inventory.capacities(cluster))
        for nodes in range(least + 1, min(most, present, least + MOST_TRIED) + 1):
            with suppress(ScriptError):  # such as fewer GPUs than nodes
                other = job_fields(data["sbatch"], now, data, Site(nodes, gpus_of_node))
                if _may_hold(cluster, inventory, other):
                    submitted = other
                    break

    # 3. Labels that name GPU types.
    if "labels" in submitted.fields:
        labels = frozenset[str]().union(*(n.labels for n in inventory.capacities(cluster)))
        move_gpu_types(submitted, inventory.gpu_types, labels)
    return submitted


def _may_hold(cluster: Cluster, inventory: Inventory, submitted: Submitted) -> bool:
    """Return True unless the nodes of the cluster could never hold the job's units."""
    job = submitted.fields
    gpus = job.get("gpus", 0)
    demand = Demand(
        gpus_min=gpus,
        gpus_max=gpus,
        allowed_types=_known_types(job.get("allowed_types", ()), inventory),
        cores=job["cores"],
        memory_gb=job.get("memory_gb", 1.0),
        labels=(),
        units=job.get("units", 1),
        units_per_node=job.get("units_per_node", 0),
        nodes=job.get("nodes", 0),
    )
    try:
        inventory.warnings(cluster, demand)
    except Infeasible:
        return False
    return True


def _known_types(names: Sequence[str], inventory: Inventory) -> tuple[str, ...]:
    """Return GPU types in the spelling of the cluster; () if one of them is unknown."""
    try:
        return gpu_types(list(names), inventory.gpu_types) if names else ()
    except FieldError:
        return ()
