"""Administration of teams and jobs. Jobs change only by actions, through the transition table."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminPasswordWidget

from controlplane.web.pages.admin_base import (
    OperatorAdmin,
    OperatorInline,
    PlainModelForm,
    ReadOnly,
    ReadOnlyInline,
    pretty,
    row_action,
)
from jobs.models import (
    Assignment,
    AssignmentEvent,
    AssignmentSlot,
    Attempt,
    Dependency,
    Forecast,
    Job,
    JobArray,
    JobEvent,
    Membership,
    Secret,
    Team,
)
from jobs.people import team_changed
from jobs.secrets import MAX_SECRET, set_secret
from jobs.services import job_cancel, job_hold, job_release, job_requeue
from jobs.submission.submit import JobConflict


class MembershipInline(OperatorInline):
    model = Membership
    autocomplete_fields = ("user",)


@admin.register(Team)
class TeamAdmin(OperatorAdmin):
    list_display = ("name", "weight", "order")
    search_fields = ("name",)
    inlines = (MembershipInline,)

    def save_model(self, request: HttpRequest, obj: Team, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and {"weight", "order"} & set(form.changed_data):
            team_changed(obj)


class SecretForm(PlainModelForm):
    value = forms.CharField(
        widget=UnfoldAdminPasswordWidget,
        max_length=MAX_SECRET,
        strip=False,
        help_text="Stored encrypted; to change it, set it again.",
    )

    class Meta:
        model = Secret
        fields = ("team", "name")


@admin.register(Secret)
class SecretAdmin(OperatorAdmin):
    form = SecretForm
    unhistoried = ("value",)
    list_display = ("team", "name", "updated_at")
    list_filter = ("team",)

    def get_readonly_fields(
        self, request: HttpRequest, obj: Secret | None = None
    ) -> tuple[str, ...]:
        return ("team", "name") if obj else ()

    def save_model(self, request: HttpRequest, obj: Secret, form: Any, change: bool) -> None:
        stored = set_secret(obj.team, obj.name, form.cleaned_data["value"])
        obj.pk, obj.ciphertext = stored.pk, stored.ciphertext


class AttemptInline(ReadOnlyInline):
    model = Attempt
    fields = readonly_fields = (
        "number", "started_at", "ended_at", "outcome", "reason_class", "reason",
    )  # fmt: skip


class DependencyInline(ReadOnlyInline):
    model = Dependency
    fk_name = "job"
    fields = ("on", "on_array", "condition")


class JobEventInline(ReadOnlyInline):
    model = JobEvent
    fields = readonly_fields = ("at", "event", "from_state", "to_state", "actor", "data")


@admin.register(JobArray)
class JobArrayAdmin(ReadOnly):
    list_display = ("id", "indices", "at_once", "size", "submitted_at")
    search_fields = ("=id",)


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = (
        "name", "cluster", "team", "user", "state", "priority", "due_at", "steps_done",
        "total_steps", "submitted_at",
    )  # fmt: skip
    list_filter = ("state", "cluster", "team")
    search_fields = ("=id", "name", "user__username", "kind__name")
    date_hierarchy = "submitted_at"
    inlines = (AttemptInline, DependencyInline, JobEventInline)
    actions = ("cancel", "hold", "release", "requeue")
    exclude = ("environment", "waiting_detail", "received_s")
    readonly_fields = ("environment_shown", "waiting_shown", "received_shown")
    environment_shown = pretty("environment", "environment")
    waiting_shown = pretty("waiting_detail", "why it waits")
    received_shown = pretty("received_s", "device seconds received")

    cancel = row_action("Cancel", job_cancel, JobConflict)
    hold = row_action("Hold", job_hold, JobConflict)
    release = row_action("Release", job_release, JobConflict)
    requeue = row_action("Requeue", job_requeue, JobConflict)


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    list_display = ("job", "number", "started_at", "ended_at", "outcome", "reason_class")
    list_filter = ("outcome", "reason_class")
    search_fields = ("job__name",)


@admin.register(Forecast)
class ForecastAdmin(ReadOnly):
    list_display = ("job", "made_at", "planned_at", "low_at", "start_at", "high_at", "end_at")
    search_fields = ("=job__id", "job__name")


@admin.register(JobEvent)
class JobEventAdmin(ReadOnly):
    list_display = ("at", "job", "event", "from_state", "to_state", "actor")
    list_filter = ("event",)
    search_fields = ("=job__id", "job__name", "actor")


class SlotInline(ReadOnlyInline):
    model = AssignmentSlot
    fields = readonly_fields = ("device", "slot", "share", "live")


class EventInline(ReadOnlyInline):
    model = AssignmentEvent
    fields = readonly_fields = ("at", "move", "from_state", "to_state", "observed_at", "data")


@admin.register(Assignment)
class AssignmentAdmin(ReadOnly):
    list_display = (
        "job", "node", "purpose", "rank", "gpus", "fence", "state", "desired", "created_at",
        "ended_at", "energy_cost",
    )  # fmt: skip
    list_filter = ("state", "purpose", "node__cluster", "node")
    search_fields = ("=id", "job__name", "node__name")
    date_hierarchy = "created_at"
    inlines = (SlotInline, EventInline)


@admin.register(AssignmentEvent)
class AssignmentEventAdmin(ReadOnly):
    list_display = ("at", "assignment", "move", "from_state", "to_state")
    list_filter = ("move",)
