"""Administration of measured kinds: they are read-only here."""

from django.contrib import admin

from controlplane.web.pages.admin_base import ReadOnly, ReadOnlyInline
from jobs.models import Kind
from profiling.models import (
    Measurement,
    PairMeasurement,
    PairProfile,
    PairRun,
    PredictedRun,
    Profile,
    ProfileRun,
    RunTimeGroup,
)


class ProfileInline(ReadOnlyInline):
    model = Profile
    fields = readonly_fields = (
        "gpu_type",
        "gpus",
        "spread",
        "steps_per_s",
        "source",
        "published",
        "samples",
        "gpu_fraction",
        "gpu_w",
        "updated_at",
    )


class RunInline(ReadOnlyInline):
    model = ProfileRun
    fields = readonly_fields = (
        "gpu_type",
        "gpus",
        "steps",
        "state",
        "failures",
        "reason",
        "created_at",
        "ended_at",
    )


@admin.register(Kind)
class KindAdmin(ReadOnly):
    list_display = ("__str__", "team", "digest", "setup_s", "created_at")
    list_filter = ("team",)
    list_select_related = ("team",)
    search_fields = ("name", "digest")
    inlines = (ProfileInline, RunInline)


@admin.register(Profile)
class ProfileAdmin(ReadOnly):
    list_display = (
        "kind",
        "gpu_type",
        "gpus",
        "spread",
        "steps_per_s",
        "source",
        "published",
        "samples",
        "updated_at",
    )
    list_filter = ("source", "published", "gpu_type")
    search_fields = ("kind__name", "kind__digest")


@admin.register(ProfileRun)
class ProfileRunAdmin(ReadOnly):
    list_display = ("kind", "job", "gpu_type", "gpus", "steps", "state", "failures", "created_at")
    list_filter = ("state", "gpu_type")


@admin.register(Measurement)
class MeasurementAdmin(ReadOnly):
    list_display = ("at", "kind", "gpu_type", "gpus", "purpose", "steps", "steps_per_s", "held")
    list_filter = ("purpose", "held", "gpu_type")


@admin.register(PairProfile)
class PairProfileAdmin(ReadOnly):
    list_display = (
        "first",
        "second",
        "gpu_type",
        "first_steps_per_s",
        "second_steps_per_s",
        "source",
        "samples",
        "updated_at",
    )
    list_filter = ("source", "gpu_type")
    search_fields = ("first__name", "second__name", "first__digest", "second__digest")


@admin.register(PairMeasurement)
class PairMeasurementAdmin(ReadOnly):
    list_display = (
        "at",
        "first",
        "second",
        "gpu_type",
        "first_steps_per_s",
        "second_steps_per_s",
        "estimated_first_steps_per_s",
        "estimated_second_steps_per_s",
        "held",
    )
    list_filter = ("held", "gpu_type")


@admin.register(PairRun)
class PairRunAdmin(ReadOnly):
    list_display = (
        "first",
        "second",
        "gpu_type",
        "state",
        "failures",
        "reason",
        "created_at",
        "ended_at",
    )
    list_filter = ("state", "gpu_type")


@admin.register(PredictedRun)
class PredictedRunAdmin(ReadOnly):
    list_display = ("ended_at", "job", "team", "user", "source", "predicted_s", "run_s")
    list_filter = ("source", "team")


@admin.register(RunTimeGroup)
class RunTimeGroupAdmin(ReadOnly):
    list_display = ("cluster", "key", "newest_s", "updated_at")
    list_filter = ("cluster",)
