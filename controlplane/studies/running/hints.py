"""Hints to workers that a simulation waits; lost ones are repeated, extra ones harmless."""

from __future__ import annotations

import logging

from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

EXPIRES_S = 10.0
"""A hint that no worker has taken by then is dropped: the reconciler sends another one."""


def hint_simulations() -> None:
    """Tell the workers."""
    from controlplane.tasks import (
        run_simulation,
    )  # the task module imports the loop, which pages need not

    try:
        run_simulation.apply_async(expires=EXPIRES_S)
    except OperationalError as error:
        logger.warning("the broker is away, so the reconciler will find the simulation: %s", error)
