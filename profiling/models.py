"""Measured and estimated speeds of kinds, and the runs that measure them."""

from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from jobs.models import Kind
from loadmaster.protocol import ReasonClass


class Profile(models.Model):
    """Throughput of a kind on `gpus` GPUs of one type, smoothed over its measurements.

    `spread`: over several nodes. `samples`: number of measurements.
    """

    kind = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="profiles")
    gpu_type = models.ForeignKey(
        "clusters.GpuType", on_delete=models.CASCADE, related_name="profiles"
    )
    gpus = models.PositiveIntegerField()
    spread = models.BooleanField(default=False)
    steps_per_s = models.FloatField()
    source = models.CharField(max_length=10, help_text="measured, estimated, declared or assumed")
    samples = models.PositiveIntegerField(default=0)
    published = models.BooleanField(
        default=False, help_text="Published by an operator (profiling.publication)"
    )
    cores = models.FloatField(null=True, blank=True)
    memory_gb = models.FloatField(null=True, blank=True)
    gpu_fraction = models.FloatField(null=True, blank=True)
    gpu_w = models.FloatField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "gpu_type", "gpus", "spread"], name="profile_once"
            )
        ]
        ordering = ["kind", "gpu_type", "gpus"]

    def __str__(self) -> str:
        return (
            f"{self.kind} on {self.gpus} x {self.gpu_type}: {self.steps_per_s:.3g} steps/s"
            f" ({self.source})"
        )


class RunTimeGroup(models.Model):
    """Group of similar jobs of a cluster; `newest_s`: their last run times, the newest first.

    `key` is a digest of one of the groups of `profiling.run_times.predictors`.
    """

    cluster = models.ForeignKey("clusters.Cluster", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=32)
    newest_s = models.JSONField(default=list)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "key"], name="run_time_group_once")
        ]
        indexes = [models.Index(fields=["updated_at"], name="run_time_group_age")]

    def __str__(self) -> str:
        return f"{self.key}: {self.newest_s}"


class PredictedRun(models.Model):
    """Run time of a job that has ended, and the prediction at its launch, in seconds."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="predicted_runs")
    team = models.ForeignKey("jobs.Team", on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    source = models.CharField(max_length=30)
    predicted_s = models.FloatField()
    run_s = models.FloatField()
    ended_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["team", "-id"], name="predicted_run_of_team"),
            models.Index(fields=["ended_at"], name="predicted_run_age"),
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.predicted_s:.3g} s expected, {self.run_s:.3g} s"


class Measurement(models.Model):
    """Measured throughput, append-only, from a profile run or production."""

    kind = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="measurements")
    gpu_type = models.ForeignKey("clusters.GpuType", on_delete=models.CASCADE)
    gpus = models.PositiveIntegerField()
    spread = models.BooleanField(default=False)
    assignment = models.ForeignKey(
        "jobs.Assignment", null=True, on_delete=models.SET_NULL, related_name="measurements"
    )
    purpose = models.CharField(max_length=10)
    steps = models.PositiveBigIntegerField()
    steps_per_s = models.FloatField()
    held = models.BooleanField(
        default=False, help_text="It changed nothing, as an outlier (profiling.outliers)"
    )
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["kind"], name="measurement_held", condition=Q(held=True)),
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind_id} {self.steps_per_s:.3g} steps/s"


class PairProfile(models.Model):
    """Smoothed throughputs of two kinds whose jobs share one GPU of a type.

    `first` has the lesser primary key, or both are the same kind. Both speeds are 0 if the two
    cannot share a GPU.
    """

    first = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="pairs_as_first")
    second = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="pairs_as_second")
    gpu_type = models.ForeignKey("clusters.GpuType", on_delete=models.CASCADE, related_name="pairs")
    first_steps_per_s = models.FloatField()
    second_steps_per_s = models.FloatField()
    source = models.CharField(
        max_length=10, help_text="measured; estimated for one that is to be measured anew"
    )
    samples = models.PositiveIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["first", "second", "gpu_type"], name="pair_profile_once"
            ),
            models.CheckConstraint(condition=Q(first__lte=F("second")), name="pair_in_order"),
        ]
        indexes = [models.Index(fields=["-updated_at"])]
        ordering = ["first", "second", "gpu_type"]

    def __str__(self) -> str:
        speeds = f"{self.first_steps_per_s:.3g} and {self.second_steps_per_s:.3g}"
        return (
            f"{self.first} beside {self.second} on {self.gpu_type}: {speeds} steps/s"
            f" ({self.source})"
        )

    @property
    def age_s(self) -> float:
        """Seconds since the last measurement."""
        return (timezone.now() - self.updated_at).total_seconds()


class PairMeasurement(models.Model):
    """Measurement of a pair by two launches that shared a GPU, and the earlier estimate.

    Append-only.
    """

    first = models.ForeignKey(
        Kind, on_delete=models.CASCADE, related_name="pair_measurements_as_first"
    )
    second = models.ForeignKey(
        Kind, on_delete=models.CASCADE, related_name="pair_measurements_as_second"
    )
    gpu_type = models.ForeignKey("clusters.GpuType", on_delete=models.CASCADE)
    first_assignment = models.ForeignKey(
        "jobs.Assignment", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    second_assignment = models.ForeignKey(
        "jobs.Assignment", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    first_steps = models.PositiveBigIntegerField()
    second_steps = models.PositiveBigIntegerField()
    first_steps_per_s = models.FloatField()
    second_steps_per_s = models.FloatField()
    estimated_first_steps_per_s = models.FloatField(null=True, blank=True)
    estimated_second_steps_per_s = models.FloatField(null=True, blank=True)
    held = models.BooleanField(
        default=False, help_text="It changed nothing, as an outlier (profiling.pairs.outliers)"
    )
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["first_assignment", "second_assignment", "first_steps", "second_steps"],
                name="pair_measured_once",
            )
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return (
            f"{self.first_id} beside {self.second_id}: {self.first_steps_per_s:.3g} and"
            f" {self.second_steps_per_s:.3g} steps/s"
        )


class ProfileRun(models.Model):
    """Run to measure a kind on a configuration, with the command of `job`.

    `copy` tells its assignment from the job's own. A wanted run with an `ended_at` has failed: it
    pauses until the reconciler clears that.
    """

    class State(models.TextChoices):
        WANTED = "wanted"
        RUNNING = "running"
        DONE = "done"
        GIVEN_UP = "given_up"

    kind = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="runs")
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="profile_runs")
    gpu_type = models.ForeignKey("clusters.GpuType", on_delete=models.CASCADE)
    gpus = models.PositiveIntegerField()
    steps = models.PositiveIntegerField()
    copy = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.WANTED)
    failures = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True, default="")
    reason_class = models.CharField(
        max_length=10,
        blank=True,
        default="",
        help_text="Class of the last failure, see the agent protocol",
    )
    ended_fence = models.PositiveBigIntegerField(
        default=0, help_text="Fence of the newest launch whose end was taken in"
    )

    class Meta:
        indexes = [models.Index(fields=["state"])]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "job", "gpu_type", "gpus"],
                name="profile_run_once_per_configuration",
            )
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} on {self.gpus} x {self.gpu_type} ({self.state})"


UNFIT = Q(state=ProfileRun.State.GIVEN_UP, reason_class__in=[ReasonClass.USER, ReasonClass.OOM])
"""Runs that failed because the kind's command cannot run on their configuration."""


class PairRun(models.Model):
    """Run to measure a pair: a job of each kind side by side on one GPU, for `steps` steps of both.

    Two assignments carry it out; `first_copy` and `second_copy` tell them from the jobs' own.
    Neither job waits for it.
    """

    first = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="pair_runs_as_first")
    second = models.ForeignKey(Kind, on_delete=models.CASCADE, related_name="pair_runs_as_second")
    gpu_type = models.ForeignKey("clusters.GpuType", on_delete=models.CASCADE)
    first_job = models.ForeignKey(
        "jobs.Job", on_delete=models.CASCADE, related_name="pair_runs_as_first"
    )
    second_job = models.ForeignKey(
        "jobs.Job", on_delete=models.CASCADE, related_name="pair_runs_as_second"
    )
    first_copy = models.PositiveIntegerField()
    second_copy = models.PositiveIntegerField()
    first_quota = models.PositiveIntegerField(
        help_text="Steps after which its launch ends by itself, the pair measured or not"
    )
    second_quota = models.PositiveIntegerField()
    steps = models.PositiveIntegerField(help_text="Steps of both, side by side, that are enough")
    state = models.CharField(
        max_length=10, choices=ProfileRun.State.choices, default=ProfileRun.State.WANTED
    )
    failures = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["first", "second", "gpu_type"], name="pair_run_once"),
            models.CheckConstraint(condition=Q(first__lte=F("second")), name="pair_run_in_order"),
        ]
        indexes = [models.Index(fields=["state"])]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.first} beside {self.second} on {self.gpu_type} ({self.state})"

    @property
    def launches(self) -> tuple[tuple[UUID, int], tuple[UUID, int]]:
        """(job, copy) of both assignments."""
        return (self.first_job_id, self.first_copy), (self.second_job_id, self.second_copy)
