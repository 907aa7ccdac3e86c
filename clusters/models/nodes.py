"""Nodes, GPUs, enrolment tokens, and rescheduling events."""

import uuid
from collections.abc import Sequence

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from clusters.models.clusters import Cluster, GpuType
from clusters.plausible import LONGEST_TROUBLE
from loadmaster.features import (
    ISOLATED,
    KERNEL_LIMITS,
    RUNTIMES,
    SHARED,
    limits_of,
    serves_one_team,
)
from loadmaster.protocol import MOST_SLOTS


class Role(models.TextChoices):
    """Role of a node (policies.contract.snapshot.NodeRole)."""

    PRODUCTION = "production"
    PROFILING = "profiling"
    BOTH = "both"


class State(models.TextChoices):
    """Readiness of a node for work (policies.contract.snapshot.NodeState)."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


DESCRIPTION = (
    "cluster",
    "gpu_type",
    "role",
    "state",
    "drain_until",
    "reason",
    "cores",
    "memory_gb",
)
"""Fields that describe a node, in the order in which the admin and the REST API show them."""


def runtimes_of(features: Sequence[str]) -> tuple[str, ...]:
    """Return the runtimes among an agent's features; processes if it has reported no features."""
    if not features:
        return RUNTIMES[:1]
    return tuple(name for name in RUNTIMES if name in features)


class EnrolmentToken(models.Model):
    """Single-use token that enrols a machine before it expires; only its sha256 is kept.

    With a `node`, the machine takes that node's place and name.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="enrolment_tokens")
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.PRODUCTION)
    node = models.ForeignKey(
        "Node",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.CASCADE,
        related_name="tokens",
        help_text="The node whose place the machine takes; a new one if empty",
    )
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True, editable=False)
    used_by = models.ForeignKey(
        "Node",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="enrolled_by",
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"enrolment token {self.pk} of {self.cluster}"


class Node(models.Model):
    """Machine with GPUs of one type, or without any.

    `epoch` is the number of its agent's session: calls of older sessions are refused. Only the
    sha256 of the session secret and of the node token is kept. After `session_expires_at` another
    machine may take the node's place.
    """

    # What it is, and what operators want of it.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=100)
    gpu_type = models.ForeignKey(
        GpuType, null=True, blank=True, on_delete=models.PROTECT, related_name="nodes"
    )
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.PRODUCTION)
    state = models.CharField(max_length=16, choices=State.choices, default=State.READY)
    drain_until = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(
        max_length=200, blank=True, default="", help_text="Why it is cordoned or drained"
    )

    # What it offers, and what it draws.
    cores = models.FloatField(validators=[MinValueValidator(0.0)])
    memory_gb = models.FloatField(validators=[MinValueValidator(0.0)])
    reserved_cores = models.FloatField(
        default=0.0, validators=[MinValueValidator(0.0)], help_text="Kept for the system"
    )
    reserved_memory_gb = models.FloatField(default=0.0, validators=[MinValueValidator(0.0)])
    resources = models.JSONField(
        default=dict, blank=True, help_text='Other named resources, such as {"mic": 2}'
    )
    labels = models.JSONField(
        default=list, blank=True, help_text='Data labels, such as ["imagenet"]'
    )
    base_w = models.FloatField(
        default=300.0,
        validators=[MinValueValidator(0.0)],
        help_text="Watts of the machine without its GPUs",
    )

    # How it is connected: for gangs over several nodes.
    rack = models.CharField(max_length=63, blank=True, default="")
    link_gbps = models.FloatField(default=0.0, validators=[MinValueValidator(0.0)])

    # Its machine, and the session of its agent.
    machine_id = models.CharField(max_length=100)
    boot_id = models.CharField(max_length=100, blank=True, default="")
    token_sha256 = models.CharField(max_length=64, editable=False, db_index=True)
    epoch = models.PositiveBigIntegerField(default=0, editable=False)
    session_secret_sha256 = models.CharField(max_length=64, blank=True, default="", editable=False)
    session_expires_at = models.DateTimeField(null=True, blank=True, editable=False)
    heartbeat_seq = models.PositiveBigIntegerField(default=0, editable=False)
    last_seen_at = models.DateTimeField(null=True, blank=True, editable=False)

    # What its agent has reported.
    disk_free_gb = models.FloatField(
        null=True, blank=True, editable=False, help_text="Room on the disk of its agent's folder"
    )
    agent_version = models.CharField(max_length=50, blank=True, default="", editable=False)
    features = models.JSONField(default=list, blank=True, editable=False)
    address = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Where other nodes reach it",
    )
    emulated = models.BooleanField(default=False)
    gpu_trouble = models.CharField(
        max_length=LONGEST_TROUBLE,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Why GPUs of the machine may be missing",
    )

    # Who may use it.
    team = models.ForeignKey(
        "jobs.Team",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="nodes",
        help_text="The team that it serves alone while its agent does not isolate jobs: that of its"
        " first job, unless set here",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="node_name_once_per_cluster")
        ]
        ordering = ["cluster", "name"]

    def __str__(self) -> str:
        return self.name

    @property
    def type_name(self) -> str:
        """Name of its GPU type; "" without GPUs."""
        return self.gpu_type.name if self.gpu_type else ""

    @property
    def serves_one_team(self) -> bool:
        """True if only one team may use it, as its agent does not isolate jobs."""
        return serves_one_team(self.features)

    @property
    def isolation(self) -> str:
        """Separation of teams: `isolated`, `one_team` or `shared`; "" if it is not known."""
        if self.serves_one_team:
            return "one_team"
        if SHARED in self.features:
            return SHARED
        has_reported = bool(self.features)
        return ISOLATED if has_reported else ""

    @property
    def limits(self) -> tuple[str, ...] | None:
        """Resources of each job that the kernel limits there; None if that is not known."""
        return limits_of(self.features)

    @property
    def unlimited(self) -> tuple[str, ...]:
        """Resources of each job that the kernel does not limit there."""
        limits = self.limits
        if limits is None:
            return ()
        return tuple(resource for resource in KERNEL_LIMITS if resource not in limits)

    @property
    def is_emulated(self) -> bool:
        """True if its devices or its GPU type are emulated."""
        return self.emulated or bool(self.gpu_type and self.gpu_type.emulated)


class Device(models.Model):
    """GPU of a node, known by its uuid; up to `slots` assignments may share it.

    The agent reports `slots` until an operator sets another number (`slots_set`).
    """

    # What it is: a whole GPU, or an instance of one that NVIDIA's MIG divides (its parent).
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    uuid = models.CharField(max_length=100)
    parent_uuid = models.CharField(max_length=100, blank=True, default="")
    mig_profile = models.CharField(max_length=50, blank=True, default="")

    # How many jobs may share it.
    slots = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_SLOTS)],
        help_text="Jobs that may share it",
    )
    slots_set = models.BooleanField(
        default=False,
        editable=False,
        help_text="An operator set the slots: the agent's word is over",
    )

    # Its memory and health, as the agent reports them.
    memory_gb = models.FloatField(validators=[MinValueValidator(0.0)])
    healthy = models.BooleanField(default=True)
    trouble = models.CharField(
        max_length=LONGEST_TROUBLE,
        blank=True,
        default="",
        db_default="",
        help_text="Why it is unhealthy; of a healthy one a warning",
    )
    emulated = models.BooleanField(default=False)

    # Its newest sample: use from 0 to 1, memory, watts and where these come from, temperature.
    gpu_fraction = models.FloatField(null=True, blank=True)
    memory_used_gb = models.FloatField(null=True, blank=True)
    power_w = models.FloatField(null=True, blank=True)
    power_source = models.CharField(max_length=10, blank=True, default="")
    temperature_c = models.FloatField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "uuid"], name="device_once_per_node")
        ]
        ordering = ["node", "uuid"]

    def __str__(self) -> str:
        return self.uuid


class NodeEvent(models.Model):
    """Event of a node, append-only: enrolled, session, cordoned, draining, lost, back, role."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(auto_now_add=True)
    event = models.CharField(max_length=32)
    data = models.JSONField(default=dict, blank=True)
    actor = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.node} {self.event}"


class ImplausibleFigure(models.Model):
    """Implausible figure that a node reported: `name`, how often, and the newest value."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="implausible")
    name = models.CharField(max_length=32)
    count = models.PositiveBigIntegerField(default=0)
    value = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "name"], name="implausible_once_per_node")
        ]
        ordering = ["node", "name"]

    def __str__(self) -> str:
        return f"{self.name} of {self.node}"


class Reason(models.TextChoices):
    """Reason for a round."""

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
    """Change that requests a round; one round answers all pending events."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="reschedule_events")
    reason = models.CharField(max_length=16, choices=Reason.choices)
    job = models.ForeignKey("jobs.Job", null=True, blank=True, on_delete=models.SET_NULL)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    round = models.ForeignKey(
        "loop.Round", null=True, blank=True, on_delete=models.SET_NULL, related_name="events"
    )

    class Meta:
        indexes = [models.Index(fields=["cluster", "round"])]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.reason} {self.created_at:%H:%M:%S}"
