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
from jobs.lifecycle import ENDED, JobState
from jobs.models import Job, Team
from jobs.selectors import teams_of, visible_jobs
from policies.contract.forms import Form
from policies.contract.labels import (
    is_own,
)
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
Places = Mapping[tuple[str, str], tuple[str, str]]
"""(node, device) of a cluster file, by the live ones."""

_JOB, _KIND, _STEP, _TYPE, _TEAM = (
    Form(of) for of in (JobView, KindView, PriceInterval, GpuTypeView, TeamView)
)


def cluster_spec(
    user: User, cluster: Cluster, start_s: float | None = None, team: Team | None = None
) -> dict[str, Any]:
    """Cluster file of usable nodes, caps, teams, and prices from `start_s` (Unix; default now).

    With `team`, whose members are to read it, of the teams that one alone.
    """
    now_s = time.time()
    snapshot = observe(cluster.pk, now_s, cluster.round_number).snapshot
    start_s = now_s if start_s is None else start_s
    steps = [
        replace(step, from_s=step.from_s - start_s, to_s=step.to_s - start_s)
        for step in price_steps(cluster, start_s, start_s + PRICED_S)
    ]
    spec: dict[str, Any] = {
        "name": cluster.name,
        "currency": cluster.currency,
        "round_s": cluster.period_s,
        "horizon_s": cluster.horizon_s,
        "gpu_types": [_TYPE.write(g) for g in snapshot.gpu_types],
        "nodes": [_node(node) for node in _usable(snapshot)],
        "emissions_cost_per_kg": snapshot.emissions_cost_per_kg,
        "power_cap_w": snapshot.power_cap_w,
        "energy": {"steps": [_STEP.write(step) for step in steps]},
        "teams": [_TEAM.write(team_view(of)) for of in ([team] if team else teams_of(user))],
    }
    return {name: value for name, value in spec.items() if value is not None}


def _usable(snapshot: Snapshot) -> list[NodeView]:
    return [
        node
        for node in snapshot.nodes
        if node.state is not NodeState.LOST
        and (not node.devices or any(d.healthy for d in node.devices))
    ]


def _node(node: NodeView) -> dict[str, Any]:
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


def _jobs(user: User, team: Team | None) -> QuerySet[Job]:
    """Jobs to write out: those the user may see; with `team`, whose members read them, its own."""
    jobs = visible_jobs(user)
    return jobs.filter(team=team) if team else jobs


def queue(user: User, cluster: Cluster, team: Team | None = None) -> dict[str, Any]:
    """Jobs of a round now as a workload: waiting ones arrive at once, running ones keep GPUs.

    Only jobs of `_jobs`. Those of unknown speed are left out and counted in its note.
    """
    now_s = time.time()
    snapshot = observe(cluster.pk, now_s, cluster.round_number).snapshot
    of_live = _jobs(user, team).filter(cluster=cluster).exclude(state__in=ENDED)
    own = {str(pk) for pk in of_live.values_list("pk", flat=True)}
    kinds = {kind.id: kind for kind in snapshot.kinds if kind.throughputs}
    seen = [job for job in snapshot.jobs if job.id in own]
    known = {job.id: job for job in seen if job.kind in kinds}
    places = {
        (node.id, device.id): (node.name, f"gpu{i}")
        for node in _usable(snapshot)
        for i, device in enumerate(d for d in node.devices if d.healthy)
    }
    jobs = [_queued(job, now_s, known, places) for job in known.values()]
    running = sum(bool(job.running) for job in jobs)
    note = f"{running:,} running and {len(jobs) - running:,} waiting"
    document = {
        "type": "jobs",
        "name": f"{cluster.name}, its queue at {datetime.fromtimestamp(now_s, UTC):{MINUTE}}",
        "note": note + _left_out(len(seen) - len(known)),
        "jobs": [_JOB.write(job) for job in jobs],
        "kinds": _kinds(kinds, {job.kind for job in jobs}),
        "seated": True,
    }
    return with_rules(document)


def _kinds(kinds: Mapping[str, KindView], shown: Collection[str]) -> list[dict[str, Any]]:
    """Kinds shown, with pairs among them only: others may be hidden from the user."""
    found = (
        replace(kind, pairs=tuple(pair for pair in kind.pairs if pair.other in shown))
        for kind in (kinds[name] for name in sorted(shown))
    )
    return [_KIND.write(kind) for kind in found]


def _left_out(unknown: int) -> str:
    return f"; {unknown:,} left out: how fast they run is not known yet" if unknown else ""


def _queued(job: JobView, now_s: float, known: Mapping[str, JobView], places: Places) -> JobView:
    """Job for a cluster file's simulation: present from now, with its remaining work."""
    there = [
        run
        for run in job.running
        if run.purpose is Purpose.TRAINING and all(key in places for key in devices_of(run.ranks))
    ]
    return replace(
        job,
        arrival_s=now_s,
        running=tuple(replace(r, ranks=tuple(_moved(s, places) for s in r.ranks)) for r in there),
        received_s=(),
        dependencies=tuple(other for other in job.dependencies if other in known),
        labels=tuple(label for label in job.labels if not is_own(label)),
    )


def _moved(seat: RankPlacement, places: Places) -> RankPlacement:
    found = [places[seat.node, device] for device in seat.devices]
    node = found[0][0] if found else seat.node
    return replace(seat, node=node, devices=tuple(device for _, device in found))


def history(user: User, cluster: Cluster, days: float, team: Team | None = None) -> dict[str, Any]:
    """Jobs submitted in the last days, as a workload: whole, as described, at present speeds.

    Only jobs of `_jobs`. Cancelled ones are left out, as their run time is unknown.
    """
    since = timezone.now() - timedelta(days=days)
    jobs = (
        _jobs(user, team)
        .filter(cluster=cluster, submitted_at__gte=since)
        .exclude(state__in=(JobState.CANCELLED, JobState.CANCELLING))
    )
    rows = list(reversed(jobs.select_related("team").order_by("-submitted_at")[:MOST_JOBS]))
    older = f"; older ones than the newest {MOST_JOBS:,} are left out"
    kinds = profiling.selectors.kind_views(cluster, sorted({job.kind_id for job in rows}))
    known = {kind.id for kind in kinds if kind.throughputs}
    views = [
        JobView(**described(job), remaining_steps=float(job.total_steps), labels=tuple(job.labels))
        for job in rows
        if str(job.kind_id) in known
    ]
    document = {
        "type": "jobs",
        "name": f"{cluster.name}, the last {days:g} days",
        "note": f"{len(views):,} jobs"
        + _left_out(len(rows) - len(views))
        + (older if len(rows) == MOST_JOBS else ""),
        "jobs": [_JOB.write(view) for view in views],
        "kinds": _kinds({kind.id: kind for kind in kinds}, known),
        "whole": True,
    }
    return with_rules(document)
