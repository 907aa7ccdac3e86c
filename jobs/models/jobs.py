"""Jobs, attempts and history. `jobs.submission.validation` validates every field."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Case, Value, When

from clusters.models.clusters import Profiling
from jobs.lifecycle import ENDED, SHOWN_AS_RUNNING, SHOWN_AS_WAITING, JobState
from jobs.models.arrays import Dependency, JobArray


class Kind(models.Model):
    """Jobs of a team with one speed (`jobs.kinds`); its measurements are in `profiling`.

    A job's kind is of the job's team. One without a team has no jobs: operators have published it.
    """

    team = models.ForeignKey(
        "jobs.Team",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="kinds",
        db_index=False,  # its constraint has an index that begins with it
        help_text="Empty: published for all teams",
    )
    digest = models.CharField(max_length=64, db_index=True)
    name = models.CharField(max_length=100, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    setup_s = models.FloatField(
        null=True, blank=True, help_text="Seconds from launch to first step, smoothed"
    )
    stop_s = models.FloatField(
        null=True,
        blank=True,
        help_text="Seconds from the request to stop until its devices are free, smoothed",
    )
    lost_s = models.FloatField(
        null=True, blank=True, help_text="Seconds of work that a stop loses, smoothed"
    )
    saves_at_stop = models.BooleanField(
        null=True, blank=True, help_text="Whether its newest stop lost no work; empty if unknown"
    )
    reports_steps = models.BooleanField(
        null=True,
        blank=True,
        help_text="Whether its jobs report steps; if not, its speed is that of whole runs",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "digest"], name="kind_once_per_team"),
            models.UniqueConstraint(
                fields=["digest"], condition=models.Q(team=None), name="kind_published_once"
            ),
        ]
        ordering = ["name", "digest"]

    def __str__(self) -> str:
        return self.name or self.digest[:12]


QUEUE_ORDER = ("queue_rank", "-priority", "undated", "due_at", "-completed_at", "submitted_at")
"""Order of the queue page: running, waiting (most urgent first), ended."""

UNFINISHED = models.Q(completed_at=None)
"""Jobs that are not over, to be asked beside their states: with statistics (ANALYZE), SQLite takes
every state to be as common as the others, and would read all ended jobs for the few that are not.
"""

IN_ARRAY = models.Q(array__isnull=False)

_FOUND_BY = ("state", "user", "kind", "name")
"""Further filters of the queue page, in an index so that a search reads no rows."""


class Job(models.Model):
    """Training or batch job. `fence` counts launches, `retries_used` only user and oom failures.

    `tardiness_weight` is cost per second after `due_at` in the cluster's currency; `weight` a fair
    share; `priority` is strict. A restart begins from `checkpoint_steps`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.PositiveIntegerField(
        default=0, editable=False, help_text="As scripts for Slurm know it; 0: none"
    )
    name = models.CharField(max_length=100)
    cluster = models.ForeignKey(
        "clusters.Cluster", on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    team = models.ForeignKey("jobs.Team", on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs"
    )
    state = models.CharField(
        max_length=10, choices=[(str(s), str(s)) for s in JobState], default=JobState.QUEUED
    )

    runtime = models.CharField(max_length=10, default="process")
    image = models.CharField(max_length=300, blank=True, default="")
    image_digest = models.CharField(max_length=100, blank=True, default="")
    command = models.JSONField(default=list)
    environment = models.JSONField(
        default=dict, help_text='{"NAME": "value"} or {"NAME": {"secret": "name of a team secret"}}'
    )
    mounts = models.JSONField(default=list)
    checkpoint_place = models.CharField(max_length=300, blank=True, default="")

    kind = models.ForeignKey("jobs.Kind", on_delete=models.PROTECT, related_name="jobs")
    epochs = models.PositiveIntegerField(default=1)
    steps_per_epoch = models.PositiveIntegerField(default=1)
    total_steps = models.PositiveBigIntegerField()
    gpus_min = models.PositiveIntegerField(default=1)
    gpus_max = models.PositiveIntegerField(default=1)
    allowed_types = models.JSONField(default=list)
    labels = models.JSONField(default=list)
    cores = models.FloatField(default=1.0)
    memory_gb = models.FloatField(default=1.0)
    resources = models.JSONField(
        default=dict, help_text='Other named resources of its node, such as {"mic": 2}'
    )
    batch = models.BooleanField(
        default=False, help_text="It declares no steps: it runs once, to its end"
    )
    exclusive = models.BooleanField(default=False, help_text="No other job is on its node")
    units = models.PositiveIntegerField(
        default=1, help_text="Equal parts of a batch job, each on one node"
    )
    units_per_node = models.PositiveIntegerField(
        default=0, help_text="The most units on one node; 0: any number"
    )
    nodes = models.PositiveIntegerField(
        default=0, help_text="Nodes that its units are spread over; 0: any number"
    )
    processes = models.CharField(
        max_length=5,
        default="first",
        help_text="Runs on its first node alone (first), or on each of them (each)",
    )
    script = models.TextField(
        blank=True, default="", help_text="Text of a batch script, which is run instead of a file"
    )
    folder = models.CharField(
        max_length=1000, blank=True, default="", help_text="Folder on the node in which it runs"
    )
    output = models.CharField(
        max_length=1000, blank=True, default="", help_text="File on the node for its output"
    )
    error_output = models.CharField(
        max_length=1000, blank=True, default="", help_text="File on the node for its errors"
    )
    array = models.ForeignKey(
        JobArray,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="jobs",
        db_index=False,  # its constraint has an index that begins with it
    )
    array_index = models.PositiveIntegerField(null=True, blank=True)
    preemptible = models.BooleanField(
        default=True, help_text="It may be stopped at a checkpoint and go on elsewhere"
    )
    may_mix = models.BooleanField(default=False)
    may_share = models.BooleanField(default=False)
    profiling = models.CharField(
        max_length=10, blank=True, default="", help_text="Empty: as the cluster does"
    )
    repeatable = models.BooleanField(
        default=False, help_text="Its command may run more than once, as profile runs do"
    )

    begin_at = models.DateTimeField(
        null=True, blank=True, help_text="It does not start before this time"
    )
    due_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    walltime_s = models.FloatField(null=True, blank=True)
    on_walltime = models.CharField(
        max_length=4, default="warn", help_text="kill ends it then; warn only tells"
    )
    signal = models.CharField(
        max_length=20, blank=True, default="", help_text="Sent before its end, such as B:USR1@60"
    )
    tardiness_weight = models.FloatField(default=0.0)
    weight = models.FloatField(default=1.0)
    priority = models.IntegerField(default=0)
    max_retries = models.PositiveIntegerField(default=1)
    on_disconnect = models.CharField(max_length=5, default="stop")

    fence = models.PositiveBigIntegerField(default=0)
    retries_used = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(
        null=True, blank=True, help_text="It rests after a failure and is not placed before"
    )
    hold_wanted = models.BooleanField(
        default=False, help_text="Hold the job once it is back in the queue"
    )
    steps_done = models.PositiveBigIntegerField(default=0)
    checkpoint_steps = models.PositiveBigIntegerField(default=0)
    first_loss = models.FloatField(null=True, blank=True)
    last_loss = models.FloatField(null=True, blank=True)
    received_s = models.JSONField(default=dict, help_text="Device seconds received by GPU type")
    waiting_code = models.CharField(max_length=32, blank=True, default="")
    waiting_detail = models.JSONField(default=dict, blank=True)
    failure_reason = models.TextField(blank=True, default="")

    submitted_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    cloned_from = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="clones"
    )
    dependencies: models.ManyToManyField[Job, Dependency] = models.ManyToManyField(
        "self",
        symmetrical=False,
        blank=True,
        related_name="dependents",
        through="Dependency",
        through_fields=("job", "on"),
    )

    # Kept true by the database itself, whoever changes a row, so that the queue's order can be read
    # from an index.
    queue_rank = models.GeneratedField(
        expression=Case(
            When(state__in=[str(s) for s in SHOWN_AS_RUNNING], then=Value(0)),
            When(state__in=[str(s) for s in SHOWN_AS_WAITING], then=Value(1)),
            default=Value(2),
        ),
        output_field=models.SmallIntegerField(),
        db_persist=True,
    )
    undated = models.GeneratedField(
        expression=Case(When(due_at__isnull=True, then=Value(1)), default=Value(0)),
        output_field=models.SmallIntegerField(),
        db_persist=True,
    )

    class Meta:
        indexes = [
            models.Index(fields=["number"], name="job_number", condition=models.Q(number__gt=0)),
            models.Index(fields=["cluster", "state"]),
            models.Index(fields=["team", "-submitted_at"]),
            models.Index(fields=["-submitted_at"]),
            # The queue in its order, everybody's and a team's: a page, its count and a search are
            # read from these alone.
            models.Index(fields=[*QUEUE_ORDER, "id", "team", *_FOUND_BY], name="job_queue_order"),
            models.Index(
                fields=["team", *QUEUE_ORDER, "id", *_FOUND_BY], name="job_team_queue_order"
            ),
            models.Index(fields=["state", "completed_at", "team"], name="job_ended"),
            # The REST API's list of one state, newest first.
            models.Index(fields=["state", "-submitted_at", "team"], name="job_state_newest"),
            # Elements of an array by state, and the first one that the queue page shows.
            models.Index(fields=["state", "array"], name="job_array_state", condition=IN_ARRAY),
            models.Index(
                fields=["array", "queue_rank", "array_index"],
                name="job_array_order",
                condition=IN_ARRAY,
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["array", "array_index"], name="array_index_once")
        ]
        ordering = ["-submitted_at"]

    def __str__(self) -> str:
        """The name, of an element with its index."""
        return self.name if self.array_index is None else f"{self.name}[{self.array_index}]"

    @property
    def remaining_steps(self) -> int:
        """Steps left from the last checkpoint, where a restart begins."""
        return max(0, self.total_steps - self.checkpoint_steps)

    @property
    def profiling_mode(self) -> Profiling:
        """The job's mode, else its cluster's; dedicated runs need a command that is repeatable."""
        if self.batch:
            return Profiling.OFF
        mode = Profiling(self.profiling or self.cluster.profiling)
        dedicated = mode is Profiling.DEDICATED
        return Profiling.FIRST_RUN if dedicated and not self.repeatable else mode

    @property
    def killed_after_s(self) -> float | None:
        """Run time after which it is ended; None: never."""
        return self.walltime_s if self.on_walltime == "kill" else None

    @property
    def needs_limits(self) -> bool:
        """Return True if its agent must be able to end it by itself."""
        return self.killed_after_s is not None or self.deadline_at is not None

    @property
    def needs_signal(self) -> bool:
        """Return True if its agent must send it a signal before its end."""
        return bool(self.signal) and self.needs_limits

    @property
    def needs_batch(self) -> bool:
        """Return True if its agents must know scripts, or seats that run no process."""
        return self.units > 1 or bool(self.script)

    @property
    def needs_container_scripts(self) -> bool:
        """Return True if its agents must know scripts in images."""
        return bool(self.script) and self.runtime == "docker"

    @property
    def runs_on_first_seat(self) -> bool:
        """Return True if its process runs on its first seat alone; the others are held for it."""
        return self.batch and self.processes == "first"

    @property
    def has_no_speed(self) -> bool:
        """Return True for a job that has a run time instead of a speed on GPUs."""
        return self.batch or self.gpus_max == 0

    @property
    def is_over(self) -> bool:
        return JobState(self.state) in ENDED


class Attempt(models.Model):
    """Attempt of a job: from a launch, across pre-emptions, to a result or a retry."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    number = models.PositiveIntegerField()
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, blank=True, default="")
    reason_class = models.CharField(max_length=10, blank=True, default="")
    reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once")
        ]
        ordering = ["job", "number"]

    def __str__(self) -> str:
        return f"{self.job} attempt {self.number}"


class JobEvent(models.Model):
    """Event of a job, append-only: source of history and live pages."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(auto_now_add=True)
    event = models.CharField(max_length=32)
    from_state = models.CharField(max_length=10, blank=True, default="")
    to_state = models.CharField(max_length=10, blank=True, default="")
    data = models.JSONField(default=dict, blank=True)
    actor = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.job_id} {self.event}"


class IdempotencyKey(models.Model):
    """Submission key: the same user, key and body return the same job."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    job = models.ForeignKey(Job, on_delete=models.CASCADE)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key
