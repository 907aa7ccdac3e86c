"""Administration of the loop's records and of people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User

from controlplane.models import RescheduleEvent, Round, Simulation
from controlplane.web.pages.admin_base import ReadOnly, pretty

if TYPE_CHECKING:

    class _Styled:
        pass

    class _DjangoUserAdmin(DjangoUserAdmin[User]):
        pass
else:
    _DjangoUserAdmin = DjangoUserAdmin
    from unfold.admin import ModelAdmin as _Styled
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm


@admin.register(Round)
class RoundAdmin(ReadOnly):
    """A decision with all it was made from, so that it can be replayed."""

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
    list_filter = ("cluster", "status", "policy")
    list_select_related = ("cluster",)
    date_hierarchy = "started_at"
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


@admin.register(RescheduleEvent)
class RescheduleEventAdmin(ReadOnly):
    """Why rounds were asked for."""

    list_display = ("created_at", "cluster", "reason", "job", "node", "round")
    list_filter = ("cluster", "reason")
    list_select_related = ("cluster", "job", "node", "round__cluster")


@admin.register(Simulation)
class SimulationAdmin(ReadOnly):
    """Simulations: owner and progress. Share keys are for those whom the owner gives the link."""

    list_display = ("created_at", "name", "user", "team", "state", "progress", "starts", "ended_at")
    list_filter = ("state", "team")
    list_select_related = ("user", "team")
    date_hierarchy = "created_at"
    exclude = ("document", "summary", "share_key")
    readonly_fields = ("summary_shown",)
    summary_shown = pretty("summary", "summary")


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(_DjangoUserAdmin, _Styled):
    """People. Only holders of Django's permission may change them; operators may not."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, _Styled):
    """Groups of permissions."""
