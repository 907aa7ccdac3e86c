from django.contrib import admin

from controlplane.loop.models import Round
from controlplane.web.pages.admin_base import ReadOnly, pretty


@admin.register(Round)
class RoundAdmin(ReadOnly):
    list_display = (
        "number",
        "cluster",
        "status",
        "policy",
        "plan_status",
        "objective",
        "started_at",
        "solve_s",
    )
    list_filter = ("started_at", "cluster", "status", "policy")
    exclude = ("reasons", "parameters", "snapshot", "plan", "runs_expected", "changes", "rejected")
    readonly_fields = (
        "reasons_shown",
        "parameters_shown",
        "changes_shown",
        "rejected_shown",
        "plan_shown",
        "snapshot_shown",
    )
    reasons_shown = pretty("reasons", "reasons")
    parameters_shown = pretty("parameters", "parameters")
    changes_shown = pretty("changes", "changes")
    rejected_shown = pretty("rejected", "placements not launched")
    plan_shown = pretty("plan", "plan")
    snapshot_shown = pretty("snapshot", "snapshot")
