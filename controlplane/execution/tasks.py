"""Celery entry of device samples."""

from celery import shared_task

from clusters.services.devices import flush_samples


@shared_task
def write_samples() -> None:
    """Write what heartbeats said of devices. It takes seconds on a large cluster: nothing waits."""
    flush_samples()
