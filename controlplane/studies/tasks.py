"""Celery entries of simulations."""

from celery import shared_task

from controlplane.studies.running.runner import run_next
from controlplane.studies.running.workers import hint_simulations
from controlplane.studies.simulated_starts import forecast_round
from jobs.forecasts.scheduled_starts import simulate_paced


@shared_task
def run_simulation() -> None:
    """Run the simulation that has waited longest, if one waits and a slot is free."""
    if run_next() is not None:
        hint_simulations()


@shared_task
def forecast_starts(cluster_id: int) -> None:
    """Forecast the starts of jobs that wait; it may be repeated or be late."""
    simulate_paced(cluster_id, forecast_round)
