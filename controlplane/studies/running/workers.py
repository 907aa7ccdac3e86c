"""Signals between the server and the Celery workers that run simulations.

Hints tell workers that a simulation waits; lost ones are repeated, extra ones harmless. A worker
that is being stopped tells its simulations, so that they leave at once and go on elsewhere: Celery
tells its main process only, with which the pool's processes share a byte of memory.
"""

import logging
import mmap
from typing import Any

from celery import current_app
from celery.signals import worker_shutting_down
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

SIMULATION_TASK = "controlplane.studies.tasks.run_simulation"

_FLAG = mmap.mmap(-1, 1)
"""Anonymous memory, shared with every process that is forked after this module is imported."""


def hint_simulations() -> None:
    """Tell the workers."""
    try:
        current_app.send_task(SIMULATION_TASK)
    except OperationalError as error:
        logger.warning("the broker is away, so the reconciler will find the simulation: %s", error)


@worker_shutting_down.connect
def begin_stopping(**_: Any) -> None:
    """Take no more tasks and wait for current ones."""
    _FLAG[0] = 1


def is_stopping() -> bool:
    """Return True if the worker of this process is being stopped."""
    return _FLAG[0] == 1
