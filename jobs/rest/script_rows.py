"""Jobs and nodes in the form that the programs of running scripts read."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Max, Q
from django.utils import timezone

from clusters.intervals import is_silent
from clusters.models import Cluster, Node
from clusters.models.nodes import Role
from jobs.dependencies import in_job_file, unsatisfied
from jobs.models import Assignment, AssignmentSlot, Dependency, Job
from jobs.selectors import LIVE_STATES

NO_NODES: Sequence[str] = ()
"""Nodes of a job that runs nowhere."""


def rows_of(jobs: Sequence[Job], *, measured: bool = False) -> list[dict[str, Any]]:
    """Return jobs in the form that `loadmaster.slurm.programs.listing.Row` describes.

    `measured`: with the memory that their last launches have used.
    """
    # 1. Facts of all jobs by their ids, in one query each.
    nodes_now = _nodes_of(jobs, is_live=True)
    nodes_at_end = _nodes_of([job for job in jobs if job.is_over], is_live=False)
    ends = _ends(jobs)
    waits = _dependencies(jobs)
    peaks_gb = _peaks_gb(jobs) if measured else {}

    # 2. A row for each job.
    rows = []
    for job in jobs:
        row = _row(job, nodes_now.get(job.pk, NO_NODES))
        row["ran_on"] = list(nodes_at_end.get(job.pk, row["nodes"]))
        code, blame = ends.get(job.pk, (None, ""))
        row["exit_code"] = code
        row["blame"] = blame
        row["dependencies"] = waits.get(job.pk, [])
        row["peak_memory_gb"] = peaks_gb.get(job.pk)
        rows.append(row)
    return rows


def _nodes_of(jobs: Sequence[Job], *, is_live: bool) -> Mapping[UUID, Sequence[str]]:
    """Return the names of the nodes on which each job runs, or on which its last launch ran."""
    assignments = Assignment.objects.filter(job__in=[job.pk for job in jobs])
    if is_live:
        assignments = assignments.filter(state__in=LIVE_STATES)
    else:
        assignments = assignments.filter(fence=F("job__fence"))
    in_order = assignments.order_by("fence", "copy", "rank")
    nodes: dict[UUID, list[str]] = defaultdict(list)
    for job_id, node in in_order.values_list("job", "node__name"):
        nodes[job_id].append(node)
    return nodes


def _ends(jobs: Sequence[Job]) -> dict[UUID, tuple[int | None, str]]:
    """Return exit code and class of the failure of the last launch of each job that is over."""
    ended = [job.pk for job in jobs if job.is_over]
    last = Assignment.objects.filter(job__in=ended, rank=0, fence=F("job__fence"))
    rows = last.order_by("created_at").values_list("job", "exit_code", "reason_class")
    return {job_id: (code, reason_class) for job_id, code, reason_class in rows}


def _peaks_gb(jobs: Sequence[Job]) -> dict[UUID, float]:
    """Return the most memory in GB that a process of each job's last launch has used."""
    started = [job.pk for job in jobs if job.started_at is not None]
    last = Assignment.objects.filter(job__in=started, fence=F("job__fence")).order_by()
    peaks = last.values("job").annotate(peak=Max("usage__memory_gb"))
    return {row["job"]: row["peak"] for row in peaks if row["peak"] is not None}


def _dependencies(jobs: Sequence[Job]) -> Mapping[UUID, list[str]]:
    """Return what each job still waits for, as in a job file with numbers in place of ids."""
    waiting = [job.pk for job in jobs if not job.is_over]
    links = Dependency.objects.filter(unsatisfied(), job__in=waiting)
    links_by_job: dict[UUID, list[Dependency]] = defaultdict(list)
    for link in links.select_related("on__array", "on_array").order_by("pk"):
        links_by_job[link.job_id].append(link)
    return {job_id: in_job_file(own, numbered=True) for job_id, own in links_by_job.items()}


def _row(job: Job, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a job's own row; `nodes`: names of those on which it runs."""
    now = timezone.now()
    end = job.completed_at or now
    array = job.array
    return {
        "number": job.number,
        "array": None if array is None else array.number,
        "index": job.array_index,
        "at_once": None if array is None else array.at_once,
        "name": job.name,
        "user": job.user.get_username(),
        "team": job.team.name,
        "cluster": job.cluster.name,
        "state": job.state,
        "waiting": job.waiting_code,
        "failure": job.failure_reason[:200],
        "nodes": list(nodes),
        "node_count": len(nodes) or job.nodes or 1,
        "units": job.units,
        "cores": job.cores * job.units,
        "memory_gb": job.memory_gb * job.units,
        "gpus": job.gpus_max,
        "priority": job.priority,
        "restarts": max(0, job.fence - 1),
        "submitted_s": job.submitted_at.timestamp(),
        "begin_s": job.begin_at.timestamp() if job.begin_at else None,
        "started_s": job.started_at.timestamp() if job.started_at else None,
        "ended_s": job.completed_at.timestamp() if job.completed_at else None,
        "run_s": (end - job.started_at).total_seconds() if job.started_at else 0.0,
        "walltime_s": job.walltime_s,
        "folder": job.folder,
        "output": job.output,
        "error_output": job.error_output or job.output,
        "preemptible": job.preemptible,
    }


def node_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the cluster's nodes in the form that `loadmaster.slurm.programs.sinfo.Row` describes.

    They say how much of each is in use, and not by whom.
    """
    nodes = Node.objects.filter(cluster=cluster).exclude(role=Role.PROFILING).order_by("name")
    healthy_gpus = Count("devices", filter=Q(devices__healthy=True))
    used_cores, exclusive_nodes = _cores_in_use(cluster)
    used_gpus = _gpus_in_use(cluster)
    rows = []
    for node in nodes.select_related("gpu_type").annotate(gpus=healthy_gpus):
        cores = node.cores - node.reserved_cores
        in_use = cores if node.pk in exclusive_nodes else used_cores[node.pk]
        rows.append(
            {
                "name": node.name,
                "cluster": cluster.name,
                "address": node.address,
                "state": node.state,
                "is_silent": is_silent(node.session_expires_at),
                "reason": node.reason,
                "cores": cores,
                "used_cores": min(cores, in_use),
                "memory_gb": node.memory_gb - node.reserved_memory_gb,
                "gpus": node.gpus,
                "used_gpus": used_gpus[node.pk],
                "gpu_type": node.type_name,
                "resources": node.resources,
                "labels": node.labels,
            }
        )
    return rows


def _cores_in_use(cluster: Cluster) -> tuple[Mapping[UUID, float], set[UUID]]:
    """Return the cores that jobs have on each node, and the nodes that jobs have for themselves."""
    live = Assignment.objects.filter(node__cluster=cluster, state__in=LIVE_STATES)
    rows = live.values_list("node", "job__cores", "units", "cpu_quota", "job__exclusive")
    cores: defaultdict[UUID, float] = defaultdict(float)
    exclusive_nodes = set[UUID]()
    for node_id, unit_cores, units, cpu_quota, is_exclusive in rows:
        cores[node_id] += unit_cores * units if cpu_quota is None else cpu_quota
        if is_exclusive:
            exclusive_nodes.add(node_id)
    return cores, exclusive_nodes


def _gpus_in_use(cluster: Cluster) -> Mapping[UUID, int]:
    """Return the number of GPUs that jobs have on each node."""
    slots = AssignmentSlot.objects.filter(live=True, device__node__cluster=cluster).order_by()
    devices_by_node = slots.values_list("device__node").annotate(Count("device", distinct=True))
    return Counter(dict(devices_by_node))
