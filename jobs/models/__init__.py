"""Teams, jobs and their kinds, assignments, and what happened to them."""

from jobs.models.arrays import (
    NO_DELAY,
    Condition,
    Dependency,
    JobArray,
    JobCounter,
    UnfinishedArray,
)
from jobs.models.assignments import (
    Assignment,
    AssignmentEvent,
    AssignmentSlot,
    LogChunk,
    ProgressPoint,
    UsagePoint,
)
from jobs.models.forecasts import Forecast
from jobs.models.jobs import (
    QUEUE_ORDER,
    UNFINISHED,
    Attempt,
    IdempotencyKey,
    Job,
    JobEvent,
    Kind,
)
from jobs.models.run_times import RunTimeHistory
from jobs.models.teams import Membership, Secret, Team, TeamRole

__all__ = [
    "NO_DELAY", "QUEUE_ORDER", "UNFINISHED", "Assignment", "AssignmentEvent", "AssignmentSlot",
    "Attempt", "Condition", "Dependency", "Forecast", "IdempotencyKey", "Job", "JobArray",
    "JobCounter", "JobEvent", "Kind", "LogChunk", "Membership", "ProgressPoint",
    "RunTimeHistory", "Secret", "Team", "TeamRole", "UnfinishedArray", "UsagePoint",
]  # fmt: skip  # a long list of names
