"""Rescheduling events, the rounds that answer them, and simulations."""

from __future__ import annotations

from uuid import uuid4

from django.conf import settings
from django.db import models

from controlplane.web.storage.packed_json import PackedJSONField


class Reason(models.TextChoices):
    """Why a round is wanted."""

    SUBMISSION = "submission"
    COMPLETION = "completion"
    FAILURE = "failure"
    NODE_JOINED = "node_joined"
    NODE_LOST = "node_lost"
    NODE_DRAINED = "node_drained"
    PROFILE = "profile"
    TARIFF = "tariff"
    OPERATOR = "operator"
    PERIODIC = "periodic"
    CANCELLATION = "cancellation"
    LEFTOVER = "leftover"
    STOPPED = "stopped"


class RescheduleEvent(models.Model):
    """An event that requests a round; one round answers all that wait."""

    cluster = models.ForeignKey(
        "clusters.Cluster", on_delete=models.CASCADE, related_name="reschedule_events"
    )
    reason = models.CharField(max_length=16, choices=Reason.choices)
    job = models.ForeignKey("jobs.Job", null=True, blank=True, on_delete=models.SET_NULL)
    node = models.ForeignKey("clusters.Node", null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    round = models.ForeignKey(
        "Round", null=True, blank=True, on_delete=models.SET_NULL, related_name="events"
    )

    class Meta:
        indexes = [models.Index(fields=["cluster", "round"])]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.reason} {self.created_at:%H:%M:%S}"


class Round(models.Model):
    """One run of the loop, with all it needs to be replayed. Timings stay beside the plan, never
    inside.

    `carried`: the number of the round whose plan this one carried out, because nothing but ended
    stops asked for it.

    `status` is "running", "applied" (whole), "partial" (some placements no longer fitted), "kept"
    (the policy failed, so that what runs goes on) or "abandoned" (its process died or was too
    slow).
    """

    class Status(models.TextChoices):
        """How the round went."""

        RUNNING = "running"
        APPLIED = "applied"
        PARTIAL = "partial"
        KEPT = "kept"
        ABANDONED = "abandoned"

    cluster = models.ForeignKey("clusters.Cluster", on_delete=models.CASCADE, related_name="rounds")
    number = models.PositiveBigIntegerField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.RUNNING)
    reasons = models.JSONField(default=list)
    policy = models.CharField(max_length=100)
    parameters = models.JSONField(default=dict)
    seed = models.PositiveBigIntegerField()
    snapshot = PackedJSONField(null=True)
    snapshot_sha256 = models.CharField(max_length=64, blank=True, default="")
    plan = PackedJSONField(null=True)
    runs_expected = PackedJSONField(
        null=True,
        help_text="Of the plan for the timeline: [job, purpose, copy, seconds] of each placement",
    )
    plan_sha256 = models.CharField(max_length=64, blank=True, default="")
    plan_status = models.CharField(max_length=10, blank=True, default="")
    objective = models.FloatField(null=True)
    bound = models.FloatField(null=True)
    cost_rate_per_h = models.FloatField(
        null=True, help_text="Energy cost per hour of the plan's placements at the round's prices"
    )
    carried = models.PositiveBigIntegerField(
        null=True, help_text="The round whose plan this one carried out"
    )
    tariff = models.ForeignKey("clusters.EnergyTariff", null=True, on_delete=models.PROTECT)
    pue = models.ForeignKey("clusters.PueRecord", null=True, on_delete=models.PROTECT)
    timezone = models.CharField(
        max_length=63,
        blank=True,
        default="",
        help_text="The cluster's time zone, in which tariffs count",
    )
    changes = models.JSONField(
        default=list, help_text="Start, keep, preempt, migrate, resize by job"
    )
    rejected = models.JSONField(
        default=list, help_text="Placements that no longer fitted when applied, with the reason"
    )
    message = models.TextField(blank=True, default="")
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    snapshot_s = models.FloatField(null=True)
    solve_s = models.FloatField(null=True)
    apply_s = models.FloatField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "number"], name="round_number_once")
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.cluster} round {self.number}"


class Simulation(models.Model):
    """A study of policies on a simulated cluster that somebody asked for, and how far it is.

    `document` is the whole study, with live clusters and histories written out when it was asked
    for; `summary` says it in short for lists. State changes by the moves of
    `controlplane.studies.lifecycle` only. One that runs holds a `slot` (no two hold the same, so
    that no more run at once than there are slots) and is renewed by its `owner` until `expires_at`;
    one that is no longer renewed goes on elsewhere, for the `starts`-th time. `share_key` is part
    of its share link; empty while it is not shared.
    """

    class State(models.TextChoices):
        """Where it is in its life."""

        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    name = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="simulations"
    )
    team = models.ForeignKey(
        "jobs.Team", null=True, blank=True, on_delete=models.PROTECT, related_name="simulations"
    )
    document = PackedJSONField()
    summary = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    progress = models.FloatField(default=0.0, help_text="Part of the work that is done, 0 to 1")
    left_s = models.FloatField(null=True, help_text="Estimate of the seconds left, while it runs")
    message = models.TextField(blank=True, default="")
    slot = models.PositiveSmallIntegerField(null=True, unique=True)
    owner = models.CharField(max_length=64, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    starts = models.PositiveSmallIntegerField(default=0)
    share_key = models.CharField(max_length=43, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["state", "created_at"]),
            models.Index(fields=["team", "-created_at"]),
        ]
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return self.name


class SimulationFile(models.Model):
    """A result file of a simulation, zlib-packed: report, results, jobs.csv or timings."""

    simulation = models.ForeignKey(Simulation, on_delete=models.CASCADE, related_name="files")
    name = models.CharField(max_length=40)
    size = models.PositiveBigIntegerField()
    data = models.BinaryField(editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["simulation", "name"], name="simulation_file_once")
        ]
        ordering = ["simulation", "name"]

    def __str__(self) -> str:
        return f"{self.simulation}/{self.name}"
