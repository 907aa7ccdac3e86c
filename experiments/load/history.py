"""Long past of a cluster: ended jobs of many days, copied within the database from a few.

Each has what a job that ran once leaves: events, an attempt, an assignment with its slot, and an
entry of the energy ledger. Beside them are the rounds of that time.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path

from django.core.management import call_command
from django.db import connection, models
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.query import BY
from controlplane.loop.changes import Start, describe
from controlplane.loop.live.launches import OFFER
from controlplane.loop.models import Round
from experiments.load.seed import ROUNDS_BEFORE
from jobs.assignment_lifecycle import MOVE_TO
from jobs.lifecycle import ENDED
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot, Attempt, Job, JobEvent
from loadmaster.protocol import AssignmentState
from policies.contract import plan_json
from policies.contract.plan import Placement, Plan, PlanStatus, RankPlacement

COPIED = 64
"""Most ended jobs that are copied, each on a node of its own."""

HISTORY_DAYS = 400.0

APPS = ("accounting", "clusters", "jobs")
"""Apps whose rows are many."""

S = AssignmentState
STATES = (S.OFFERED, S.ACCEPTED, S.RUNNING, S.SUCCEEDED)
"""States that a launch goes through."""

JOBS_A_ROUND = 4


def write_history(cluster: Cluster, *, jobs: int, days: float) -> None:
    """Write about so many ended jobs, evenly over so many days until now."""
    ended = list(cluster.jobs.filter(state__in=ENDED).order_by("pk")[:COPIED])
    pairs = list(zip(ended, cluster.nodes.order_by("name"), strict=False))
    each = jobs // len(pairs)
    for number, (job, node) in enumerate(pairs):
        _copy(job, node, Copies(number, each, 86_400.0 * days / each))
    _write_rounds(*pairs[0], jobs // JOBS_A_ROUND, days)
    _sort_ledger()


def _write_rounds(job: Job, node: Node, count: int, days: float) -> None:
    """Write so many rounds, numbered before the cluster's first, with the plan for one job."""
    now, cluster = timezone.now(), node.cluster
    seat = RankPlacement(str(node.pk), (node.devices.order_by("pk")[0].uuid,))
    placed = Placement(str(job.pk), (seat,), predicted_run_s=3600.0)
    plan = Plan(cluster.policy, PlanStatus.HEURISTIC, (placed,))
    row = Round.objects.create(
        cluster=cluster,
        number=ROUNDS_BEFORE,
        status=Round.Status.APPLIED,
        reasons=["submission", "completion"],
        policy=cluster.policy,
        seed=1,
        snapshot_sha256="0" * 64,
        plan=plan_json.to_json(plan),
        plan_sha256=plan_json.digest(plan),
        plan_status=plan.status,
        timezone=cluster.timezone,
        changes=[describe(Start(placed))],
        ended_at=now,
        snapshot_s=0.1,
        solve_s=0.1,
        apply_s=0.1,
    )
    copies = Copies(0, count, 86_400.0 * days / count)
    at = copies.moment()
    copies.of(row, {"number": f"{ROUNDS_BEFORE} - i", "started_at": at, "ended_at": at})


def _sort_ledger() -> None:
    """Write the ledger again in the order of time, in which the meter writes it."""
    meta = EnergyEntry._meta
    table, fields = meta.db_table, [f for f in meta.concrete_fields if not f.primary_key]
    columns = ", ".join(str(field.column) for field in fields)
    emptied = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE"
    kept = f"SELECT {columns} FROM {table}"  # noqa: S608  # names of our own columns
    again = f"SELECT {columns} FROM ledger ORDER BY hour"  # noqa: S608  # the same
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE ledger AS {kept}")
        cursor.execute(f"{emptied} {table}")
        cursor.execute(f"INSERT INTO {table} ({columns}) {again}")
        cursor.execute("DROP TABLE ledger")


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies 1 to `count` of the rows of one job, the later ones `gap_s` further back each."""

    number: int
    count: int
    gap_s: float

    def key(self, of: int) -> str:
        """Expression of a copy's UUID; `of` tells the rows of one job apart."""
        value = f"i + {(self.number * 2 + of + 1) << 32}"
        if connection.vendor == "sqlite":
            return f"printf('%032x', {value})"
        return f"lpad(to_hex({value}), 32, '0')::uuid"

    def moment(self, *, hour: bool = False) -> str:
        """Expression of a copy's time, or of its hour."""
        if connection.vendor == "sqlite":
            form = "%Y-%m-%d %H:00:00" if hour else "%Y-%m-%d %H:%M:%S"
            return f"strftime('{form}', 'now', (-i * {self.gap_s}) || ' seconds')"
        at = f"now() - i * {self.gap_s} * interval '1 second'"
        return f"date_trunc('hour', {at})" if hour else at

    def of(self, row: models.Model, expressions: Mapping[str, str]) -> None:
        """Insert the copies of a row, some columns of which are expressions of `i`."""
        meta = row._meta
        fields = [f for f in meta.concrete_fields if not f.generated]
        columns = [str(f.column) for f in fields if not f.primary_key or "id" in expressions]
        quoted = [connection.ops.quote_name(column) for column in columns]
        values = [expressions.get(c, f"t.{name}") for c, name in zip(columns, quoted, strict=True)]
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {meta.db_table} ({', '.join(quoted)}) WITH RECURSIVE n(i) AS"  # noqa: S608  # names of our own columns
                f" (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {self.count})"
                f" SELECT {', '.join(values)} FROM n, {meta.db_table} t WHERE t.id = %s",
                [row._meta.pk.get_db_prep_value(row.pk, connection)],
            )


def _copy(job: Job, node: Node, copies: Copies) -> None:
    now, key, its_run, at = timezone.now(), copies.key(0), copies.key(1), copies.moment()
    run = Assignment.objects.create(
        job=job,
        node=node,
        fence=job.fence + 1,
        state=S.SUCCEEDED,
        accepted_at=now,
        running_at=now,
        ended_at=now,
        metered_until=now,
        exit_code=0,
        energy_kwh=1.0,
        energy_cost=1,
        power_source="measured",
    )
    times = dict.fromkeys(("submitted_at", "started_at", "completed_at"), at)
    copies.of(job, {"id": key, "name": f"'{job.name}-' || i", **times})
    for event in ("submitted", "completed"):
        copies.of(JobEvent.objects.create(job=job, event=event), {"job_id": key, "at": at})
    attempt = Attempt.objects.create(job=job, number=1, ended_at=now, outcome="completed")
    copies.of(attempt, {"job_id": key, "started_at": at, "ended_at": at})
    times = dict.fromkeys(
        ("created_at", "accepted_at", "running_at", "ended_at", "metered_until"), at
    )
    copies.of(run, {"id": its_run, "job_id": key, **times})
    slot = AssignmentSlot.objects.create(
        assignment=run, device=node.devices.order_by("pk")[0], live=False
    )
    copies.of(slot, {"assignment_id": its_run})
    for state in STATES:
        move = MOVE_TO.get(state, OFFER)
        change = AssignmentEvent.objects.create(assignment=run, move=move, to_state=state)
        copies.of(change, {"assignment_id": its_run, "at": at})
    entry = EnergyEntry.objects.create(
        assignment=run,
        hour=now,
        cluster=node.cluster,
        node=node,
        job=job,
        team=job.team,
        purpose="training",
        gpu_s=3600.0,
        measured_kwh=0.7,
        rest_kwh=0.3,
        facility_kwh=1.2,
        predicted_kwh=1.0,
        cost=1,
        measured_cost=1,
        predicted_cost=1,
    )
    hour = copies.moment(hour=True)
    copies.of(entry, {"assignment_id": its_run, "job_id": key, "hour": hour})


def long_pages(cluster: str) -> Mapping[str, str]:
    """Name -> address of what a long past makes slow, for operators in part."""
    since = f"cluster={cluster}&from={timezone.now() - timedelta(days=HISTORY_DAYS):%Y-%m-%d}"
    lists = (
        "jobs/job",
        "jobs/jobevent",
        "jobs/attempt",
        "jobs/assignment",
        "jobs/assignmentevent",
        "accounting/energyentry",
    )
    return {
        **{f"costs by {by}": f"/costs/?{since}&by={by}" for by in BY},
        "costs by job, last page": f"/costs/?{since}&by=job&page=5000",
        "API costs by job": f"/api/v1/costs/?{since}&by=job",
        "API jobs, 500,000 on": "/api/v1/jobs/?state=completed&offset=500000",
        **{f"admin {of}": f"/admin/{of}/" for of in lists},
        **{f"admin {of}, search": f"/admin/{of}/?q=train-99" for of in lists[:4]},
    }


def upgrade() -> dict[str, object]:
    """Seconds of the newest migration of each of our apps, which are undone first."""
    loader = MigrationLoader(connection)
    ours = [app for app, _ in loader.graph.leaf_nodes() if app in APPS]
    for app in ours:
        _, newest = loader.graph.leaf_nodes(app)[0]
        (before,) = (n for a, n in loader.get_migration(app, newest).dependencies if a == app)
        call_command("migrate", app, before, verbosity=0)
    began_s = time.monotonic()
    call_command("migrate", verbosity=0)
    return {"seconds": round(time.monotonic() - began_s, 1), "apps": len(ours)}


def back_up_and_restore(file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the seconds of an upgrade, a backup and its restore, once the server has stopped."""
    yield "upgrade", upgrade()
    for command, options in (("backup", {}), ("restore", {"force": True})):
        began_s = time.monotonic()
        call_command(command, file, stdout=StringIO(), **options)
        took_s = round(time.monotonic() - began_s, 1)
        yield command, {"seconds": took_s, "gb": round(file.stat().st_size / 1e9, 2)}
