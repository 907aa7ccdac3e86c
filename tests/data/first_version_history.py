"""The small history that the kept database has lived through, in the words of version 0.1.0; see
make_first_version.py.
"""

import gzip
import hashlib
from datetime import time, timedelta
from decimal import Decimal
from typing import Any

from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from knox.models import AuthToken

from clusters.events import request_reschedule
from clusters.models import Cluster, EnergyTariff, Node, PueRecord, Reason, TariffBand
from clusters.services.enrolment import issue_enrolment_token, sha256
from clusters.services.nodes import node_cordon, node_drain
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.logs import append_log
from controlplane.execution.services.sessions import open_session
from controlplane.loop.models import Round
from jobs.kinds import digest
from jobs.lifecycle import JobMove
from jobs.models import Assignment, Job, Kind, Membership, Team
from jobs.moves import move_job
from jobs.secrets import set_secret
from jobs.services import job_cancel, job_clone, job_hold, job_submit
from loadmaster.protocol import (
    Accept,
    AssignmentState,
    DeviceReport,
    DeviceSample,
    Heartbeat,
    KnownAssignment,
    ReasonClass,
    SessionRequest,
    StateReport,
)
from loadmaster.samples import MetricsBatch, ProgressSample, UsageSample
from profiling.models import Profile
from tests.builders import a_gpu_type, a_node
from tests.builders_agents import heartbeat
from tests.builders_live import a_round

NODE_TOKEN = "node-token-of-{}"
SECRET = "the session secret of {}"
PASSWORD = "a kept password"


def history() -> dict[str, Any]:
    """Live through it; the facts a reader cannot see in the database (tokens, secrets in clear)."""
    cluster = _cluster()
    people, tokens = _people()
    nodes = _nodes(cluster)
    ada, bert = people["ada"], people["bert"]
    set_secret(Team.objects.get(name="vision"), "wandb", "value-of-the-kept-secret")
    _profiled(cluster, ada)
    jobs = _first_jobs(ada, bert)
    _run_first(cluster)
    _run_profiling(cluster, bert)
    failing = _submit(
        ada,
        name="fails",
        kind="digits",
        steps=10,
        max_retries=0,
        priority=9,
        tardiness_weight=1.0,
        due=timezone.now().isoformat(),
    )
    job_cancel(_submit(ada, name="cancelled", kind="digits", steps=10), ada)
    job_hold(_submit(ada, name="held", kind="digits", steps=10), ada)
    first = Job.objects.get(name="digits-5")
    job_clone(first, ada, {"name": "clone", "dependencies": [str(jobs[2].pk)]})
    _submit(bert, name="another-kind", steps=1000, command=["python", "another.py"])
    a_round(cluster)
    _make_states(cluster, failing, ada)
    _others(cluster, people["olga"])
    node_cordon(nodes[3], "olga", "a fan is loud")
    node_drain(nodes[4], timezone.now() + timedelta(hours=1), "olga", "a new driver")
    request_reschedule(cluster, Reason.OPERATOR)
    return {
        "tokens": tokens,
        "password": PASSWORD,
        "secrets": {"wandb": "value-of-the-kept-secret"},
    }


def _first_jobs(ada: User, bert: User) -> list[Job]:
    jobs = [
        _submit(
            ada,
            name=f"digits-{i}",
            kind="digits",
            epochs=3,
            steps_per_epoch=100,
            due=(timezone.now() + timedelta(hours=2 + i)).isoformat(),
            tardiness_weight=0.001,
        )
        for i in range(6)
    ]
    jobs.append(
        _submit(bert, name="language", kind="digits", steps=50, environment={"WANDB": "off"})
    )
    jobs.append(
        _submit(
            ada,
            name="with-secret",
            kind="digits",
            steps=40,
            environment={"KEY": {"secret": "wandb"}},
        )
    )
    _submit(ada, key="kept-idempotency-key", name="once", kind="digits", steps=10)
    return jobs


def _run_first(cluster: Cluster) -> None:
    """A round whose first job succeeds and whose second one fails."""
    a_round(cluster)
    running = [a for a in _offered() if _take(a)]
    _reports(running)
    _end(running[0], AssignmentState.SUCCEEDED)
    _end(
        running[1],
        AssignmentState.FAILED,
        ReasonClass.USER,
        exit_code=1,
        reason="ValueError: no such column",
    )


def _run_profiling(cluster: Cluster, bert: User) -> None:
    """A round that profiles a kind not known yet."""
    _submit(bert, name="unknown-kind", steps=1000, command=["python", "other.py"])
    a_round(cluster)
    taken = [a for a in _offered() if _take(a)]
    _reports([a for a in taken if a.purpose == "profiling"])
    for assignment in taken:
        if assignment.purpose == "profiling":
            _end(assignment, AssignmentState.SUCCEEDED)


def _cluster() -> Cluster:
    cluster = Cluster.objects.create(
        name="armida",
        timezone="Europe/Rome",
        policy="randomized_greedy",
        policy_parameters={"iterations": 20},
        period_s=300.0,
    )
    long_ago = timezone.now() - timedelta(days=400)
    EnergyTariff.objects.create(
        cluster=cluster, name="old", effective_from=long_ago, default_price_per_kwh=Decimal("0.25")
    )
    newer = EnergyTariff.objects.create(
        cluster=cluster,
        name="day and night",
        effective_from=long_ago + timedelta(days=200),
        default_price_per_kwh=Decimal("0.172"),
        emissions_g_per_kwh=300.0,
    )
    TariffBand.objects.create(
        tariff=newer,
        days="01234",
        from_time=time(8),
        to_time=time(20),
        price_per_kwh=Decimal("0.21"),
    )
    PueRecord.objects.create(cluster=cluster, effective_from=long_ago, pue=1.33)
    return cluster


def _people() -> tuple[dict[str, User], dict[str, str]]:
    people = {
        "olga": User.objects.create_user(
            "olga", "olga@example.org", PASSWORD, is_staff=True, is_superuser=True
        ),
        "ada": User.objects.create_user("ada", "ada@example.org", PASSWORD),
        "bert": User.objects.create_user("bert", "bert@example.org", PASSWORD),
    }
    for team, members in {"vision": ("ada", "olga"), "language": ("bert",)}.items():
        row = Team.objects.create(name=team, weight=2.0 if team == "vision" else 1.0)
        for name in members:
            Membership.objects.create(team=row, user=people[name])
    tokens = {
        name: str(AuthToken.objects.create(user, expiry=None)[1]) for name, user in people.items()
    }
    return people, tokens


def _nodes(cluster: Cluster) -> list[Node]:
    shapes = [
        ("V100", 2, "production"),
        ("T4", 1, "both"),
        ("V100", 1, "profiling"),
        ("T4", 1, "production"),
        ("T4", 1, "production"),
    ]
    rows = []
    for number, (gpu_type, gpus, role) in enumerate(shapes, 1):
        name = f"armida-0{number}"
        rows.append(
            a_node(
                cluster,
                gpu_type=gpu_type,
                gpus=gpus,
                role=role,
                name=name,
                machine_id=f"machine-of-{name}",
                token_sha256=sha256(NODE_TOKEN.format(name)),
                rack="r1",
                labels=["imagenet"],
                agent_version="0.1.0",
            )
        )
    for node in rows[:3]:
        reports = tuple(
            DeviceReport(d.uuid, node.type_name, 16.0) for d in node.devices.order_by("uuid")
        )
        open_session(
            node.pk,
            SessionRequest(node.machine_id, "boot-1", SECRET.format(node.name), devices=reports),
        )
    Node.objects.filter(pk=rows[4].pk).update(last_seen_at=timezone.now())
    return rows


def _profiled(cluster: Cluster, user: User) -> None:
    """A kind that was measured before, by its name."""
    kind, _ = Kind.objects.get_or_create(digest=digest("digits"), defaults={"name": "digits"})
    for (name, gpus), speed in {("V100", 1): 2.0, ("V100", 2): 3.5, ("T4", 1): 0.8}.items():
        Profile.objects.create(
            kind=kind,
            gpu_type=a_gpu_type(name),
            gpus=gpus,
            steps_per_s=speed,
            source="measured",
            samples=3,
        )


def _submit(user: User, key: str | None = None, **fields: Any) -> Job:
    data = {
        "name": "digits",
        "command": ["python", "train.py"],
        "team": "language" if user.username == "bert" else "vision",
        **fields,
    }
    return job_submit(user, data, key).job


def _offered() -> list[Assignment]:
    return list(
        Assignment.objects.filter(state="offered", node__epoch__gt=0).order_by("created_at")
    )


def _take(assignment: Assignment) -> bool:
    node = Node.objects.get(pk=assignment.node_id)
    accept(node.pk, assignment.pk, Accept(epoch=node.epoch, fence=assignment.fence))
    for seq, state in enumerate((AssignmentState.PREPARING, AssignmentState.RUNNING), 1):
        report_state(
            node.pk,
            assignment.pk,
            StateReport(node.epoch, assignment.fence, seq, state, timezone.now().timestamp()),
        )
    return True


def _reports(running: list[Assignment]) -> None:
    now_s = timezone.now().timestamp()
    for assignment in running:
        node = Node.objects.get(pk=assignment.node_id)
        progress = tuple(
            ProgressSample(
                now_s + i,
                "start" if i == 0 else "checkpoint" if i == 8 else "progress",
                5 * i,
                5 * i,
                2.5 * i,
                2.0,
                1.0 / (i + 1),
            )
            for i in range(9)
        )
        usage = tuple(UsageSample(now_s + i, 0.9, 1.5, 0.8, 180.0, "modelled") for i in range(5))
        record_metrics(
            node, assignment.pk, MetricsBatch(node.epoch, assignment.fence, 1, progress, usage)
        )
        text = b"".join(b"epoch %d loss %.3f\n" % (i, 1 / (i + 1)) for i in range(9))
        append_log(
            node,
            assignment.pk,
            "stdout",
            0,
            node.epoch,
            assignment.fence,
            gzip.compress(text),
            hashlib.sha256(text).hexdigest(),
        )
    for node in Node.objects.filter(epoch__gt=0):
        held = tuple(
            KnownAssignment(str(a.pk), a.fence, AssignmentState.RUNNING)
            for a in running
            if a.node_id == node.pk
        )
        samples = tuple(DeviceSample(d.uuid, True, 0.8, 4.0, 150.0) for d in node.devices.all())
        heartbeat(
            node.pk,
            Heartbeat(node.epoch, node.heartbeat_seq + 1, now_s, devices=samples, assignments=held),
        )


def _end(
    assignment: Assignment,
    state: AssignmentState,
    reason_class: ReasonClass | None = None,
    **values: Any,
) -> None:
    node = Node.objects.get(pk=assignment.node_id)
    at_s = timezone.now().timestamp()
    report_state(
        node.pk,
        assignment.pk,
        StateReport(
            node.epoch,
            assignment.fence,
            9,
            state,
            at_s,
            steps=300,
            reason_class=reason_class,
            **values,
        ),
    )


def _make_states(cluster: Cluster, failing: Job, ada: User) -> None:
    """What the history left out: each state of a job has one."""
    failing.refresh_from_db()
    if failing.state == "starting":
        assignment = Assignment.objects.get(job=failing, state="offered")
        _take(assignment)
        _end(
            assignment, AssignmentState.FAILED, ReasonClass.USER, exit_code=2, reason="no such file"
        )
    else:
        move_job(failing, JobMove.FAIL, failure_reason="no such file", completed_at=timezone.now())
    live = list(Job.objects.filter(state="running").order_by("submitted_at"))
    job_cancel(live[0], ada)
    if len(live) > 2:
        job_hold(live[1], ada)


def _others(cluster: Cluster, olga: User) -> None:
    """Tables that only people fill."""
    issue_enrolment_token(cluster, created_by=olga)
    LogEntry.objects.create(
        user=olga,
        content_type=ContentType.objects.get_for_model(Cluster),
        object_id=str(cluster.pk),
        object_repr="armida",
        action_flag=2,
        change_message="period",
    )
    session = SessionStore()
    session["_auth_user_id"] = str(olga.pk)
    session.create()
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
    PeriodicTask.objects.get_or_create(
        name="kept", interval=every, task="controlplane.operations.tasks.reconcile", enabled=False
    )


def expectations(facts: dict[str, Any]) -> dict[str, Any]:
    """Counts of every table, and the contents a migration must not change."""
    counts = {model._meta.label: model._default_manager.count() for model in apps.get_models()}
    jobs = {
        str(job.pk): [
            job.name,
            job.state,
            job.team.name,
            job.user.get_username(),
            job.fence,
            job.steps_done,
            job.checkpoint_steps,
        ]
        for job in Job.objects.select_related("team", "user")
    }
    rounds = {
        f"{r.cluster.name}:{r.number}": [r.status, r.snapshot_sha256, r.plan_sha256, r.objective]
        for r in Round.objects.all()
    }
    nodes = {
        n.name: [n.state, n.role, n.epoch, NODE_TOKEN.format(n.name), n.type_name]
        for n in Node.objects.all()
    }
    assignments = {
        str(a.pk): [a.state, a.fence, str(a.energy_cost)] for a in Assignment.objects.all()
    }
    return {
        **facts,
        "version": "0.1.0",
        "counts": counts,
        "jobs": jobs,
        "rounds": rounds,
        "nodes": nodes,
        "assignments": assignments,
    }
