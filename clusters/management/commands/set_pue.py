"""manage.py set_pue CLUSTER [PUE] [--from TIME]: facility energy over IT energy, by version."""

from argparse import ArgumentParser
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction

from clusters.management.operators import OperatorCommand, finite, moment, the_cluster
from clusters.models import PueRecord
from clusters.tariffs import costs_changed
from controlplane.audit.record import record


class Command(OperatorCommand):
    help = (
        "Add a cluster's PUE from some time on; without a value, show them. Values never change: a"
        " later one holds"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster")
        parser.add_argument(
            "pue", nargs="?", type=finite, help="facility energy over IT energy: 1 or more"
        )
        parser.add_argument(
            "--from",
            dest="since",
            help="in force from then on (ISO 8601, in the cluster's zone); now if left out",
        )

    def handle(
        self, *args: Any, cluster: str, pue: float | None, since: str | None, **options: Any
    ) -> None:
        row = the_cluster(cluster)
        if pue is not None:
            since_then = moment("--from", since, row)
            version = PueRecord(cluster=row, pue=pue, effective_from=since_then)
            version.full_clean()
            with transaction.atomic():
                version.save()
                record("pue.add", row, new={"pue": pue, "effective_from": since_then})
                costs_changed([row])
        zone = ZoneInfo(row.timezone)
        for version in PueRecord.objects.filter(cluster=row).order_by("-effective_from", "-id"):
            self.stdout.write(
                f"from {version.effective_from.astimezone(zone):%Y-%m-%d %H:%M %Z}: PUE"
                f" {version.pue:g}"
            )
