"""Teams, jobs, and what happened to them."""

from jobs.models.jobs import Attempt, IdempotencyKey, Job, JobEvent
from jobs.models.teams import Membership, Secret, Team

__all__ = ["Attempt", "IdempotencyKey", "Job", "JobEvent", "Membership", "Secret", "Team"]
