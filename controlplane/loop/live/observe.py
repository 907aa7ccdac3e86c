"""Only reader of the live cluster: rows become a Snapshot, in a constant number of queries.

Policies see the cluster as after all current stops: a stopping job waits, while devices still name
it as their holder; `apply` defers launches. Left out are held, cancelled, ended and backing-off
jobs, and those that depend on one left out. A silent node is shown as cordoned. Runtimes, nodes
that a job avoids, and teams that a node may serve are labels.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Protocol

from django.db import connection, connections, transaction

import profiling.selectors
from clusters.energy import power_curve
from clusters.models import Cluster, EnergyTariff, PueRecord, RescheduleEvent
from clusters.models.clusters import Profiling
from clusters.models.nodes import State, runtimes_of
from clusters.tariffs import power_cap_steps, price_steps, pue_in_force, tariff_in_force
from controlplane.execution.gangs import runs_gangs
from controlplane.loop.live.live_assignments import LiveAssignment, LiveAssignments, OccupiedSlot
from controlplane.loop.live.rows import DeviceRow, NodeRow, Rows, is_ready
from jobs.lifecycle import JobState
from jobs.models import Job, Team
from loadmaster.features import BATCH, CONTAINER_SCRIPTS, LIMITS, SIGNAL
from loadmaster.slurm.options.constraints import satisfied
from policies.contract.labels import (
    RUNS_GANGS,
    apart_label,
    feature_label,
    is_own,
    runtime_label,
    team_label,
)
from policies.contract.snapshot import (
    DeviceView,
    GpuTypeView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeRole,
    NodeState,
    NodeView,
    ProfileRequest,
    Purpose,
    Running,
    SlotHold,
    Snapshot,
    TeamOrder,
    TeamView,
    Trigger,
)
from policies.contract.views import (
    waiting_cost,
)
from profiling.exploration import explored
from profiling.restarts import Restart
from profiling.run_times.history import expected
from profiling.run_times.predictors import Prediction, still_expected

AS_STORED = (
    "name", "gpus_min", "gpus_max", "tardiness_weight", "weight", "priority", "cores", "memory_gb",
    "may_mix", "may_share", "batch", "exclusive", "preemptible", "units", "units_per_node", "nodes",
)  # fmt: skip

KNOWN_TO_AGENTS = (BATCH, CONTAINER_SCRIPTS, LIMITS, SIGNAL)
"""Features that some agents have not, and so labels of nodes."""


class Knowledge(Protocol):
    """Source of kinds and requested measurements: `profiling.selectors`."""

    def kind_views(self, cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]: ...

    def profile_requests(self, cluster: Cluster) -> tuple[ProfileRequest, ...]: ...

    def restarts(self, cluster: Cluster, kinds: Collection[int]) -> Mapping[int, Restart]: ...

    def error_spread(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """Snapshot with cluster, event ids, blocked jobs and what is held; `cut`: more jobs queue.

    `over_limit`: limits of arrays by hidden element whose reason for waiting is new.
    `conditions`: by job, the condition of each job or array that it still waits for.
    `one_suffices`: jobs that wait for one of these, not for all.
    """

    cluster: Cluster
    snapshot: Snapshot
    events: tuple[int, ...]
    tariff: EnergyTariff | None
    pue: PueRecord | None
    blocked: Mapping[str, tuple[str, ...]]
    held: LiveAssignments
    cut: bool = False
    over_limit: Mapping[str, int] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    one_suffices: frozenset[str] = frozenset()


def observe(
    cluster_id: int, now_s: float, number: int, knowledge: Knowledge = profiling.selectors
) -> Observation:
    """Snapshot of the cluster at `now_s` (epoch) for round `number`. One consistent read."""
    now = datetime.fromtimestamp(now_s, UTC)
    with _consistent_read():
        cluster = Cluster.objects.get(pk=cluster_id)
        rows = Rows(cluster, now, number)
        events = list(RescheduleEvent.objects.filter(cluster=cluster, round=None).order_by("id"))
        return Observation(
            cluster=cluster,
            snapshot=_snapshot(rows, events, now_s, number, knowledge),
            events=tuple(e.pk for e in events),
            tariff=tariff_in_force(cluster, now),
            pue=pue_in_force(cluster, now),
            blocked={
                str(job): tuple(sorted(map(str, others))) for job, others in rows.blocked.items()
            },
            held=rows.held,
            cut=rows.cut,
            over_limit={str(job): limit for job, limit in rows.over_limit.items()},
            conditions={
                str(job): {str(on): one.condition for on, one in of.items()}
                for job, of in rows.undone.items()
            },
            one_suffices=frozenset(
                str(job)
                for job, of in rows.undone.items()
                if any(one.alternative for one in of.values())
            ),
        )


def _snapshot(
    rows: Rows, events: Sequence[RescheduleEvent], now_s: float, number: int, knowledge: Knowledge
) -> Snapshot:
    cluster, teams = rows.cluster, {job.team.name: job.team for job in rows.jobs}
    restarts = knowledge.restarts(cluster, {job.kind_id for job in rows.jobs})
    predictions = expected(cluster, rows.jobs)
    snapshot = Snapshot(
        cluster=cluster.name,
        now_s=now_s,
        round_s=cluster.period_s,
        seed=cluster.seed + number,
        nodes=tuple(_node_view(node, rows) for node in rows.nodes),
        kinds=_kinds(rows, knowledge),
        jobs=Jobs(
            JobColumns.of(
                [
                    _job_view(j, rows, now_s, restarts[j.kind_id], predictions.get(j.pk))
                    for j in rows.jobs
                ]
            )
        ),
        gpu_types=tuple(
            GpuTypeView(t.name, t.tflops, t.memory_gb, float(t.price_per_hour))
            for t in rows.gpu_types.values()
        ),
        energy=price_steps(cluster, now_s, now_s + cluster.horizon_s),
        currency=cluster.currency,
        power_cap_w=cluster.power_cap_w,
        power_caps=power_cap_steps(
            cluster, now_s, now_s + max(cluster.horizon_s, cluster.period_s + 1.0)
        ),
        emissions_cost_per_kg=float(cluster.emissions_cost_per_kg),
        teams=tuple(team_view(teams[name]) for name in sorted(teams)),
        horizon_s=cluster.horizon_s,
        trigger=_trigger(events),
        profiling=knowledge.profile_requests(cluster),
        memory=cluster.memory,
    )
    explorers = _explorers(rows, restarts)
    return explored(snapshot, explorers, knowledge.error_spread()) if explorers else snapshot


def _explorers(rows: Rows, restarts: Mapping[int, Restart]) -> set[str]:
    """Waiting jobs that may try GPUs on which their kind is not measured: their first runs do."""
    found = set()
    for job in rows.jobs:
        job.cluster = rows.cluster  # not read again for each job
        alone = job.state == JobState.QUEUED and not job.may_share
        first_run = alone and job.profiling_mode is Profiling.FIRST_RUN
        if first_run and restarts[job.kind_id].reports_steps:
            found.add(str(job.pk))
    return found


@contextmanager
def _consistent_read() -> Iterator[None]:
    """Make all queries see the same state, without the writers' lock on SQLite."""
    outermost = not connection.in_atomic_block
    with _reading() if outermost else nullcontext(), transaction.atomic():
        if outermost and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


@contextmanager
def _reading() -> Iterator[None]:
    if connection.vendor != "sqlite":
        yield
        return
    sqlite: Any = connections[connection.alias]
    sqlite.ensure_connection()  # which sets the mode
    before, sqlite.transaction_mode = sqlite.transaction_mode, "DEFERRED"
    try:
        yield
    finally:
        sqlite.transaction_mode = before


def team_view(team: Team) -> TeamView:
    return TeamView(team.name, team.weight, TeamOrder(team.order), team.max_gpus)


def _kinds(rows: Rows, knowledge: Knowledge) -> tuple[KindView, ...]:
    """Views of the jobs' kinds; unknown ones are without figures."""
    wanted = sorted({job.kind_id for job in rows.jobs})
    known = {view.id: view for view in knowledge.kind_views(rows.cluster, wanted)}
    views = tuple(known.get(str(kind), KindView(str(kind))) for kind in wanted)

    # Speeds over several nodes are estimated where a job needs more GPUs than a node has.
    wide: dict[str, set[int]] = defaultdict(set)
    smallest = min((len(devices) for devices in rows.devices.values() if devices), default=0)
    for job in rows.jobs:
        if job.gpus_min > smallest and not job.batch:
            wide[str(job.kind_id)].add(job.gpus_min)
    return profiling.selectors.with_spread_estimates(rows.cluster, views, wide)


def _node_view(node: NodeRow, rows: Rows) -> NodeView:
    gpu = rows.gpu_types[node.gpu_type_id] if node.gpu_type_id else None
    devices = rows.devices[node.pk]
    return NodeView(
        id=str(node.pk),
        name=node.name,
        gpu_type=rows.type_of[node.pk],
        devices=tuple(
            [_device_view(device, rows.held.of_device.get(device.pk, ())) for device in devices]
        ),
        power_w=power_curve(
            node.base_w, gpu.idle_w if gpu else 0.0, gpu.peak_w if gpu else 0.0, len(devices)
        ),
        cores=max(0.0, node.cores - node.reserved_cores),
        memory_gb=max(0.0, node.memory_gb - node.reserved_memory_gb),
        resources=tuple(sorted((name, float(amount)) for name, amount in node.resources.items())),
        labels=_labels_of_node(node, rows),
        role=NodeRole(node.role),
        state=(
            NodeState.CORDONED
            if node.state == State.READY and not is_ready(node)
            else NodeState(node.state)
        ),
        drain_until_s=node.drain_until.timestamp() if node.drain_until else None,
        rack=node.rack,
        link_gbps=node.link_gbps,
    )


def _labels_of_node(node: NodeRow, rows: Rows) -> tuple[str, ...]:
    given = {label for label in node.labels if not is_own(label)}
    apart = {apart_label(str(other)) for other in rows.avoided_nodes if other != node.pk}
    teams = {team_label(str(team)) for team in rows.teams_of(node)}
    gangs = set[str]()
    if node.features and runs_gangs(node.features, node.address):
        gangs.add(RUNS_GANGS)
    alternatives = {label for label in rows.alternatives if satisfied([label], given)}
    return tuple(
        sorted(
            given
            | alternatives
            | apart
            | teams
            | gangs
            | {runtime_label(name) for name in runtimes_of(node.features)}
            | {feature_label(name) for name in node.features if name in KNOWN_TO_AGENTS}
        )
    )


def _device_view(device: DeviceRow, held: Sequence[OccupiedSlot]) -> DeviceView:
    holds = (
        tuple([SlotHold(str(s.job_id), s.copy, Purpose(s.purpose), s.share) for s in held])
        if held
        else ()
    )
    return DeviceView(
        device.uuid, device.memory_gb, device.slots, device.healthy, holds, device.emulated
    )


def _job_view(
    job: Job, rows: Rows, now_s: float, restart: Restart, prediction: Prediction | None
) -> JobView:
    live = rows.held.of_job[job.pk]
    apart = [apart_label(str(node)) for node in rows.avoided.get(job.pk, ())]
    team = [team_label(str(job.team_id))] if rows.keeps_teams_apart else []
    running = tuple(gang.running for gang in rows.held.gangs(job.pk))
    ran = job.checkpoint_steps > 0
    lost_s = max((restart.lost_s(a, now_s) for a in live if _trains(a)), default=0.0)
    return JobView(
        **{**described(job), **_rest_of_seats(job, running)},
        **_expected_run(job, live, running, now_s, prediction),
        remaining_steps=float(_remaining_steps(job, live, restart, now_s)),
        phase=_phase(job, running),
        user=str(job.user_id),
        restart_cost_s=restart.cost_s + lost_s if running or not ran else restart.launch_s,
        min_run_s=rows.cluster.min_run_factor * restart.cost_s,
        waiting_cost=waiting_cost(float(rows.cluster.value_of_time), job.team.weight, job.priority),
        running=running,
        received_s=_received_s(job, live, rows, now_s),
        dependencies=tuple(sorted(str(d) for d in rows.undone.get(job.pk, ()))),
        labels=tuple(sorted({*job.labels, *_labels_of_agents(job), *apart, *team})),
    )


def _rest_of_seats(job: Job, running: tuple[Running, ...]) -> dict[str, int]:
    """Size of a running job of which some seats have ended: that of the others, which go on."""
    runs = [run for run in running if run.purpose is Purpose.TRAINING]
    if not runs:
        return {}
    gpus, seats = min(sum(len(seat.devices) for seat in run.ranks) for run in runs), runs[0].ranks
    units = sum(seat.units for seat in seats)
    if not job.batch:
        return {"gpus_min": min(job.gpus_min, gpus)}
    nodes = min(job.nodes, len(seats))
    return {"units": units, "nodes": nodes, "gpus_min": gpus, "gpus_max": gpus}


def _expected_run(
    job: Job,
    live: Sequence[LiveAssignment],
    running: tuple[Running, ...],
    now_s: float,
    prediction: Prediction | None,
) -> dict[str, Any]:
    """Whole run time of a job that has no speed; a launch keeps what was expected at its start."""
    if prediction is None:
        return {}
    run_s, source = prediction
    if running and live[0].predicted_source and live[0].predicted_run_s is not None:
        run_s, source = live[0].predicted_run_s, live[0].predicted_source
    if running:
        walltime_s = inf if job.walltime_s is None else job.walltime_s
        run_s = still_expected(run_s, now_s - running[0].since_s, walltime_s)
    return {"expected_run_s": run_s, "expected_source": source}


def _labels_of_agents(job: Job) -> list[str]:
    """Labels that nodes have whose agents can run a job, and end it if it must be."""
    needs = {
        BATCH: job.needs_batch,
        CONTAINER_SCRIPTS: job.needs_container_scripts,
        LIMITS: job.needs_limits,
        SIGNAL: job.needs_signal,
    }
    features = [feature_label(name) for name, needed in needs.items() if needed]
    return [runtime_label(job.runtime), *features]


def described(job: Job) -> dict[str, Any]:
    """Fields of a job's view that its user gave, but for labels."""
    return {
        "id": str(job.pk),
        "kind": str(job.kind_id),
        "arrival_s": job.submitted_at.timestamp(),
        "total_steps": float(job.total_steps),
        "due_s": job.due_at.timestamp() if job.due_at else inf,
        "deadline_s": job.deadline_at.timestamp() if job.deadline_at else inf,
        "walltime_s": inf if job.walltime_s is None else job.walltime_s,
        "team": job.team.name,
        "allowed_types": tuple(job.allowed_types),
        "resources": tuple(sorted((name, float(of)) for name, of in job.resources.items())),
        **{name: getattr(job, name) for name in AS_STORED},
    }


def _phase(job: Job, running: tuple[Running, ...]) -> JobPhase:
    if any(run.purpose is Purpose.TRAINING for run in running):
        return JobPhase.RUNNING
    return JobPhase.PROFILING if job.state == JobState.PROFILING else JobPhase.WAITING


def _remaining_steps(
    job: Job, live: Sequence[LiveAssignment], restart: Restart, now_s: float
) -> int:
    reached = [
        max(a.start_steps, a.steps_done, restart.silent_steps(a, job.total_steps, now_s))
        for a in live
        if a.purpose == Purpose.TRAINING
    ]
    return max(0, job.total_steps - (min(reached) if reached else job.checkpoint_steps))


def _trains(assignment: LiveAssignment) -> bool:
    """Return True for the rank of a training launch that writes its checkpoints."""
    return assignment.purpose == Purpose.TRAINING and assignment.rank == 0


def _received_s(
    job: Job, live: Sequence[LiveAssignment], rows: Rows, now_s: float
) -> tuple[tuple[str, float], ...]:
    """Device seconds by type: of ended assignments by the job's row, and of live ones."""
    received: dict[str, float] = defaultdict(
        float, {name: float(s) for name, s in job.received_s.items()}
    )
    for a in live:
        if a.purpose == Purpose.TRAINING and a.running_at is not None:
            received[rows.type_of[a.node_id]] += (
                max(0.0, now_s - a.running_at.timestamp()) * a.gpus * a.share
            )
    return tuple(sorted(received.items()))


def _trigger(events: Sequence[RescheduleEvent]) -> Trigger:
    reasons = tuple(dict.fromkeys(str(e.reason) for e in events))
    jobs = tuple(dict.fromkeys(str(e.job_id) for e in events if e.job_id))
    return Trigger(reasons, jobs, tuple(dict.fromkeys(str(e.node_id) for e in events if e.node_id)))
