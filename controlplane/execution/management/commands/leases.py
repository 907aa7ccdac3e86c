"""manage.py leases [--node NAME]: live assignments, the server's wishes, and their leases."""

from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment


class Command(BaseCommand):
    help = (
        "List live assignments: job, node, fence, state, what the server wants, and the seconds"
        " left of the lease"
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--node", help="list this node's assignments only")

    def handle(self, *args: Any, node: str | None, **options: Any) -> None:
        live = Assignment.objects.filter(state__in=LIVE).select_related("job", "node")
        if node:
            live = live.filter(node__name=node)
        assignments = list(live.order_by("desired_at", "created_at"))
        if not assignments:
            self.stdout.write("nothing is held")
        now = timezone.now()
        for assignment in assignments:
            self.stdout.write(_line(assignment, now))


def _line(assignment: Assignment, now: datetime) -> str:
    """Line of one assignment: job, node, fence, state, the server's wish, and the lease's rest."""
    since = ""
    if assignment.desired_at is not None:
        since = f" for {(now - assignment.desired_at).total_seconds():.0f} s"
    lease = "no lease"
    if assignment.lease_expires_at is not None:
        lease = f"lease {(assignment.lease_expires_at - now).total_seconds():+.0f} s"
    return (
        f"{assignment.job.name} ({assignment.job_id}) on {assignment.node}:"
        f" fence {assignment.fence}, {assignment.state},"
        f" wanted: {assignment.desired}{since}, {lease}"
    )
