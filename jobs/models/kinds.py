"""Kinds of jobs."""

from __future__ import annotations

from django.db import models


class Kind(models.Model):
    """What determines a job's speed (`jobs.kinds`); what was measured of it is in `profiling`."""

    digest = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=100, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    setup_s = models.FloatField(
        null=True, blank=True, help_text="Seconds from launch to first step, smoothed"
    )

    class Meta:
        ordering = ["name", "digest"]

    def __str__(self) -> str:
        return self.name or self.digest[:12]
