"""manage.py set_tariff CLUSTER [PRICE] [--band "01234 08:00-20:00 0.24"] [--from TIME]."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import time
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from clusters.management.operators import in_words, moment, the_cluster
from clusters.models import Cluster, EnergyTariff
from clusters.tariffs import BandWords, add_tariff


class Command(BaseCommand):
    """Adds a version; without a price it shows the versions there are."""

    help = (
        "Add a version of a cluster's energy prices; without a price, show the versions. Versions"
        " never change: a later one holds"
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The cluster, the price, and when."""
        parser.add_argument("cluster")
        parser.add_argument(
            "price",
            nargs="?",
            help="per kWh, in the cluster's currency, for every hour that no band covers",
        )
        parser.add_argument(
            "--band", action="append", default=[], metavar="'DAYS FROM-TO PRICE [GRAMS]'",
            help="another price for some hours: days as digits (0 is Monday), as in"
            " '01234 08:00-20:00 0.24', and "
            "grams of CO2 per kWh where they differ; as often as needed",
        )  # fmt: skip
        parser.add_argument(
            "--from",
            dest="since",
            help="in force from then on (ISO 8601, in the cluster's zone); now if left out",
        )
        parser.add_argument("--name", default="", help="what you call it")
        parser.add_argument("--emissions-g", type=float, default=0.0, help="grams of CO2 per kWh")

    def handle(
        self,
        *args: Any,
        cluster: str,
        price: str | None,
        band: list[str],
        since: str | None,
        **options: Any,
    ) -> None:
        """Add it if there is one, and show the versions."""
        row = the_cluster(cluster)
        if price is None and (band or since):
            raise CommandError(
                "say the price of the other hours too: set_tariff CLUSTER PRICE --band ..."
            )
        if price is not None:
            bands = [_band(text) for text in band]
            try:
                add_tariff(
                    row, _price("PRICE", price), moment("--from", since, row), bands,
                    name=options["name"], emissions_g_per_kwh=options["emissions_g"],
                )  # fmt: skip
            except ValidationError as error:
                raise in_words(error) from None
        for line in _versions(row):
            self.stdout.write(line)


def _versions(cluster: Cluster) -> list[str]:
    rows = (
        EnergyTariff.objects.filter(cluster=cluster)
        .order_by("-effective_from", "-id")
        .prefetch_related("bands")
    )
    return [_line(row, ZoneInfo(cluster.timezone), cluster.currency) for row in rows] or [
        "no tariff: energy costs nothing yet"
    ]


def _line(row: EnergyTariff, zone: ZoneInfo, currency: str) -> str:
    bands = "".join(
        f"; days {b.days} {b.from_time:%H:%M}-{b.to_time:%H:%M} {b.price_per_kwh.normalize():f}"
        for b in row.bands.all()
    )
    price = f"{row.default_price_per_kwh.normalize():f} {currency}/kWh"
    return (
        f"from {row.effective_from.astimezone(zone):%Y-%m-%d %H:%M %Z}:"
        f" {price}{bands}{f' ({row.name})' if row.name else ''}"
    )


def _band(text: str) -> BandWords:
    try:
        days, hours, price, *grams = text.split()
        start, end = (time.fromisoformat(part) for part in hours.split("-"))
        (emissions_g,) = map(float, grams) if grams else (None,)
    except ValueError:
        raise CommandError(
            "--band: write 'DAYS FROM-TO PRICE [GRAMS]', as in '01234 08:00-20:00 0.24', not"
            f" {text!r}"
        ) from None
    return BandWords(days, start, end, _price("--band", price), emissions_g)


def _price(option: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise CommandError(f"{option}: {text!r} is no price; write it as in 0.24") from None
