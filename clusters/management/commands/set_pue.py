"""manage.py set_pue CLUSTER [PUE] [--from TIME]: add a PUE, or show all."""

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
        # 1. Add a version, if a value is given.
        its_cluster = the_cluster(cluster)
        if pue is not None:
            effective_from = moment("--from", since, its_cluster)
            version = PueRecord(cluster=its_cluster, pue=pue, effective_from=effective_from)
            version.full_clean()
            with transaction.atomic():
                version.save()
                values = {"pue": pue, "effective_from": effective_from}
                record("pue.add", its_cluster, new=values)
                costs_changed([its_cluster])

        # 2. Show all versions, the newest first.
        zone = ZoneInfo(its_cluster.timezone)
        versions = PueRecord.objects.filter(cluster=its_cluster)
        for version in versions.order_by("-effective_from", "-id"):
            start = version.effective_from.astimezone(zone)
            self.stdout.write(f"from {start:%Y-%m-%d %H:%M %Z}: PUE {version.pue:g}")
