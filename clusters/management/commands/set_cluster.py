"""manage.py set_cluster NAME [--timezone Z] [--lease-s S] ...: create or change a cluster."""

import json
from argparse import ArgumentParser, ArgumentTypeError
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from clusters.events import request_reschedule
from clusters.management.operators import OperatorCommand, finite
from clusters.models import Cluster, Reason
from clusters.models.clusters import Predictor, Profiling
from controlplane.audit.record import record_values

NUMBER_OPTIONS = {
    "heartbeat_s": "how often agents report",
    "lease_s": "how long jobs run on without their server; at least two heartbeats",
    "grace_s": "time a job gets to save a checkpoint when it is stopped",
    "margin_s": "extra wait after lease and grace before a silent node's job counts as ended",
    "period_s": "seconds between periodic rounds",
    "power_cap_w": "IT watts of all work together",
    "restart_cost_s": "seconds lost by a checkpoint-restart",
    "min_run_factor": "shortest run of a launch, in restart costs",
    "log_head_mb": "megabytes that are kept of the beginning of a long output",
    "log_tail_mb": "megabytes that are kept of the end of a long output",
    "profile_silence_s": "seconds after which a profile run without a step ends",
}
"""Options of fields that are numbers, with their help."""

OTHER_OPTIONS = (
    "timezone",
    "currency",
    "power_cap_hours",
    "emissions_cost_per_kg",
    "value_of_time",
    "profiling",
    "predictor",
)


class Command(OperatorCommand):
    help = "Make a cluster, or change its zone, its agents' intervals, its period or its power cap"

    def add_arguments(self, parser: ArgumentParser) -> None:
        # 1. Names.
        parser.add_argument("name")
        parser.add_argument(
            "--timezone", help="IANA zone in which tariffs' hours count, such as Europe/Rome"
        )
        parser.add_argument(
            "--currency", help="ISO 4217 code of every price; fixed once there was a round"
        )

        # 2. Numbers.
        for field, meaning in NUMBER_OPTIONS.items():
            parser.add_argument(f"--{field.replace('_', '-')}", type=finite, help=meaning)

        # 3. Caps by hour, and what decisions weigh.
        parser.add_argument(
            "--power-cap-hours",
            type=_json,
            metavar="JSON",
            help="lower caps for some hours: "
            """'[{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days": "01234"}]'""",
        )
        parser.add_argument(
            "--emissions-cost-per-kg",
            type=_decimal,
            help="cost of a kilogram of CO2 in decisions, in the cluster's currency",
        )
        parser.add_argument(
            "--value-of-time",
            type=_decimal,
            help="cost of an hour of a job's waiting, in the cluster's currency",
        )

        # 4. Speeds and run times.
        parser.add_argument(
            "--profiling",
            choices=Profiling.values,
            help="how the speed of a new kind is measured",
        )
        parser.add_argument(
            "--predictor",
            choices=Predictor.values,
            help="how the run times of batch jobs are predicted",
        )

    def handle(self, *args: Any, name: str, **options: Any) -> None:
        # 1. The values of the options that were given. Bills stay in the currency they are in.
        values = {}
        for field in (*OTHER_OPTIONS, *NUMBER_OPTIONS):
            if options[field] is not None:
                values[field] = options[field]
        cluster = Cluster.objects.filter(name=name).first() or Cluster(name=name)
        changes_currency = values.get("currency", cluster.currency) != cluster.currency
        if cluster.pk and changes_currency and cluster.rounds.exists():
            raise CommandError(
                "--currency: what was decided and billed stays in the currency it was in; make"
                " another cluster"
            )

        # 2. Check them.
        old_values = None
        if cluster.pk is not None:
            old_values = {field: getattr(cluster, field) for field in values}
        for field, value in values.items():
            setattr(cluster, field, value)
        cluster.full_clean()

        # 3. Save them with their row of the audit, and show the cluster.
        with transaction.atomic():
            _save(cluster, values)
            action = "cluster.add" if old_values is None else "cluster.change"
            record_values(action, cluster, values, old_values)
        self.stdout.write(
            f"cluster {cluster.name}: {cluster.timezone}, {cluster.currency}, {cluster.policy},"
            f" heartbeat {cluster.heartbeat_s:g} s, lease {cluster.lease_s:g} s, grace"
            f" {cluster.grace_s:g} s"
        )


def _json(text: str) -> Any:
    """Parse the JSON of an option."""
    try:
        return json.loads(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no JSON") from None


def _decimal(text: str) -> Decimal:
    """Parse the decimal number of an option."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ArgumentTypeError(f"{text!r} is no number") from None


def _save(cluster: Cluster, values: dict[str, Any]) -> None:
    """Save a new cluster, or these columns of a known one, and ask for a round.

    The other columns of a known one stay: among them is the lock of a round that may be running.
    """
    if cluster.pk is None:
        cluster.save()
    elif values:
        Cluster.objects.filter(pk=cluster.pk).update(**values)
        request_reschedule(cluster, Reason.OPERATOR)
