"""Arrays of jobs, and what a job waits for: another job, or an array."""

import uuid
from datetime import timedelta

from django.db import models

from controlplane.web.storage.packed_json import PackedJSONField


class JobCounter(models.Model):
    """Numbers that jobs and arrays have taken so far, in one row; PostgreSQL has a sequence.

    `jobs.numbers` makes it and counts.
    """

    last = models.PositiveBigIntegerField(help_text="How many numbers were taken")

    def __str__(self) -> str:
        return str(self.last)


class JobArray(models.Model):
    """Array of like jobs: one for each index, at most `at_once` of them at a time."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.PositiveIntegerField(
        default=0, editable=False, help_text="As scripts for Slurm know it; 0: none"
    )
    indices = models.CharField(max_length=1000, help_text="As submitted, such as 0-99:2")
    size = models.PositiveIntegerField(help_text="Number of elements")
    lowest = models.PositiveIntegerField(help_text="Lowest index")
    highest = models.PositiveIntegerField(help_text="Highest index")
    step = models.PositiveIntegerField(
        default=1, help_text="Distance of neighbouring indices; 1 if it differs"
    )
    at_once = models.PositiveIntegerField(
        null=True, blank=True, help_text="The most elements that run at a time; empty: any number"
    )
    submitted_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["number"], name="array_number", condition=models.Q(number__gt=0))
        ]

    def __str__(self) -> str:
        """The indices and the limit, as they are submitted."""
        return self.indices if self.at_once is None else f"{self.indices}%{self.at_once}"


class UnfinishedArray(models.Model):
    """Submitted array of which elements are still to be written; it goes with the last of them.

    Whoever finds it may write the next ones (`jobs.submission.submit.finish_array`).
    """

    array = models.OneToOneField(
        JobArray, on_delete=models.CASCADE, primary_key=True, related_name="unfinished"
    )
    team = models.ForeignKey("jobs.Team", on_delete=models.CASCADE, related_name="+")
    written = models.PositiveIntegerField(help_text="Elements written so far, by their indices")
    rest = PackedJSONField(help_text="What the others are made from (jobs.submission.elements)")

    def __str__(self) -> str:
        return f"{self.array_id}: {self.written}"


class Condition(models.TextChoices):
    """End of a job that another one waits for; of AFTER its start, or its end without a start."""

    AFTER = "after"
    AFTEROK = "afterok"
    AFTERANY = "afterany"
    AFTERNOTOK = "afternotok"


NO_DELAY = timedelta(0)


class Dependency(models.Model):
    """Job that waits until another one, or all of an array, has done as `condition` says."""

    job = models.ForeignKey(
        "Job", on_delete=models.CASCADE, db_column="from_job_id", related_name="dependency_links"
    )
    on = models.ForeignKey(
        "Job",
        on_delete=models.CASCADE,
        db_column="to_job_id",
        related_name="dependent_links",
        null=True,
        blank=True,
    )
    on_array = models.ForeignKey(
        JobArray, on_delete=models.CASCADE, related_name="dependent_links", null=True, blank=True
    )
    condition = models.CharField(
        max_length=10, choices=Condition.choices, default=Condition.AFTEROK
    )
    delay = models.DurationField(default=NO_DELAY, help_text="Time that must pass after the start")
    alternative = models.BooleanField(
        default=False, help_text="One of several, of which one suffices"
    )

    class Meta:
        db_table = "jobs_job_dependencies"
        unique_together = [("job", "on"), ("job", "on_array")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(on__isnull=True) ^ models.Q(on_array__isnull=True),
                name="dependency_on_a_job_or_an_array",
            )
        ]

    def __str__(self) -> str:
        """The dependency as in a job file."""
        prefix = "" if self.condition == Condition.AFTEROK else f"{self.condition}:"
        return f"{prefix}{self.on_id or self.on_array_id}{self._minutes}"

    @property
    def numbered(self) -> str:
        """The dependency as Slurm writes it: afterok:12, after:12+10, or afterok:12_3."""
        if self.on is None:
            number = str(self.on_array.number if self.on_array else 0)
        elif self.on.array is None:
            number = str(self.on.number)
        else:
            number = f"{self.on.array.number}_{self.on.array_index}"
        return f"{self.condition}:{number}{self._minutes}"

    @property
    def condition_text(self) -> str:
        """The condition with the minutes after the start: afterok, or after+10."""
        return f"{self.condition}{self._minutes}"

    @property
    def _minutes(self) -> str:
        """Minutes after the start, such as +10; "" without any."""
        if self.condition != Condition.AFTER or not self.delay:
            return ""
        return f"+{self.delay // timedelta(minutes=1)}"
