"""Limits of teams: ceilings of what a job may ask for, and quotas of jobs queued and submitted.

Operators set them (`Team.LIMITS`). Only new submissions are refused: jobs that run or wait go on
when a limit is lowered. `policies.batch.team_limits` keeps to the limit of GPUs in use.

A team without a limit of its own has that of the installation on its queue, so that no member fills
the database by mistake. That limit is not exact: two submissions at once may exceed it.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Sum
from django.utils import timezone

from jobs.models import Job, Team, UnfinishedArray
from jobs.submission.refusals import JobConflict, QuotaReached

CEILINGS = ("tardiness_weight", "priority", "weight")
"""Fields of a job whose ceiling is the team's field of the same name with `max_` before it."""

WINDOW_S = 60
"""Seconds in which `max_submissions_per_minute` counts."""

WAITS = 1
"""`Job.queue_rank` of jobs that wait, are held or are measured."""


def above_limits(wanted: Mapping[str, Any], team: Team) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for each field of a job that is above a limit of the team."""
    for field in CEILINGS:
        value = wanted[field]
        most = getattr(team, f"max_{field}")
        if value > most:
            remedy = _remedy(team, f"max_{field}")
            yield field, f"must be at most {most:g}, not {value:g}{remedy}"
    if team.max_gpus is not None and wanted["gpus_min"] > team.max_gpus:
        limit = f"team {team} may use {team.max_gpus} GPUs at a time, not {wanted['gpus_min']}"
        yield "gpus", limit + _remedy(team, "max_gpus")


class Quotas:
    """Room that teams have left in their queues and their submissions per minute.

    The rows of teams with limits of their own are locked until the transaction ends, so that two
    transactions cannot take the same room.
    """

    def __init__(self, teams: Iterable[Team]) -> None:
        by_key = {team.pk: team for team in teams}
        limited = {pk for pk, team in by_key.items() if _is_limited(team)}
        if limited:
            locked = Team.objects.select_for_update(no_key=True).filter(pk__in=limited)
            by_key |= {team.pk: team for team in locked.order_by("pk")}
        self._rooms = {pk: _Room(team) for pk, team in by_key.items()}

    def take(self, team: Team, jobs: int, submissions: int = 0) -> None:
        """Take room for jobs that enter the queue. Raises QuotaReached.

        `submissions`: how many requests for jobs or arrays submit them, 0 if they are requeued.
        """
        self._rooms[team.pk].take(jobs, submissions)


def most_queued(team: Team) -> int | None:
    """Return the most jobs that the team may have in the queue; None: any number."""
    if team.max_queued_jobs is not None:
        return team.max_queued_jobs
    return int(settings.MAX_QUEUED_JOBS) or None


class _Room:
    """Queued jobs of a team, and submissions of the last WINDOW_S."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.queued = 0
        self.submitted = 0
        jobs = Job.objects.filter(team=team).order_by()
        if most_queued(team) is not None:
            self.queued = jobs.filter(queue_rank=WAITS).count() + _unwritten(team)
        most_a_minute = team.max_submissions_per_minute
        if most_a_minute is not None:
            now = timezone.now()
            window = timedelta(seconds=WINDOW_S)
            # Submissions of the future do not count: the clock may have been ahead.
            recent = jobs.filter(submitted_at__gt=now - window, submitted_at__lte=now + window)
            arrays = recent.filter(array__isnull=False).values("array").distinct()
            single_jobs = recent.filter(array=None)[:most_a_minute]
            self.submitted = arrays.count() + single_jobs.count()

    def take(self, jobs: int, submissions: int) -> None:
        most = most_queued(self.team)
        if most is not None and self.queued + jobs > most:
            full = f"team {self.team} has {self.queued} jobs in the queue and may have {most}"
            raise QuotaReached(f"{full}; let some end{_remedy(self.team, 'max_queued_jobs')}")
        most_a_minute = self.team.max_submissions_per_minute
        submitted = self.submitted + submissions
        if submissions and most_a_minute is not None and submitted > most_a_minute:
            limit = f"team {self.team} may submit {most_a_minute} jobs or arrays a minute"
            remedy = _remedy(self.team, "max_submissions_per_minute")
            raise QuotaReached(f"{limit}; wait a minute{remedy}", retry_s=WINDOW_S)
        self.queued += jobs
        self.submitted += submissions


def check_requeue(job: Job, count: int = 1) -> None:
    """Raise JobConflict if an ended job, back in the queue, would be above limits of its team.

    `count`: number of elements like it that are requeued with it.
    """
    for field, message in above_limits(vars(job), job.team):
        raise JobConflict(f"{field}: {message}, or clone the job with less")
    Quotas([job.team]).take(job.team, count)


def _unwritten(team: Team) -> int:
    """Return the number of elements of the team's arrays that are not written yet."""
    unfinished = UnfinishedArray.objects.filter(team=team)
    missing = unfinished.aggregate(count=Sum(F("array__size") - F("written")))
    return missing["count"] or 0


def _is_limited(team: Team) -> bool:
    return team.max_queued_jobs is not None or team.max_submissions_per_minute is not None


def _remedy(team: Team, limit: str) -> str:
    return f", or ask an operator to raise {limit} of team {team}"
