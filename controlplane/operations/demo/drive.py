"""Submission of the demo's jobs in time, and display of their progress."""

import time
from collections.abc import Callable

from django.contrib.auth.models import User
from django.db import connections
from django.db.models import QuerySet
from knox.models import AuthToken
from rich.console import Console
from rich.table import Table

import loadmaster
from controlplane.operations.bootstrap import ADMIN
from controlplane.operations.demo.scenario import JOBS, DemoJob
from jobs.lifecycle import ENDED
from jobs.models import Assignment, Job

PATIENCE_S = 480.0
"""Time limit of the demo; unfinished jobs are reported as they are."""

_TABLE_EVERY_S = 10.0


def play(
    url: str, console: Console, pause: Callable[[float], None], image: str = ""
) -> QuerySet[Job]:
    """Submit every job at its time through REST, wait for all, return their rows."""
    began_s = time.monotonic()
    table_s = 0.0
    waiting = list(JOBS)
    submitted: list[str] = []
    while time.monotonic() - began_s < PATIENCE_S:
        # 1. Submit the jobs that are due.
        elapsed_s = time.monotonic() - began_s
        while waiting and waiting[0].arrival_s <= elapsed_s:
            submitted.append(_submit(url, waiting.pop(0), image, elapsed_s, console))

        # 2. Show all of them now and then, until they have ended.
        jobs = Job.objects.filter(pk__in=submitted)
        if elapsed_s - table_s >= _TABLE_EVERY_S:
            table_s = elapsed_s
            console.print(_table(jobs, elapsed_s))
        if not waiting and not jobs.exclude(state__in=ENDED).exists():
            break
        connections.close_all()
        pause(0.5)
    return Job.objects.filter(pk__in=submitted)


def _submit(url: str, job: DemoJob, image: str, elapsed_s: float, console: Console) -> str:
    """Submit a job as the admin; return its id."""
    # A token for each: a login meanwhile changes the password, which ends the admin's tokens.
    token, secret = AuthToken.objects.create(User.objects.get(username=ADMIN))
    try:
        with loadmaster.Client(url, secret) as client:
            submission = client.submit(job.request(image))
    finally:
        token.delete()
    console.print(
        f"{elapsed_s:6.1f} s  submitted {job.name} ({job.application}, {job.epochs} epochs, due in"
        f" {job.due_s / 60:.0f} s)"
    )
    return str(submission.id)


def _table(jobs: QuerySet[Job], elapsed_s: float) -> Table:
    """Table of the jobs' progress."""
    title = f"after {elapsed_s:.0f} s"
    headings = ("job", "state", "progress", "loss", "where")
    table = Table(*headings, title=title, title_justify="left", expand=False)
    for job in jobs.order_by("submitted_at"):
        live = job.assignments.filter(ended_at=None).select_related("node__gpu_type")
        places = ", ".join(_place(assignment) for assignment in live)
        loss = "" if job.last_loss is None else f"{job.last_loss:.4f}"
        progress = f"{job.steps_done}/{job.total_steps}"
        where = places or job.failure_reason[:60] or job.waiting_code
        table.add_row(job.name, job.state, progress, loss, where)
    return table


def _place(assignment: Assignment) -> str:
    """Node and GPUs of a launch: "volta (2 x V100)"."""
    node = assignment.node
    note = ", profile run" if assignment.purpose == "profiling" else ""
    return f"{node.name} ({assignment.gpus} x {node.type_name}{note})"
