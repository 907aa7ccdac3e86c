"""Run times of ended jobs, for forecasts of jobs whose run time is unknown."""

from django.db import models


class RunTimeHistory(models.Model):
    """Newest run times of comparable ended jobs of a cluster, the newest first, in seconds.

    `key` says which jobs these are (`jobs.forecasts.run_times.groups_of`).
    """

    cluster = models.ForeignKey(
        "clusters.Cluster",
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,  # its constraint has an index that begins with it
    )
    key = models.CharField(max_length=80)
    newest_s = models.JSONField(default=list)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "key"], name="run_time_history_once")
        ]
        indexes = [models.Index(fields=["updated_at"], name="run_time_history_age")]

    def __str__(self) -> str:
        return f"{self.key}: {len(self.newest_s)} run times"
