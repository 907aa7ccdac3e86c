"""Administration of the energy ledger."""

from django.contrib import admin

from controlplane.accounting.models import EnergyEntry
from controlplane.web.pages.admin_base import ReadOnly


@admin.register(EnergyEntry)
class EnergyEntryAdmin(ReadOnly):
    list_display = (
        "hour",
        "cluster",
        "node",
        "team",
        "job",
        "measured_kwh",
        "modelled_kwh",
        "rest_kwh",
        "cost",
    )
    list_filter = ("hour", "cluster", "team")
    ordering = ("-id",)
