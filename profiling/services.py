"""What the rest of the house asks of the profiler. Every function may be called inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from clusters.models import Assignment
from jobs.models import Job
from profiling import kinds
from profiling.models import Kind


def kind_for(
    *, name: str, runtime: str, image: str, image_digest: str, command: Sequence[str], declared: Mapping[str, object]
) -> Kind:
    """The kind of a job with these properties, made if it is new. See `profiling.kinds` for the rule."""
    digest = kinds.digest(name=name, runtime=runtime, image=image, image_digest=image_digest, command=command, declared=declared)
    shown = name.strip() or kinds.called(image=image_digest and image or image, command=command)
    return Kind.objects.get_or_create(digest=digest, defaults={"name": shown[:100]})[0]


def request_profile(job: Job) -> bool:
    """Ask for what is not yet measured of the (saved) job's kind; True if the job is to wait for it as PROFILING."""
    return False


def profile_run_started(job: Job, copy: int) -> None:
    """Note that the profile run of that number was placed. Called by whoever writes its assignment, in that transaction."""


def profile_run_ended(assignment: Assignment) -> None:
    """Take in a profiling assignment that has ended, in the transaction that ends it."""


def production_measured(assignment: Assignment) -> None:
    """Refine what is known by a training assignment's progress, at its end or while it runs."""


def reconcile_profiles(now: datetime) -> None:
    """Find what was missed: runs nobody can serve, jobs that wait for nothing, nodes that could measure something new."""
