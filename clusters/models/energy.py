"""Energy prices: tariffs and PUE, append-only; later rows replace earlier ones."""

from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone

from clusters.caps import EVERY_DAY
from clusters.models.clusters import Cluster

EMISSIONS = [MinValueValidator(0.0), MaxValueValidator(1e9)]
"""Bounds of g/kWh, as in a snapshot."""

PRICES = [MinValueValidator(Decimal(-1000)), MaxValueValidator(Decimal(1000))]
"""Bounds of a price per kWh: those of day-ahead markets are below 0 at times."""


class EnergyTariff(models.Model):
    """Version of a cluster's prices from `effective_from`; hours are in the cluster's zone.

    A tariff has a default price, and bands for some hours. A series, such as day-ahead prices, has
    a price for each of its steps, and ends: from `effective_until` on, the version that it replaced
    holds again.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="tariffs")
    name = models.CharField(max_length=100, blank=True, default="")
    effective_from = models.DateTimeField(default=timezone.now)
    effective_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The end of a series; others have none"
    )
    default_price_per_kwh = models.DecimalField(
        max_digits=12,
        decimal_places=8,
        validators=PRICES,
        help_text="Price of every hour no band covers, below 0 too; of a series the mean",
    )
    emissions_g_per_kwh = models.FloatField(default=0.0, validators=EMISSIONS)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL
    )

    class Meta:
        ordering = ["cluster", "-effective_from", "-id"]

    def __str__(self) -> str:
        return f"{self.cluster} {self.name or 'tariff'} from {self.effective_from:%Y-%m-%d %H:%M}"


class TariffBand(models.Model):
    """Price for hours of some days: digits 0 (Monday) .. 6; `to_time` 00:00 is the day's end."""

    tariff = models.ForeignKey(EnergyTariff, on_delete=models.CASCADE, related_name="bands")
    days = models.CharField(max_length=7, default=EVERY_DAY)
    from_time = models.TimeField()
    to_time = models.TimeField()
    price_per_kwh = models.DecimalField(max_digits=12, decimal_places=8, validators=PRICES)
    emissions_g_per_kwh = models.FloatField(
        null=True,
        blank=True,
        validators=EMISSIONS,
        help_text="Grams of CO2 per kWh in these hours; the tariff's where left out",
    )

    class Meta:
        ordering = ["from_time"]

    def __str__(self) -> str:
        return f"{self.from_time:%H:%M}-{self.to_time:%H:%M} at {self.price_per_kwh}"

    def clean(self) -> None:
        """Reject days that are no digits from 0 to 6, and hours that cross midnight."""
        if not self.days or not set(self.days) <= set(EVERY_DAY):
            remedy = "write the days as digits, 0 for Monday to 6 for Sunday, such as 01234"
            raise ValidationError({"days": remedy})
        ends_at_midnight = (self.to_time.hour, self.to_time.minute) == (0, 0)
        if self.to_time <= self.from_time and not ends_at_midnight:
            rule = "must be after from_time (00:00 means midnight)"
            raise ValidationError({"to_time": f"{rule}; split a band that crosses midnight"})


class TariffStep(models.Model):
    """Price of a series from `starts_at` to its next step's, or to its end."""

    tariff = models.ForeignKey(EnergyTariff, on_delete=models.CASCADE, related_name="steps")
    starts_at = models.DateTimeField()
    price_per_kwh = models.DecimalField(max_digits=12, decimal_places=8, validators=PRICES)
    emissions_g_per_kwh = models.FloatField(null=True, validators=EMISSIONS)

    class Meta:
        ordering = ["starts_at"]
        constraints = [
            models.UniqueConstraint(fields=["tariff", "starts_at"], name="one_price_at_a_time")
        ]

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d %H:%M} at {self.price_per_kwh}"


class PueRecord(models.Model):
    """Facility energy over IT energy from `effective_from` to the next record's."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pues")
    effective_from = models.DateTimeField(default=timezone.now)
    pue = models.FloatField(validators=[MinValueValidator(1.0), MaxValueValidator(1000.0)])
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL
    )

    class Meta:
        verbose_name = "PUE"
        ordering = ["cluster", "-effective_from", "-id"]

    def __str__(self) -> str:
        return f"PUE {self.pue} from {self.effective_from:%Y-%m-%d %H:%M}"
