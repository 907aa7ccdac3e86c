"""Forecasts of starts of waiting jobs, as told to people."""

from django.db import models
from django.db.models import Q


class Forecast(models.Model):
    """Expected start of a waiting job, append-only; the newest one counts, if of the same fence.

    `planned_at` is the start in the schedule, `start_at` with `low_at` and `high_at` the forecast
    from it (`jobs.forecasts.calibration`). All are null once no start is expected any more, and
    `why` may say why not.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="forecasts")
    fence = models.PositiveBigIntegerField(help_text="The job's launches before")
    first = models.BooleanField(help_text="First one of the job: scored when it starts")
    round = models.PositiveBigIntegerField(help_text="Number of the round that it is from")
    made_at = models.DateTimeField()
    planned_at = models.DateTimeField(null=True)
    low_at = models.DateTimeField(null=True)
    start_at = models.DateTimeField(null=True)
    high_at = models.DateTimeField(null=True)
    end_at = models.DateTimeField(null=True)
    nodes = models.JSONField(default=list, help_text="Names")
    gpus = models.PositiveIntegerField(default=0)
    why = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        indexes = [
            models.Index(fields=["-id"], condition=Q(first=True), name="forecast_first"),
            models.Index(fields=["made_at"], name="forecast_made"),
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.start_at}"
