"""Containment: a failure of one run does not end the loop over all runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from loadmaster.agent.runtimes.base import RunId

REMEMBERED = 1000
"""Failures that are not logged again; after so many, each is logged once more."""

logger = logging.getLogger(__name__)


class Containment:
    """Logs failures of runs, each kind once a run. Errors of the `ending` types pass through."""

    def __init__(self, *ending: type[Exception]) -> None:
        self._ending = ending
        self._logged: set[tuple[RunId, str, type[Exception]]] = set()

    @contextmanager
    def __call__(self, run: RunId, activity: str) -> Iterator[None]:
        """Return a context for an activity (such as "stopping it") that may fail for a run.

        A failure is logged and ends the `with` block, but does not leave it.
        """
        try:
            yield
        except self._ending:
            raise
        except Exception as error:
            self._log(run, activity, error)

    def _log(self, run: RunId, activity: str, error: Exception) -> None:
        """Log a failure, unless one of its kind was logged for this run."""
        kind = (run, activity, type(error))
        if kind in self._logged:
            return
        if len(self._logged) >= REMEMBERED:
            self._logged.clear()
        self._logged.add(kind)
        # An OSError has a cause outside the program, so its traceback is of no use.
        traceback = None if isinstance(error, OSError) else error
        logger.error("%s: %s fails: %s", run.name, activity, error, exc_info=traceback)
