"""Administration of teams and jobs. Jobs change only by actions, through the transition table."""

from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
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
    Kind,
    Membership,
    RunTimeHistory,
    Secret,
    Team,
)
from jobs.people import request_team_rounds
from jobs.secrets import MAX_SECRET, set_secret
from jobs.services import job_cancel, job_hold, job_release, job_requeue
from jobs.submission.refusals import JobConflict


class MembershipInline(OperatorInline):
    model = Membership
    autocomplete_fields = ("user",)


@admin.register(Team)
class TeamAdmin(OperatorAdmin):
    list_display = ("name", "weight", "order", "max_gpus", "max_queued_jobs")
    search_fields = ("name",)
    inlines = (MembershipInline,)

    def save_model(self, request: HttpRequest, obj: Team, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and {"weight", "order", "max_gpus"} & set(form.changed_data):
            request_team_rounds(obj)


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
    audited_by_service = True
    kept_out_of_history = ("value",)
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
        "number",
        "started_at",
        "ended_at",
        "outcome",
        "reason_class",
        "reason",
    )


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
        "name",
        "cluster",
        "team",
        "user",
        "state",
        "priority",
        "due_at",
        "steps_done",
        "total_steps",
        "submitted_at",
    )
    list_filter = ("state", "submitted_at", "cluster", "team")
    search_fields = ("id", "name", "user", "kind")
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

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find an id, or words that are each part of the name of a job, its owner or its kind."""
        for word in search_term.split():
            # Owners and kinds first, which are few: joined, their names are compared for each job.
            people = User.objects.filter(username__icontains=word).values_list("pk", flat=True)
            kinds = Kind.objects.filter(name__icontains=word).values_list("pk", flat=True)
            named = Q(name__icontains=word) | Q(user__in=list(people)) | Q(kind__in=list(kinds))
            with suppress(ValueError):
                named |= Q(pk=UUID(word))
            queryset = queryset.filter(named)
        return queryset, False


class OfJobs(ReadOnly):
    """Rows of jobs, found by their job: its id, or a part of its name."""

    search_fields = ("job__name",)
    ids: tuple[str, ...] = ("job",)
    """Fields of which a searched id may be one."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term:
            return queryset, False
        with suppress(ValueError):
            found = [Q(**{field: UUID(search_term)}) for field in self.ids]
            return queryset.filter(reduce(or_, found)), False
        # Jobs first, by an index of theirs: joined, the names of all rows would be compared.
        jobs = Job.objects.order_by().filter(name__icontains=search_term)
        return queryset.filter(job__in=jobs), False


@admin.register(Attempt)
class AttemptAdmin(OfJobs):
    list_display = ("job", "number", "started_at", "ended_at", "outcome", "reason_class")
    list_filter = ("outcome", "reason_class")
    ordering = ("-id",)


@admin.register(Forecast)
class ForecastAdmin(OfJobs):
    list_display = ("job", "made_at", "planned_at", "low_at", "start_at", "high_at", "end_at")


@admin.register(JobEvent)
class JobEventAdmin(OfJobs):
    list_display = ("at", "job", "event", "from_state", "to_state", "actor")
    list_filter = ("event",)


@admin.register(RunTimeHistory)
class RunTimeHistoryAdmin(ReadOnly):
    list_display = ("cluster", "key", "updated_at")
    list_filter = ("cluster",)


class SlotInline(ReadOnlyInline):
    model = AssignmentSlot
    fields = readonly_fields = ("device", "slot", "share", "live")


class EventInline(ReadOnlyInline):
    model = AssignmentEvent
    fields = readonly_fields = ("at", "move", "from_state", "to_state", "observed_at", "data")


@admin.register(Assignment)
class AssignmentAdmin(OfJobs):
    ids = ("pk", "job")
    list_display = (
        "job",
        "node",
        "purpose",
        "rank",
        "gpus",
        "fence",
        "state",
        "desired",
        "created_at",
        "ended_at",
        "energy_cost",
    )
    list_filter = ("state", "created_at", "node__cluster", "node")
    ordering = ("-created_at",)
    inlines = (SlotInline, EventInline)


@admin.register(AssignmentEvent)
class AssignmentEventAdmin(ReadOnly):
    list_display = ("at", "assignment", "move", "from_state", "to_state")
