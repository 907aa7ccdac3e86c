"""Refusals of actions on jobs, other than `validation.JobInvalid`."""


class JobConflict(Exception):
    """Action that the job's present state does not allow."""


class IdempotencyConflict(JobConflict):
    """Key that was used before for another body."""


class QuotaReached(JobConflict):
    """Quota of a team that the action would exceed; `retry_s`: when it is worth another try."""

    def __init__(self, message: str, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s
