"""Rescheduling events: a change on a cluster that asks for a round."""

from __future__ import annotations

from django.db import models

from clusters.models.clusters import Cluster
from clusters.models.nodes import Node


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
    """A change that asks for a round; waiting events are answered together by one round."""

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
