"""Celery entry of simulations."""

from celery import shared_task

from controlplane.studies.running.runner import run_next
from controlplane.studies.running.workers import hint_simulations


@shared_task
def run_simulation() -> None:
    """Run the simulation that has waited longest, if one waits and a slot is free."""
    if run_next() is not None:
        hint_simulations()
