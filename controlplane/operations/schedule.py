"""Schedule of beat on the boot clock, and periodic tasks of which only the newest is run.

Celery's own times of last runs and expiries are those of wall clocks. After a jump back beat would
send nothing for as long, and a worker whose clock is ahead would take every task for expired.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from uuid import uuid4

from celery import current_task
from celery.beat import ScheduleEntry, Scheduler
from django.core.cache import cache
from redis.exceptions import RedisError

from controlplane.web.storage.watch import boot_s

log = logging.getLogger(__name__)

TICK = "loadmaster_tick"
"""Header of a task with its tick, a random text."""

KEPT_S = 3600
"""Seconds for which the newest tick of a task is kept in the cache."""


def _boot_time() -> datetime:
    """Boot clock as Celery wants it; it never goes back and is no date."""
    return datetime.fromtimestamp(boot_s(), UTC)


class BootEntry(ScheduleEntry):
    """Entry on the boot clock; due at once when beat starts."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        by: Any = self.schedule
        if by.nowfun is not _boot_time:
            by.nowfun = _boot_time
            self.last_run_at = _boot_time() - by.run_every


class BootScheduler(Scheduler):
    """Scheduler that gives each task a tick, the newest of which is known to the workers."""

    Entry = BootEntry

    def install_default_entries(self, data: object) -> None:
        """Leave out Celery's own entry, which removes results: none are kept."""

    def apply_async(self, entry: ScheduleEntry, *args: Any, **values: Any) -> Any:
        tick = uuid4().hex
        try:
            cache.set(_key(str(entry.task)), tick, KEPT_S)
        except (RedisError, OSError) as error:
            log.warning("the newest tick of %s is not noted: %s", entry.task, error)
        entry.options = {**(entry.options or {}), "headers": {TICK: tick}}
        return super().apply_async(entry, *args, **values)


def newest_only(task: Callable[[], None]) -> Callable[[], None]:
    """Leave a task out that beat has sent again since: a backlog costs nothing."""

    @wraps(task)
    def run() -> None:
        if not _is_old():
            task()

    return run


def _is_old() -> bool:
    """Return True if beat has sent the current task again since; False if that is not known."""
    request: Any = current_task.request if current_task else None
    tick = request.get(TICK) if request else None
    if tick is None:
        return False
    try:
        return bool(cache.get(_key(request.task), tick) != tick)
    except (RedisError, OSError) as error:
        log.warning("whether %s was sent again is not known: %s", request.task, error)
        return False


def _key(task: str) -> str:
    return f"tick:{task}"
