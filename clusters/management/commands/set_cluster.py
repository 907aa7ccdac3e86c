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

NUMBERS = {
    "heartbeat_s": "how often agents report",
    "lease_s": "how long jobs run on without their server; at least two heartbeats",
    "grace_s": "time a job gets to save a checkpoint when it is stopped",
    "margin_s": "what the server waits beyond lease and grace before it takes a job for gone",
    "period_s": "seconds between periodic rounds",
    "power_cap_w": "IT watts of all work together",
    "restart_cost_s": "seconds lost by a checkpoint-restart",
    "min_run_factor": "least run of a launch, in restart costs",
    "log_head_mb": "begin of a long output that is kept",
    "log_tail_mb": "end of a long output that is kept",
    "profile_silence_s": "seconds after which a profile run without a step ends",
}

WORDS = (
    "timezone", "currency", "power_cap_hours", "emissions_cost_per_kg", "value_of_time",
    "profiling", "predictor",
)  # fmt: skip


class Command(OperatorCommand):
    help = "Make a cluster, or change its zone, its agents' intervals, its period or its power cap"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--timezone", help="IANA zone in which tariffs' hours count, such as Europe/Rome"
        )
        parser.add_argument(
            "--currency", help="ISO 4217 code of every price; fixed once there was a round"
        )
        for number, meaning in NUMBERS.items():
            parser.add_argument(f"--{number.replace('_', '-')}", type=finite, help=meaning)

        parser.add_argument(
            "--power-cap-hours", type=_json, metavar="JSON",
            help="lower caps for some hours: "
            """'[{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days": "01234"}]'""",
        )  # fmt: skip
        parser.add_argument(
            "--emissions-cost-per-kg",
            type=_decimal,
            help="what decisions weigh a kilogram of CO2 at, in the cluster's currency",
        )

        parser.add_argument(
            "--value-of-time",
            type=_decimal,
            help="what an hour of a job's waiting is worth, in the cluster's currency",
        )
        parser.add_argument(
            "--profiling",
            choices=Profiling.values,
            help="how the speed of a new kind is measured",
        )
        parser.add_argument(
            "--predictor",
            choices=Predictor.values,
            help="from what the run times of batch jobs are expected",
        )

    def handle(self, *args: Any, name: str, **options: Any) -> None:
        # 1. The settings that were given.
        given = {}
        for field in (*WORDS, *NUMBERS):
            if options[field] is not None:
                given[field] = options[field]
        cluster = Cluster.objects.filter(name=name).first() or Cluster(name=name)
        other_currency = given.get("currency", cluster.currency) != cluster.currency
        if cluster.pk and other_currency and cluster.rounds.exists():
            raise CommandError(
                "--currency: what was decided and billed stays in the currency it was in; make"
                " another cluster"
            )

        # 2. Check and save them.
        old = None
        if cluster.pk is not None:
            old = {field: getattr(cluster, field) for field in given}
        for field, value in given.items():
            setattr(cluster, field, value)
        cluster.full_clean()
        with transaction.atomic():
            _save(cluster, given)
            action = "cluster.add" if old is None else "cluster.change"
            record_values(action, cluster, given, old)
        self.stdout.write(
            f"cluster {cluster.name}: {cluster.timezone}, {cluster.currency}, {cluster.policy},"
            f" heartbeat {cluster.heartbeat_s:g} s, lease {cluster.lease_s:g} s, grace"
            f" {cluster.grace_s:g} s"
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no JSON") from None


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ArgumentTypeError(f"{text!r} is no number") from None


def _save(cluster: Cluster, given: dict[str, Any]) -> None:
    """Save a cluster; of a known one only the given columns, as its row holds a round's lock."""
    if cluster.pk is None:
        cluster.save()
    elif given:
        Cluster.objects.filter(pk=cluster.pk).update(**given)
        request_reschedule(cluster, Reason.OPERATOR)
