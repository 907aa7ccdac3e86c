"""The clock that retention goes by."""

from django.db import models


class PruneClock(models.Model):
    """Wall clock at the last hourly look for old data, and since when it has made no leap."""

    seen_at = models.DateTimeField()
    steady_since = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.seen_at:%Y-%m-%d %H:%M}, steady since {self.steady_since:%Y-%m-%d %H:%M}"
