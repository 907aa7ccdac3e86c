"""manage.py set_tariff CLUSTER [PRICE] [--band "01234 08:00-20:00 0.24"] [--from TIME].

manage.py set_tariff CLUSTER --series FILE: prices of each hour or quarter of an hour.
"""

from argparse import ArgumentParser
from datetime import time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.db.models import Count

from clusters.management.operators import OperatorCommand, finite, moment, the_cluster
from clusters.models import Cluster, EnergyTariff, TariffBand
from clusters.tariff_series import SeriesError, add_series
from clusters.tariffs import add_tariff
from loadmaster.text_formats import TextError, decode, read_bytes

LARGEST_SERIES = 20_000_000
"""Most bytes of a file with a series."""


class Command(OperatorCommand):
    help = (
        "Add a version of a cluster's energy prices; without a price, show the versions. Versions"
        " never change: a later one holds"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster")
        parser.add_argument(
            "price",
            nargs="?",
            help="per kWh, in the cluster's currency, for every hour that no band covers",
        )
        parser.add_argument(
            "--band",
            action="append",
            default=[],
            metavar="'DAYS FROM-TO PRICE [GRAMS]'",
            help="another price for some hours: days as digits (0 is Monday), as in"
            " '01234 08:00-20:00 0.24', and grams of CO2 per kWh where they differ; repeatable",
        )
        parser.add_argument(
            "--from",
            dest="since",
            help="in force from then on (ISO 8601, in the cluster's zone); now if left out",
        )
        parser.add_argument(
            "--series",
            type=Path,
            metavar="FILE",
            help="a CSV with a header: start, and price_per_kwh or price_per_mwh, of equal steps",
        )
        parser.add_argument("--name", default="", help="name of the version")
        parser.add_argument("--emissions-g", type=finite, default=0.0, help="grams of CO2 per kWh")

    def handle(
        self,
        *args: Any,
        cluster: str,
        price: str | None,
        band: list[str],
        since: str | None,
        series: Path | None,
        **options: Any,
    ) -> None:
        # 1. Add a series.
        its_cluster = the_cluster(cluster)
        if series is not None:
            if price is not None or band or since:
                raise CommandError("--series has its own prices and times: leave the others out")
            _add_series(its_cluster, series, options["name"])

        # 2. Or add a price with its bands.
        if price is None and (band or since):
            raise CommandError(
                "say the price of the other hours too: set_tariff CLUSTER PRICE --band ..."
            )
        if price is not None:
            bands = [_band(text) for text in band]
            tariff = EnergyTariff(
                cluster=its_cluster,
                name=options["name"],
                default_price_per_kwh=_price("PRICE", price),
                effective_from=moment("--from", since, its_cluster),
                emissions_g_per_kwh=options["emissions_g"],
            )
            add_tariff(tariff, bands)

        # 3. Show all versions, the newest first.
        zone = ZoneInfo(its_cluster.timezone)
        versions = its_cluster.tariffs.order_by("-effective_from", "-id").prefetch_related("bands")
        versions = versions.annotate(steps_count=Count("steps"))
        lines = [_line(version, zone, its_cluster.currency) for version in versions]
        self.stdout.write("\n".join(lines) or "no tariff: energy costs nothing yet")


def _line(tariff: EnergyTariff, zone: ZoneInfo, currency: str) -> str:
    """Return the line that shows a version of the prices."""
    price = f"{tariff.default_price_per_kwh.normalize():f} {currency}/kWh"
    if tariff.effective_until is not None:
        until = tariff.effective_until.astimezone(zone)
        count = tariff.steps_count  # type: ignore[attr-defined]  # annotated
        price = f"to {until:%Y-%m-%d %H:%M %Z}, {count} prices, mean {price}"
    line = f"from {tariff.effective_from.astimezone(zone):%Y-%m-%d %H:%M %Z}: {price}"
    for band in tariff.bands.all():
        hours = f"{band.from_time:%H:%M}-{band.to_time:%H:%M}"
        line += f"; days {band.days} {hours} {band.price_per_kwh.normalize():f}"
    if tariff.name:
        line += f" ({tariff.name})"
    return line


def _add_series(cluster: Cluster, path: Path, name: str) -> None:
    """Add the series of a file. Raises CommandError."""
    try:
        text = decode(read_bytes(path, LARGEST_SERIES), any_encoding=True)
        add_series(cluster, text, name=name)
    except OSError as error:
        raise CommandError(f"--series: {path} cannot be read: {error.strerror}") from None
    except (SeriesError, TextError) as error:
        raise CommandError(f"--series: {path}: {error}") from None


def _band(text: str) -> TariffBand:
    """Parse the value of --band, 'DAYS FROM-TO PRICE [GRAMS]'. Raises CommandError."""
    words = text.split()
    emissions_g = None
    try:
        if len(words) == 4:
            emissions_g = float(words.pop())
        days, hours, price = words
        start, end = hours.split("-")
        from_time = time.fromisoformat(start)
        to_time = time.fromisoformat(end)
    except ValueError:
        raise CommandError(
            "--band: write 'DAYS FROM-TO PRICE [GRAMS]', as in '01234 08:00-20:00 0.24', not"
            f" {text!r}"
        ) from None
    return TariffBand(
        days=days,
        from_time=from_time,
        to_time=to_time,
        price_per_kwh=_price("--band", price),
        emissions_g_per_kwh=emissions_g,
    )


def _price(option: str, text: str) -> Decimal:
    """Parse the price of an option. Raises CommandError."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise CommandError(f"{option}: {text!r} is no price; write it as in 0.24") from None
