"""Live clusters, their queues and their histories, written out as parts of a study."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

import profiling.selectors
from clusters.models import Cluster
from clusters.tariffs import price_steps
from controlplane.loop.live.observe import described, observe, team_view
from controlplane.studies.live_rules import with_rules
from foundation.forms import Form
from jobs.lifecycle import ENDED, JobState
from jobs.models import Job, Team
from jobs.selectors import teams_of, visible_jobs
from policies.contract.labels import is_own
from policies.contract.snapshot import (
    GpuTypeView,
    JobView,
    KindView,
    NodeState,
    NodeView,
    PriceInterval,
    Purpose,
    RankPlacement,
    Snapshot,
    TeamView,
)
from policies.placement.speed import devices_of

MOST_JOBS = 20_000
"""Newest jobs of a history."""

PRICED_S = 31 * 86_400.0
"""Seconds of prices that are written out; the last price holds after that."""

MINUTE = "%Y-%m-%d %H:%M UTC"
NODE_FIELDS = ("name", "gpu_type", "cores", "memory_gb", "rack", "link_gbps")
WrittenDevices = Mapping[tuple[str, str], tuple[str, str]]
"""(node name, device name) in a cluster file, by the ids of node and device in the live cluster."""

_JOB = Form(JobView)
_KIND = Form(KindView)
_PRICE_STEP = Form(PriceInterval)
_GPU_TYPE = Form(GpuTypeView)
_TEAM = Form(TeamView)


def cluster_spec(
    user: User, cluster: Cluster, start_s: float | None = None, team: Team | None = None
) -> dict[str, Any]:
    """Cluster file of usable nodes, caps, teams, and prices from `start_s` (Unix; default now).

    It names the user's teams, or only `team` if its members are to read the file.
    """
    now_s = time.time()
    snapshot = observe(cluster.pk, now_s, cluster.round_number).snapshot

    # Prices count from the beginning of the simulation.
    start_s = now_s if start_s is None else start_s
    steps = [
        replace(step, from_s=step.from_s - start_s, to_s=step.to_s - start_s)
        for step in price_steps(cluster, start_s, start_s + PRICED_S)
    ]
    teams = [team] if team else teams_of(user)
    spec: dict[str, Any] = {
        "name": cluster.name,
        "currency": cluster.currency,
        "round_s": cluster.period_s,
        "horizon_s": cluster.horizon_s,
        "gpu_types": [_GPU_TYPE.write(gpu_type) for gpu_type in snapshot.gpu_types],
        "nodes": [_written_node(node) for node in _usable_nodes(snapshot)],
        "emissions_cost_per_kg": snapshot.emissions_cost_per_kg,
        "power_cap_w": snapshot.power_cap_w,
        "energy": {"steps": [_PRICE_STEP.write(step) for step in steps]},
        "teams": [_TEAM.write(team_view(each)) for each in teams],
    }
    return {name: value for name, value in spec.items() if value is not None}


def _usable_nodes(snapshot: Snapshot) -> list[NodeView]:
    """Nodes that are not lost and, if they have GPUs, have a healthy one."""
    nodes = []
    for node in snapshot.nodes:
        has_use = not node.devices or any(device.healthy for device in node.devices)
        if node.state is not NodeState.LOST and has_use:
            nodes.append(node)
    return nodes


def _written_node(node: NodeView) -> dict[str, Any]:
    """Node as a cluster file says it: with its healthy GPUs only."""
    healthy = [device for device in node.devices if device.healthy]
    return {
        **{name: getattr(node, name) for name in NODE_FIELDS},
        "gpus": len(healthy),
        "power_w": list(node.power_w[: len(healthy) + 1]),
        "gpu_memory_gb": min([device.memory_gb for device in healthy], default=0.0),
        "slots": min([device.slots for device in healthy], default=1),
        "resources": dict(node.resources),
        "labels": [label for label in node.labels if not is_own(label)],
        "role": node.role.value,
    }


def _readable_jobs(user: User, team: Team | None) -> QuerySet[Job]:
    """Jobs to write out: those the user may see, or only `team`'s if its members are to read."""
    jobs = visible_jobs(user)
    return jobs.filter(team=team) if team else jobs


def queue(user: User, cluster: Cluster, team: Team | None = None) -> dict[str, Any]:
    """Jobs of a round now as a workload: waiting ones arrive at once, running ones keep GPUs.

    Only readable jobs are in it. Those of unknown speed are left out and counted in its note.
    """
    now_s = time.time()
    snapshot = observe(cluster.pk, now_s, cluster.round_number).snapshot

    # 1. The jobs to write: readable, and of a kind whose speed is known.
    current = _readable_jobs(user, team).filter(cluster=cluster).exclude(state__in=ENDED)
    readable_ids = {str(pk) for pk in current.values_list("pk", flat=True)}
    readable = [job for job in snapshot.jobs if job.id in readable_ids]
    kinds = {kind.id: kind for kind in snapshot.kinds if kind.throughputs}
    selected = {job.id: job for job in readable if job.kind in kinds}

    # 2. The jobs as seen from now on, on the devices of the cluster file.
    devices = _written_devices(snapshot)
    jobs = [_queued(job, now_s, selected, devices) for job in selected.values()]

    # 3. The workload, with a note of what it has.
    running = sum(bool(job.running) for job in jobs)
    note = f"{running:,} running and {len(jobs) - running:,} waiting"
    workload = {
        "type": "jobs",
        "name": f"{cluster.name}, its queue at {datetime.fromtimestamp(now_s, UTC):{MINUTE}}",
        "note": note + _left_out(len(readable) - len(selected)),
        "jobs": [_JOB.write(job) for job in jobs],
        "kinds": _written_kinds(kinds, {job.kind for job in jobs}),
        "seated": True,
    }
    return with_rules(workload)


def _written_devices(snapshot: Snapshot) -> WrittenDevices:
    """Names of the healthy devices in a cluster file, where those of a node are gpu0, gpu1, ..."""
    names = {}
    for node in _usable_nodes(snapshot):
        healthy = [device for device in node.devices if device.healthy]
        for index, device in enumerate(healthy):
            names[node.id, device.id] = (node.name, f"gpu{index}")
    return names


def _written_kinds(kinds: Mapping[str, KindView], shown: Collection[str]) -> list[dict[str, Any]]:
    """Kinds shown, with pairs among them only: others may be hidden from the user."""
    written = []
    for name in sorted(shown):
        kind = kinds[name]
        pairs = tuple(pair for pair in kind.pairs if pair.other in shown)
        written.append(_KIND.write(replace(kind, pairs=pairs)))
    return written


def _left_out(unknown: int) -> str:
    """End of a workload's note, if jobs of unknown speed are left out."""
    return f"; {unknown:,} left out, as their speed is not known yet" if unknown else ""


def _queued(
    job: JobView, now_s: float, selected: Mapping[str, JobView], devices: WrittenDevices
) -> JobView:
    """Job for a cluster file's simulation: present from now, with its remaining work.

    It goes on running if all its devices are in the cluster file. It depends on the selected
    jobs only.
    """
    running = []
    for run in job.running:
        is_written = all(device in devices for device in devices_of(run.ranks))
        if run.purpose is Purpose.TRAINING and is_written:
            ranks = tuple(_renamed(rank, devices) for rank in run.ranks)
            running.append(replace(run, ranks=ranks))
    return replace(
        job,
        arrival_s=now_s,
        running=tuple(running),
        received_s=(),
        dependencies=tuple(other for other in job.dependencies if other in selected),
        labels=tuple(label for label in job.labels if not is_own(label)),
    )


def _renamed(rank: RankPlacement, devices: WrittenDevices) -> RankPlacement:
    """Rank with the names of its node and devices in the cluster file."""
    if not rank.devices:
        return rank
    written = [devices[rank.node, device] for device in rank.devices]
    node = written[0][0]
    return replace(rank, node=node, devices=tuple(device for _, device in written))


def history(user: User, cluster: Cluster, days: float, team: Team | None = None) -> dict[str, Any]:
    """Jobs submitted in the last days, as a workload: whole, as described, at present speeds.

    Only readable jobs are in it. Cancelled ones are left out, as their run time is unknown.
    """
    # 1. The newest jobs, in the order of their submission.
    since = timezone.now() - timedelta(days=days)
    recent = _readable_jobs(user, team).filter(cluster=cluster, submitted_at__gte=since)
    recent = recent.exclude(state__in=(JobState.CANCELLED, JobState.CANCELLING))
    newest_first = recent.select_related("team").order_by("-submitted_at")[:MOST_JOBS]
    jobs = list(reversed(newest_first))

    # 2. Those of a kind whose speed is known, with all their steps to do.
    kinds = profiling.selectors.kind_views(cluster, sorted({job.kind_id for job in jobs}))
    known_kinds = {kind.id for kind in kinds if kind.throughputs}
    views = []
    for job in jobs:
        if str(job.kind_id) in known_kinds:
            steps = float(job.total_steps)
            labels = tuple(job.labels)
            views.append(JobView(**described(job), remaining_steps=steps, labels=labels))

    # 3. The workload, with a note of what it has.
    note = f"{len(views):,} jobs" + _left_out(len(jobs) - len(views))
    if len(jobs) == MOST_JOBS:
        note += f"; only the newest {MOST_JOBS:,} jobs are used"
    workload = {
        "type": "jobs",
        "name": f"{cluster.name}, the last {days:g} days",
        "note": note,
        "jobs": [_JOB.write(view) for view in views],
        "kinds": _written_kinds({kind.id: kind for kind in kinds}, known_kinds),
        "whole": True,
    }
    return with_rules(workload)
