"""Only reader of the live cluster: rows become a Snapshot, in a constant number of queries.

Policies see the cluster as it will be after all current stops: a stopping job waits. Devices still
name it as their holder, and `apply` defers launches on them. The snapshot leaves out held,
cancelled, ended and backing-off jobs, and those that depend on such a job. It shows a silent node
as cordoned, and has labels for runtimes, for nodes that a job avoids, and for teams of a node.
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
from loadmaster.features import BATCH, CONTAINER_SCRIPTS, CORES_LIMIT, LIMITS, SIGNAL
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
from policies.contract.views import waiting_cost
from profiling.exploration import explored
from profiling.restarts import Restart
from profiling.run_times.history import expected
from profiling.run_times.predictors import Prediction, still_expected

AS_STORED = (
    "name", "gpus_min", "gpus_max", "tardiness_weight", "weight", "priority", "cores", "memory_gb",
    "may_mix", "may_share", "batch", "exclusive", "preemptible", "units", "units_per_node", "nodes",
)  # fmt: skip  # one field a line would hide the list
"""Fields of a job's view that are columns of the job."""

KNOWN_TO_AGENTS = (BATCH, CONTAINER_SCRIPTS, LIMITS, SIGNAL)
"""Features that some agents lack, so nodes that have them get a label."""


class Knowledge(Protocol):
    """Source of kinds and requested measurements: `profiling.selectors`."""

    def kind_views(self, cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]: ...

    def profile_requests(self, cluster: Cluster) -> tuple[ProfileRequest, ...]: ...

    def restarts(self, cluster: Cluster, kinds: Collection[int]) -> Mapping[int, Restart]: ...

    def error_spread(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """Snapshot of a round, and what the round's record needs beside it.

    `events`: primary keys of the events that asked for the round. `blocked`: the jobs and arrays
    that a job waits for, by job that no policy sees. `held`: live assignments. `cut`: the queue has
    more jobs than the round sees. `over_limit`: the limit of its array, by element that waits for
    it and whose reason for waiting is new. `conditions`: the condition of each job or array that a
    job still waits for, by job. `one_suffices`: jobs that wait for one of these, not for all.
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
    """Observe the cluster at `now_s` (epoch) for round `number`, in one consistent read."""
    now = datetime.fromtimestamp(now_s, UTC)
    with _consistent_read():
        cluster = Cluster.objects.get(pk=cluster_id)
        rows = Rows(cluster, now, number)
        events = list(RescheduleEvent.objects.filter(cluster=cluster, round=None).order_by("id"))
        snapshot = _snapshot(rows, events, now_s, number, knowledge)
        tariff = tariff_in_force(cluster, now)
        pue = pue_in_force(cluster, now)

    # Dependencies by job, from which the round's record makes the reasons of waiting jobs.
    blocked: dict[str, tuple[str, ...]] = {}
    for job, others in rows.blocked.items():
        blocked[str(job)] = tuple(sorted(map(str, others)))
    conditions: dict[str, dict[str, str]] = {}
    one_suffices: set[str] = set()
    for job, dependencies in rows.undone.items():
        conditions[str(job)] = {str(other): each.condition for other, each in dependencies.items()}
        if any(each.alternative for each in dependencies.values()):
            one_suffices.add(str(job))
    return Observation(
        cluster=cluster,
        snapshot=snapshot,
        events=tuple(event.pk for event in events),
        tariff=tariff,
        pue=pue,
        blocked=blocked,
        held=rows.held,
        cut=rows.cut,
        over_limit={str(job): limit for job, limit in rows.over_limit.items()},
        conditions=conditions,
        one_suffices=frozenset(one_suffices),
    )


def _snapshot(
    rows: Rows, events: Sequence[RescheduleEvent], now_s: float, number: int, knowledge: Knowledge
) -> Snapshot:
    """Build the snapshot of a round."""
    cluster = rows.cluster
    horizon_s = cluster.horizon_s

    # 1. Jobs, with the costs of a restart of their kind and the predicted run times.
    restarts = knowledge.restarts(cluster, {job.kind_id for job in rows.jobs})
    predictions = expected(cluster, rows.jobs)
    job_views = []
    for job in rows.jobs:
        prediction = predictions.get(job.pk)
        job_views.append(_job_view(job, rows, now_s, restarts[job.kind_id], prediction))
    teams = {job.team.name: job.team for job in rows.jobs}

    # 2. GPU types and power caps. The caps reach at least until the next round.
    gpu_types = []
    for gpu in rows.gpu_types.values():
        price = float(gpu.price_per_hour)
        gpu_types.append(GpuTypeView(gpu.name, gpu.tflops, gpu.memory_gb, price))
    caps_until_s = now_s + max(horizon_s, cluster.period_s + 1.0)

    # 3. All together.
    snapshot = Snapshot(
        cluster=cluster.name,
        now_s=now_s,
        round_s=cluster.period_s,
        seed=cluster.seed + number,
        nodes=tuple(_node_view(node, rows) for node in rows.nodes),
        kinds=_kinds(rows, knowledge),
        jobs=Jobs(JobColumns.of(job_views)),
        gpu_types=tuple(gpu_types),
        energy=price_steps(cluster, now_s, now_s + horizon_s),
        currency=cluster.currency,
        power_cap_w=cluster.power_cap_w,
        power_caps=power_cap_steps(cluster, now_s, caps_until_s),
        emissions_cost_per_kg=float(cluster.emissions_cost_per_kg),
        teams=tuple(team_view(teams[name]) for name in sorted(teams)),
        horizon_s=horizon_s,
        trigger=_trigger(events),
        profiling=knowledge.profile_requests(cluster),
        memory=cluster.memory,
    )

    # 4. Mark jobs whose first run measures their kind: they may use GPU types not measured yet.
    explorers = _explorers(rows, restarts)
    if not explorers:
        return snapshot
    return explored(snapshot, explorers, knowledge.error_spread())


def _explorers(rows: Rows, restarts: Mapping[int, Restart]) -> set[str]:
    """Return waiting jobs that may try GPU types on which their kind is not measured.

    Their first runs measure it. So the kind must report steps, and no other job may share the GPUs.
    """
    explorers = set()
    for job in rows.jobs:
        job.cluster = rows.cluster  # not read again for each job
        if job.state != JobState.QUEUED or job.may_share:
            continue
        measures = job.profiling_mode is Profiling.FIRST_RUN
        if measures and restarts[job.kind_id].reports_steps:
            explorers.add(str(job.pk))
    return explorers


@contextmanager
def _consistent_read() -> Iterator[None]:
    """Have all queries see the same state, without taking SQLite's lock of writers."""
    outermost = not connection.in_atomic_block
    sqlite_reads = _begin_as_reader() if outermost else nullcontext()
    with sqlite_reads, transaction.atomic():
        if outermost and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


@contextmanager
def _begin_as_reader() -> Iterator[None]:
    """Let SQLite's transactions begin as readers: they take no lock until they write."""
    if connection.vendor != "sqlite":
        yield
        return
    sqlite: Any = connections[connection.alias]
    sqlite.ensure_connection()  # which sets the mode
    before = sqlite.transaction_mode
    sqlite.transaction_mode = "DEFERRED"
    try:
        yield
    finally:
        sqlite.transaction_mode = before


def team_view(team: Team) -> TeamView:
    """View of a team in a snapshot."""
    return TeamView(team.name, team.weight, TeamOrder(team.order), team.max_gpus)


def _kinds(rows: Rows, knowledge: Knowledge) -> tuple[KindView, ...]:
    """Return views of the jobs' kinds; unknown ones are without figures."""
    wanted = sorted({job.kind_id for job in rows.jobs})
    known = {view.id: view for view in knowledge.kind_views(rows.cluster, wanted)}
    views = tuple(known.get(str(kind), KindView(str(kind))) for kind in wanted)

    # Where a job needs more GPUs than the smallest node has, estimate its speed over several nodes.
    spread_sizes: dict[str, set[int]] = defaultdict(set)
    node_sizes = [len(devices) for devices in rows.devices.values() if devices]
    least_gpus = min(node_sizes, default=0)
    for job in rows.jobs:
        if job.gpus_min > least_gpus and not job.batch:
            spread_sizes[str(job.kind_id)].add(job.gpus_min)
    return profiling.selectors.with_spread_estimates(rows.cluster, views, spread_sizes)


def _node_view(node: NodeRow, rows: Rows) -> NodeView:
    """Return the view of a node with its devices; a silent node is shown as cordoned."""
    devices = []
    for device in rows.devices[node.pk]:
        devices.append(_device_view(device, rows.held.of_device.get(device.pk, ())))
    idle_w = 0.0
    peak_w = 0.0
    if node.gpu_type_id:
        gpu = rows.gpu_types[node.gpu_type_id]
        idle_w = gpu.idle_w
        peak_w = gpu.peak_w
    state = NodeState(node.state)
    if node.state == State.READY and not is_ready(node):
        state = NodeState.CORDONED
    return NodeView(
        id=str(node.pk),
        name=node.name,
        gpu_type=rows.type_of[node.pk],
        devices=tuple(devices),
        power_w=power_curve(node.base_w, idle_w, peak_w, len(devices)),
        cores=max(0.0, node.cores - node.reserved_cores),
        memory_gb=max(0.0, node.memory_gb - node.reserved_memory_gb),
        resources=tuple(sorted((name, float(amount)) for name, amount in node.resources.items())),
        labels=_labels_of_node(node, rows),
        role=NodeRole(node.role),
        state=state,
        drain_until_s=node.drain_until.timestamp() if node.drain_until else None,
        rack=node.rack,
        link_gbps=node.link_gbps,
        changes_quotas=CORES_LIMIT in node.features,
    )


def _labels_of_node(node: NodeRow, rows: Rows) -> tuple[str, ...]:
    """Return the labels of a node: the operator's, and those that only the server gives."""
    # 1. The operator's, and labels of jobs such as a100|v100 that these satisfy.
    operators_labels = {label for label in node.labels if not is_own(label)}
    labels = set(operators_labels)
    for alternative in rows.alternatives:
        if satisfied([alternative], operators_labels):
            labels.add(alternative)

    # 2. A job that avoids a node asks for the label that all nodes but that one have.
    for avoided in rows.avoided_nodes:
        if avoided != node.pk:
            labels.add(apart_label(str(avoided)))

    # 3. Teams that it may serve, and what its agent can do.
    for team in rows.teams_of(node):
        labels.add(team_label(str(team)))
    if node.features and runs_gangs(node.features, node.address):
        labels.add(RUNS_GANGS)
    for runtime in runtimes_of(node.features):
        labels.add(runtime_label(runtime))
    for feature in node.features:
        if feature in KNOWN_TO_AGENTS:
            labels.add(feature_label(feature))
    return tuple(sorted(labels))


def _device_view(device: DeviceRow, slots: Sequence[OccupiedSlot]) -> DeviceView:
    """Return the view of a device with the holders of its occupied slots."""
    holds: list[SlotHold] = []
    for slot in slots:
        holds.append(SlotHold(str(slot.job_id), slot.copy, Purpose(slot.purpose), slot.share))
    return DeviceView(
        device.uuid,
        device.memory_gb,
        device.slots,
        device.healthy,
        tuple(holds),
        device.emulated,
    )


def _job_view(
    job: Job, rows: Rows, now_s: float, restart: Restart, prediction: Prediction | None
) -> JobView:
    """Return the view of a job at `now_s`, as it will be after all current stops."""
    live = rows.held.of_job[job.pk]
    running = tuple(gang.running for gang in rows.held.gangs(job.pk))

    # 1. Labels: the user's, those of able agents, of nodes that it does not avoid, of its team.
    labels = {*job.labels, *_labels_of_agents(job)}
    for node in rows.avoided.get(job.pk, ()):
        labels.add(apart_label(str(node)))
    if rows.keeps_teams_apart:
        labels.add(team_label(str(job.team_id)))

    # 2. A restart loses the work since the last checkpoint. A job that waits after an earlier run
    # has lost it already, so only the launch takes time.
    lost_s = 0.0
    for assignment in live:
        if _writes_checkpoints(assignment):
            lost_s = max(lost_s, restart.lost_s(assignment, now_s))
    restart_cost_s = restart.cost_s + lost_s
    if not running and job.checkpoint_steps > 0:
        restart_cost_s = restart.launch_s

    # 3. All together. The size of a job of which some seats have ended is that of the others.
    return JobView(
        **{**described(job), **_remaining_size(job, running)},
        **_expected_run(job, live, running, now_s, prediction),
        remaining_steps=float(_remaining_steps(job, live, restart, now_s)),
        phase=_phase(job, running),
        user=str(job.user_id),
        restart_cost_s=restart_cost_s,
        min_run_s=rows.cluster.min_run_factor * restart.cost_s,
        waiting_cost=waiting_cost(float(rows.cluster.value_of_time), job.team.weight, job.priority),
        running=running,
        received_s=_received_s(job, live, rows, now_s),
        dependencies=tuple(sorted(str(other) for other in rows.undone.get(job.pk, ()))),
        labels=tuple(sorted(labels)),
    )


def _remaining_size(job: Job, running: tuple[Running, ...]) -> dict[str, int]:
    """Return the size of a running job's seats that have not ended, as fields of its view."""
    runs = [run for run in running if run.purpose is Purpose.TRAINING]
    if not runs:
        return {}
    gpus = min(sum(len(seat.devices) for seat in run.ranks) for run in runs)
    if not job.batch:
        return {"gpus_min": min(job.gpus_min, gpus)}
    seats = runs[0].ranks
    units = sum(seat.units for seat in seats)
    nodes = min(job.nodes, len(seats))
    return {"units": units, "nodes": nodes, "gpus_min": gpus, "gpus_max": gpus}


def _expected_run(
    job: Job,
    live: Sequence[LiveAssignment],
    running: tuple[Running, ...],
    now_s: float,
    prediction: Prediction | None,
) -> dict[str, Any]:
    """Return the expected run time of a batch job from its start, as fields of its view.

    A running job keeps the prediction of its start until it has run for longer.
    """
    if prediction is None:
        return {}
    run_s, source = prediction
    if running:
        launch = live[0]
        if launch.predicted_source and launch.predicted_run_s is not None:
            run_s = launch.predicted_run_s
            source = launch.predicted_source
        walltime_s = inf if job.walltime_s is None else job.walltime_s
        run_s = still_expected(run_s, now_s - running[0].since_s, walltime_s)
    return {"expected_run_s": run_s, "expected_source": source}


def _labels_of_agents(job: Job) -> list[str]:
    """Return the labels of nodes whose agents can run a job and have the features it needs."""
    needs = {
        BATCH: job.needs_batch,
        CONTAINER_SCRIPTS: job.needs_container_scripts,
        LIMITS: job.needs_limits,
        SIGNAL: job.needs_signal,
    }
    features = [feature_label(name) for name, needed in needs.items() if needed]
    return [runtime_label(job.runtime), *features]


def described(job: Job) -> dict[str, Any]:
    """Return the fields of a job's view that come from its submission, without labels."""
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
        "resources": tuple(sorted((name, float(amount)) for name, amount in job.resources.items())),
        **{name: getattr(job, name) for name in AS_STORED},
    }


def _phase(job: Job, running: tuple[Running, ...]) -> JobPhase:
    """Return the phase of a job as it will be after all current stops: a stopping job waits."""
    if any(run.purpose is Purpose.TRAINING for run in running):
        return JobPhase.RUNNING
    if job.state == JobState.PROFILING:
        return JobPhase.PROFILING
    return JobPhase.WAITING


def _remaining_steps(
    job: Job, live: Sequence[LiveAssignment], restart: Restart, now_s: float
) -> int:
    """Return the steps left to do: by the job's slowest live rank, else by its checkpoint."""
    reached_steps = []
    for assignment in live:
        if assignment.purpose == Purpose.TRAINING:
            silent_steps = restart.silent_steps(assignment, job.total_steps, now_s)
            reached_steps.append(max(assignment.start_steps, assignment.steps_done, silent_steps))
    steps_done = min(reached_steps, default=job.checkpoint_steps)
    return max(0, job.total_steps - steps_done)


def _writes_checkpoints(assignment: LiveAssignment) -> bool:
    """Return True for rank 0 of a training launch, which writes its checkpoints."""
    return assignment.purpose == Purpose.TRAINING and assignment.rank == 0


def _received_s(
    job: Job, live: Sequence[LiveAssignment], rows: Rows, now_s: float
) -> tuple[tuple[str, float], ...]:
    """Return device seconds by GPU type: of ended assignments (in the job's row) and live ones."""
    received_s: dict[str, float] = defaultdict(float)
    for gpu_type, device_s in job.received_s.items():
        received_s[gpu_type] = float(device_s)
    for assignment in live:
        if assignment.purpose != Purpose.TRAINING or assignment.running_at is None:
            continue
        ran_s = max(0.0, now_s - assignment.running_at.timestamp())
        gpu_type = rows.type_of[assignment.node_id]
        received_s[gpu_type] += ran_s * assignment.gpus * assignment.share
    return tuple(sorted(received_s.items()))


def _trigger(events: Sequence[RescheduleEvent]) -> Trigger:
    """Return the reasons, jobs and nodes of the events, each once and in the order of events."""
    reasons = dict.fromkeys(str(event.reason) for event in events)
    jobs = dict.fromkeys(str(event.job_id) for event in events if event.job_id)
    nodes = dict.fromkeys(str(event.node_id) for event in events if event.node_id)
    return Trigger(tuple(reasons), tuple(jobs), tuple(nodes))
