"""Hints to workers that a simulation waits; lost ones are repeated, extra ones harmless."""

from __future__ import annotations

import logging

from celery import current_app
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

SIMULATION_TASK = "controlplane.studies.tasks.run_simulation"

EXPIRES_S = 10.0
"""A hint that no worker has taken by then is dropped: the reconciler sends another one."""


def hint_simulations() -> None:
    """Tell the workers."""
    try:
        current_app.send_task(SIMULATION_TASK, expires=EXPIRES_S)
    except OperationalError as error:
        logger.warning("the broker is away, so the reconciler will find the simulation: %s", error)
