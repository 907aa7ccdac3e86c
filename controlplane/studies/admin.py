from django.contrib import admin

from controlplane.studies.models import Simulation
from controlplane.web.pages.admin_base import ReadOnly, pretty


@admin.register(Simulation)
class SimulationAdmin(ReadOnly):
    list_display = ("created_at", "name", "user", "team", "state", "progress", "starts", "ended_at")
    list_filter = ("state", "created_at", "team")
    exclude = ("document", "summary", "share_key")
    readonly_fields = ("summary_shown",)
    summary_shown = pretty("summary", "summary")
