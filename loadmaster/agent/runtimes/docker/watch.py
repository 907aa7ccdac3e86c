"""A thread that watches containers, so that the loop never waits for the Engine."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from loadmaster.agent.clock import Clock
from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker import port

LOOK_S = 0.2
LOOK_AGAIN_S = 1.0
STATS_S = 1.5
TROUBLE_AFTER_S = 3.0

logger = logging.getLogger(__name__)


class Watch:
    """Newest view of an agent's containers; `after` is called after every look, in the thread."""

    def __init__(
        self, engine: port.Engine, owner: str, clock: Clock, after: Callable[[], None]
    ) -> None:
        self._engine, self._owner, self._clock, self._after = engine, owner, clock, after
        self._lock = threading.Lock()
        self._containers: dict[RunId, port.Container] = {}
        self._stats: dict[RunId, port.Stats] = {}
        self._counted_s = float("-inf")
        self._answered_s = clock.boot_s()
        self._error = ""
        self._left = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="docker-watch", daemon=True)

    def begin(self) -> None:
        """Look once, then in a thread; EngineDownError if the Engine is silent now."""
        self.look()
        self._thread.start()

    def close(self) -> None:
        """End the thread, after it has done what it was doing."""
        self._left.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_AGAIN_S * 10)

    def wake(self) -> None:
        """Look soon."""
        self._woken.set()

    def containers(self) -> dict[RunId, port.Container]:
        """The containers as they were at the last look."""
        return self._containers

    def stats(self, run: RunId) -> port.Stats | None:
        """Last measured use of a container."""
        return self._stats.get(run)

    def trouble(self) -> str:
        """Reason for an Engine's silence of a while, or empty."""
        silent_s = self._clock.boot_s() - self._answered_s
        text = f"the Docker Engine has not answered for {silent_s:.0f} s: {self._error}"
        return text if silent_s > TROUBLE_AFTER_S else ""

    def look(self) -> None:
        """Take a view now."""
        with self._lock:
            found = self._engine.runs(self._owner)
            self._containers = {
                run: self._detailed(run, container) for run, container in found.items()
            }
            self._answered_s = self._clock.boot_s()

    def _detailed(self, run: RunId, container: port.Container) -> port.Container:
        """An ended container with its details, which are asked for once."""
        if not container.has_ended:
            return container
        former = self._containers.get(run)
        if former and former.has_ended:
            return former
        return self._engine.inspect(run.name) or replace(container, error="the container is gone")

    def _count(self) -> None:
        now_s = self._clock.boot_s()
        if now_s - self._counted_s < STATS_S:
            return
        self._counted_s = now_s
        counted: dict[RunId, port.Stats] = {}
        for run, container in self._containers.items():
            if container.runs:
                with contextlib.suppress(port.EngineRefusedError):
                    if stats := self._engine.stats(run.name):
                        counted[run] = stats
        self._stats = counted

    def _go_on(self) -> None:
        wait_s = LOOK_S
        while not self._left.is_set():
            self._woken.wait(wait_s)
            self._woken.clear()
            try:
                self.look()
                self._after()
                self._count()
            except Exception as error:  # whatever it is, the next look may do
                if not self._error:
                    foreseen = (port.EngineDownError, port.EngineRefusedError, OSError)
                    logger.warning(
                        "the Docker Engine fails; running jobs go on under their leases: %s",
                        error,
                        exc_info=not isinstance(error, foreseen),
                    )
                self._error, wait_s = str(error), LOOK_AGAIN_S
                self._left.wait(LOOK_AGAIN_S)
            else:
                if self._error:
                    logger.warning("the Docker Engine answers again")
                self._error, wait_s = "", LOOK_S
