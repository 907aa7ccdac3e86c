"""manage.py leases [--node NAME]: what nodes hold now, what is wanted, and until when."""

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
        rows, now = live.order_by("desired_at", "created_at"), timezone.now()
        lines = [_line(row, now) for row in (rows.filter(node__name=node) if node else rows)]
        for line in lines or ["nothing is held"]:
            self.stdout.write(line)


def _line(row: Assignment, now: datetime) -> str:
    since = "" if row.desired_at is None else f" for {(now - row.desired_at).total_seconds():.0f} s"
    left = (
        "no lease"
        if row.lease_expires_at is None
        else f"lease {(row.lease_expires_at - now).total_seconds():+.0f} s"
    )
    return (
        f"{row.job.name} ({row.job_id}) on {row.node}: fence {row.fence}, {row.state}, wanted:"
        f" {row.desired}{since}, {left}"
    )
