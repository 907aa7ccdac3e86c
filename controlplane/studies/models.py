"""Simulations and their files."""

from uuid import uuid4

from django.conf import settings
from django.db import models

from controlplane.web.storage.packed_json import PackedJSONField


class Simulation(models.Model):
    """Study of policies on a simulated cluster, and its progress.

    `document` is the whole study with live clusters and histories; `summary` a short form for
    lists. Only moves of `controlplane.studies.lifecycle` change the state. A running one holds a
    unique `slot`, which limits their number, and is renewed by its `owner` until `expires_at`; an
    expired one goes on elsewhere, for the `starts`-th time. `share_key` is part of its share link;
    empty if not shared.
    """

    class State(models.TextChoices):
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

    @property
    def is_what_if(self) -> bool:
        """Return True for a live queue simulated to its end, whose document nobody may read."""
        return bool(self.summary.get("what_if"))


class LastStart(models.Model):
    """Time at which a person's simulation last began. It outlives the simulation."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user_id}: {self.at:%Y-%m-%d %H:%M:%S}"


class SimulationFile(models.Model):
    """Result of a simulation, packed by zlib: report.html, results.json, jobs.csv, ..."""

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
