"""Signals of jobs for upper layers; receivers run in the sender's transaction."""

from django.dispatch import Signal

jobs_queued = Signal()
"""Sent with `jobs` of one cluster that enter the queue (sender: Job)."""

stop_wanted = Signal()
"""Sent with `job`, `reason` (a StopReason) and `actor` to end all that a job holds."""
