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
from jobs.models import Job

PATIENCE_S = 480.0
"""Time limit of the demo; unfinished jobs are reported as they are."""

_TABLE_EVERY_S = 10.0


def play(
    url: str, console: Console, pause: Callable[[float], None], image: str = ""
) -> QuerySet[Job]:
    """Submit every job at its time through REST, wait for all, return their rows."""
    began, shown = time.monotonic(), 0.0
    waiting = list(JOBS)
    submitted: list[str] = []
    while time.monotonic() - began < PATIENCE_S:
        elapsed = time.monotonic() - began
        while waiting and waiting[0].arrival_s <= elapsed:
            submitted.append(_submit(url, waiting.pop(0), image, elapsed, console))
        rows = Job.objects.filter(pk__in=submitted)
        if elapsed - shown >= _TABLE_EVERY_S:
            shown = elapsed
            console.print(_table(rows, elapsed))
        if not waiting and not rows.exclude(state__in=ENDED).exists():
            break
        connections.close_all()
        pause(0.5)
    return Job.objects.filter(pk__in=submitted)


def _submit(url: str, job: DemoJob, image: str, elapsed: float, console: Console) -> str:
    # A token for each: who logs in meanwhile changes the password, which ends the admin's tokens.
    token, secret = AuthToken.objects.create(User.objects.get(username=ADMIN))
    try:
        with loadmaster.Client(url, secret) as client:
            submission = client.submit(job.request(image))
    finally:
        token.delete()
    console.print(
        f"{elapsed:6.1f} s  submitted {job.name} ({job.application}, {job.epochs} epochs, due in"
        f" {job.due_s / 60:.0f} s)"
    )
    return str(submission.id)


def _table(rows: QuerySet[Job], elapsed: float) -> Table:
    headings, title = ("job", "state", "progress", "loss", "where"), f"after {elapsed:.0f} s"
    table = Table(*headings, title=title, title_justify="left", expand=False)
    for job in rows.order_by("submitted_at"):
        live = job.assignments.filter(ended_at=None).select_related("node__gpu_type")
        where = ", ".join(
            f"{a.node.name} ({a.gpus} x"
            f" {a.node.type_name}{', profile run' if a.purpose == 'profiling' else ''})"
            for a in live
        )
        loss = "" if job.last_loss is None else f"{job.last_loss:.4f}"
        progress = f"{job.steps_done}/{job.total_steps}"
        why = where or job.failure_reason[:60] or job.waiting_code
        table.add_row(job.name, job.state, progress, loss, why)
    return table
