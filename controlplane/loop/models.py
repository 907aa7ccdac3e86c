"""Runs of the scheduling loop."""

from django.db import models

from controlplane.web.storage.packed_json import PackedJSONField


class Round(models.Model):
    """Run of the loop with all that replays it; `carried`: the round whose plan it carried out.

    `status`: running, applied (whole), partial (some no longer fitted), kept (the policy failed) or
    abandoned (its process died or was too slow).
    """

    class Status(models.TextChoices):
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
    idle = models.JSONField(
        default=dict,
        help_text="Idle GPUs beside `waiting` jobs: `gpus`, [cause, number, job, start] of each",
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
