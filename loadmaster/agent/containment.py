"""Containment: a failure of one run does not end the loop over all runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from loadmaster.agent.runtimes.base import RunId

REMEMBERED = 1000
"""Failures that are not logged again; after so many, each is logged once more."""

logger = logging.getLogger(__name__)


class Containment:
    """Logs any failure of a run once of a kind; those of the `ending` types pass through."""

    def __init__(self, *ending: type[Exception]) -> None:
        self._ending = ending
        self._told: set[tuple[RunId, str, type[Exception]]] = set()

    @contextmanager
    def __call__(self, run: RunId, what: str) -> Iterator[None]:
        """Do `what` for a run; a failure ends the block alone."""
        try:
            yield
        except self._ending:
            raise
        except Exception as error:
            self.tell(run, what, error)

    def tell(self, run: RunId, what: str, error: Exception) -> None:
        """Log a failure, unless one of its kind is known of this run."""
        kind = run, what, type(error)
        if kind in self._told:
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told.add(kind)
        is_ours = not isinstance(error, OSError)
        logger.error("%s: %s fails: %s", run.name, what, error, exc_info=error if is_ours else None)
