"""manage.py set_pue CLUSTER [PUE] [--from TIME]: facility energy over IT energy, by version."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand

from clusters.management.operators import in_words, moment, the_cluster
from clusters.models import PueRecord
from clusters.tariffs import add_pue


class Command(BaseCommand):
    """Adds a value; without one it shows those there are."""

    help = (
        "Add a cluster's PUE from some time on; without a value, show them. Values never change: a"
        " later one holds"
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The cluster, the value, and when."""
        parser.add_argument("cluster")
        parser.add_argument(
            "pue", nargs="?", type=float, help="facility energy over IT energy: 1 or more"
        )
        parser.add_argument(
            "--from",
            dest="since",
            help="in force from then on (ISO 8601, in the cluster's zone); now if left out",
        )

    def handle(
        self, *args: Any, cluster: str, pue: float | None, since: str | None, **options: Any
    ) -> None:
        """Add it if there is one, and show them."""
        row = the_cluster(cluster)
        if pue is not None:
            try:
                add_pue(row, pue, moment("--from", since, row))
            except ValidationError as error:
                raise in_words(error) from None
        zone = ZoneInfo(row.timezone)
        for record in PueRecord.objects.filter(cluster=row).order_by("-effective_from", "-id"):
            self.stdout.write(
                f"from {record.effective_from.astimezone(zone):%Y-%m-%d %H:%M %Z}: PUE"
                f" {record.pue:g}"
            )
