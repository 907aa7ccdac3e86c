"""manage.py costs_csv CLUSTER [--by team] [--period last-month]: energy and cost as CSV."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from clusters.management.operators import the_cluster
from controlplane.accounting.costs import Costs, csv_of
from controlplane.accounting.query import BY, PERIODS, CostQueryError, read_query

OPERATOR = User(is_staff=True, is_active=True)
"""Unsaved operator: whoever can run this command can read the whole database."""


class Command(BaseCommand):
    help = "Print energy and cost as CSV: by hour, day, node, team or job"
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster")
        parser.add_argument("--by", choices=list(BY), default="team")
        parser.add_argument("--period", choices=list(PERIODS), default="7d")
        since_help = "instead of a period: the first day or a time (ISO 8601)"
        parser.add_argument("--from", dest="since", default="", help=since_help)
        parser.add_argument("--to", dest="until", default="", help="the last day or a time")

    def handle(self, *args: Any, cluster: str, **options: Any) -> None:
        queried_cluster = the_cluster(cluster)
        fields = {
            "by": options["by"],
            "period": options["period"],
            "from": options["since"],
            "to": options["until"],
        }
        try:
            query = read_query(queried_cluster, fields, timezone.now())
        except CostQueryError as error:
            raise CommandError(f"--{error.field}: {error}") from None
        rows = Costs(OPERATOR, query).rows
        for line in csv_of(rows, queried_cluster.currency):
            self.stdout.write(line, ending="")
