"""Teams, jobs, and what happened to them."""

from jobs.models.jobs import QUEUE_ORDER, Attempt, IdempotencyKey, Job, JobEvent
from jobs.models.teams import Membership, Secret, Team

__all__ = [
    "QUEUE_ORDER",
    "Attempt",
    "IdempotencyKey",
    "Job",
    "JobEvent",
    "Membership",
    "Secret",
    "Team",
]
