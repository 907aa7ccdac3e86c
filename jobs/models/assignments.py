"""Assignments: placements committed for agents, their slots, events, logs and samples."""

import uuid
import zlib

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from clusters.models.nodes import Device, Node
from jobs.assignment_lifecycle import LIVE
from loadmaster.protocol import AssignmentState, ReasonClass

_LIVE_VALUES = sorted(str(s) for s in LIVE)

GZIP = 31
"""Window of zlib that reads and writes the format of gzip."""


def _choices(states: type[AssignmentState] | type[ReasonClass]) -> list[tuple[str, str]]:
    return [(str(s), str(s)) for s in states]


class Assignment(models.Model):
    """One rank of a placement.

    `fence` is the job's launch counter at the commit; later writes must match it. `desired` is the
    server's wish, `state` the known state.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(
        "jobs.Job", on_delete=models.CASCADE, related_name="assignments", db_index=False
    )
    attempt = models.ForeignKey(
        "jobs.Attempt", null=True, on_delete=models.SET_NULL, related_name="assignments"
    )
    round = models.ForeignKey(
        "loop.Round", null=True, on_delete=models.SET_NULL, related_name="assignments"
    )
    node = models.ForeignKey(
        Node, on_delete=models.CASCADE, related_name="assignments", db_index=False
    )
    purpose = models.CharField(max_length=10, default="training")
    copy = models.PositiveIntegerField(default=0)
    rank = models.PositiveIntegerField(default=0)
    world_size = models.PositiveIntegerField(default=1)
    gpus = models.PositiveIntegerField(default=1)
    fence = models.PositiveBigIntegerField()
    state = models.CharField(
        max_length=10, choices=_choices(AssignmentState), default=AssignmentState.OFFERED
    )
    desired = models.CharField(max_length=10, default="run")
    desired_at = models.DateTimeField(null=True, blank=True)
    epoch = models.PositiveBigIntegerField(
        default=0, help_text="Epoch of the session that accepted it"
    )
    report_seq = models.PositiveBigIntegerField(default=0)
    metrics_seq = models.PositiveBigIntegerField(default=0)

    share = models.FloatField(default=1.0)
    cpu_quota = models.FloatField(null=True, blank=True)
    steps_quota = models.PositiveBigIntegerField(null=True, blank=True)
    term_until = models.DateTimeField(null=True, blank=True)
    term_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its term was last changed"
    )
    quota_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its cores last changed as it ran"
    )
    units = models.PositiveIntegerField(default=1, help_text="Units of a batch job at its seat")
    gang_port = models.PositiveIntegerField(
        null=True, blank=True, editable=False, help_text="Where its gang meets, on rank 0's node"
    )
    renewed_by = models.PositiveBigIntegerField(
        default=0, editable=False, help_text="Number of the heartbeat that last renewed its lease"
    )
    renewed_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its lease was last given"
    )
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    grace_s = models.FloatField(
        null=True,
        blank=True,
        editable=False,
        help_text="Seconds of grace its launch was promised at accept",
    )
    container = models.CharField(max_length=200, blank=True, default="")
    prepared_fraction = models.FloatField(
        null=True, blank=True, help_text="How much of the image was there as last reported"
    )

    created_at = models.DateTimeField(auto_now_add=True)
    accepted_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    reason_class = models.CharField(
        max_length=10, choices=_choices(ReasonClass), blank=True, default=""
    )
    reason = models.TextField(blank=True, default="")

    start_steps = models.PositiveBigIntegerField(
        default=0, help_text="Steps of the job already done at the launch"
    )
    steps_done = models.PositiveBigIntegerField(
        default=0, help_text="Steps of the job done as last reported"
    )
    checkpoint_steps = models.PositiveBigIntegerField(
        default=0, help_text="Steps safe in a checkpoint as last reported"
    )
    steps_per_s = models.FloatField(null=True, blank=True)
    loss = models.FloatField(null=True, blank=True)
    setup_s = models.FloatField(null=True, blank=True)
    overrun_fraction = models.FloatField(null=True, blank=True)

    predicted_run_s = models.FloatField(null=True, blank=True)
    predicted_source = models.CharField(
        max_length=30, blank=True, default="", help_text="What a batch job's run time was told by"
    )
    predicted_steps_per_s = models.FloatField(null=True, blank=True)
    predicted_power_w = models.FloatField(
        null=True, blank=True, help_text="IT watts of the node's part this assignment causes"
    )
    predicted_energy_cost = models.DecimalField(
        max_digits=16, decimal_places=8, null=True, blank=True
    )
    energy_kwh = models.FloatField(
        null=True, blank=True, help_text="IT energy as billed at the end"
    )
    energy_cost = models.DecimalField(max_digits=16, decimal_places=8, null=True, blank=True)
    power_source = models.CharField(max_length=10, blank=True, default="")
    metered_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The energy ledger is written up to here"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "purpose", "copy", "rank"],
                condition=Q(state__in=_LIVE_VALUES),
                name="one_live_assignment_per_rank",
            ),
            models.UniqueConstraint(
                fields=["job", "fence", "rank"], name="a_fence_launches_once_per_rank"
            ),
        ]
        indexes = [
            models.Index(fields=["node", "state"]),
            models.Index(fields=["node", "ended_at"]),
            models.Index(fields=["state"]),
            models.Index(
                fields=["accepted_at"],
                condition=Q(metered_until=None, accepted_at__isnull=False),
                name="never_metered",
            ),
            models.Index(fields=["job", "-created_at"]),
            models.Index(fields=["created_at"]),
        ]
        ordering = ["created_at"]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.node_id} (fence {self.fence})"


class AssignmentSlot(models.Model):
    """Device slot held by an assignment; the database allows one live holder."""

    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="slots")
    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="slots_held")
    slot = models.PositiveSmallIntegerField(default=0)
    share = models.FloatField(default=1.0, validators=[MinValueValidator(0.0)])
    live = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["device", "slot"], condition=Q(live=True), name="a_slot_is_held_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.device_id}/{self.slot}"


class AssignmentEvent(models.Model):
    """Change of an assignment, append-only, written in the same transaction."""

    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(auto_now_add=True)
    move = models.CharField(max_length=16)
    from_state = models.CharField(max_length=10, blank=True, default="")
    to_state = models.CharField(max_length=10)
    observed_at = models.DateTimeField(null=True, blank=True)
    data = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.assignment_id}: {self.from_state} -> {self.to_state}"


class LogChunk(models.Model):
    """Piece of an assignment's output: `size` bytes from byte `offset` of the stream.

    Of a piece left out `content` is a mark for readers.
    """

    assignment = models.ForeignKey(
        Assignment, on_delete=models.CASCADE, related_name="log_chunks", db_index=False
    )
    stream = models.CharField(max_length=6)
    offset = models.PositiveBigIntegerField()
    size = models.PositiveIntegerField()
    data = models.BinaryField()
    unpacked_size = models.IntegerField(
        null=True, editable=False, help_text="Bytes of its data, which is gzip; empty: it is plain"
    )
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["assignment", "stream", "offset"], name="log_offset_once"
            )
        ]
        ordering = ["assignment", "stream", "offset"]

    def __str__(self) -> str:
        return f"{self.assignment_id} {self.stream}@{self.offset}"

    @property
    def content(self) -> bytes:
        """Return its data, unpacked."""
        is_plain = self.unpacked_size is None
        return bytes(self.data) if is_plain else zlib.decompress(self.data, wbits=GZIP)


class ProgressPoint(models.Model):
    """Progress sample of an assignment (loadmaster.samples.ProgressSample)."""

    assignment = models.ForeignKey(
        Assignment, on_delete=models.CASCADE, related_name="progress", db_index=False
    )
    at = models.DateTimeField()
    event = models.CharField(max_length=12)
    step = models.PositiveBigIntegerField()
    launch_steps = models.PositiveBigIntegerField()
    elapsed_s = models.FloatField()
    steps_per_s = models.FloatField(null=True)
    loss = models.FloatField(null=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["assignment", "at"])]

    def __str__(self) -> str:
        return f"{self.assignment_id} step {self.step}"


class UsagePoint(models.Model):
    """Usage sample of an assignment (loadmaster.samples.UsageSample).

    `throttled_cores`, `cores_limit`: None without a quota, and of older agents.
    """

    assignment = models.ForeignKey(
        Assignment, on_delete=models.CASCADE, related_name="usage", db_index=False
    )
    at = models.DateTimeField()
    cores = models.FloatField()
    memory_gb = models.FloatField()
    gpu_fraction = models.FloatField(null=True)
    gpu_power_w = models.FloatField(null=True)
    power_source = models.CharField(max_length=10)
    throttled_cores = models.FloatField(null=True)
    cores_limit = models.FloatField(null=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["assignment", "at"])]

    def __str__(self) -> str:
        return f"{self.assignment_id} at {self.at}"
