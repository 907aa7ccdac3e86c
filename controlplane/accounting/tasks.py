"""Celery entry of the energy ledger."""

from celery import shared_task

from controlplane.accounting.ledger import meter


@shared_task
def meter_energy() -> None:
    """Bring the energy of what runs into the ledger."""
    meter()
