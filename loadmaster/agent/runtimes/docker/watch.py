"""Watch over containers in a thread, so that the agent's loop never waits for the Engine."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from loadmaster.agent.clock import Clock
from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker import port

LOOK_S = 0.2
"""Seconds between two looks at the containers."""

LOOK_AGAIN_S = 1.0
"""Seconds between two looks after one that failed."""

STATS_S = 1.5
"""Seconds between two measurements of the containers' use."""

TROUBLE_AFTER_S = 3.0
"""Seconds without an answer after which the node takes no new work."""

logger = logging.getLogger(__name__)


class Watch:
    """Newest view of an agent's containers. `after` is called in the thread after every look.

    `owner`: value of the label by which the agent's containers are found.
    """

    def __init__(
        self, engine: port.Engine, owner: str, clock: Clock, after: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._clock = clock
        self._after = after
        self._lock = threading.Lock()
        self._containers: dict[RunId, port.Container] = {}
        self._stats: dict[RunId, port.Stats] = {}
        self._measured_s = float("-inf")
        """Time of the last measurement of use, on the boot clock."""
        self._answered_s = clock.boot_s()
        """Time of the Engine's last answer, on the boot clock."""
        self._error = ""
        """Failure of the last look; "" if it worked."""
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="docker-watch", daemon=True)

    def begin(self) -> None:
        """Look now, then again and again in the thread.

        Raises EngineDownError if the Engine does not answer now.
        """
        self.look()
        self._thread.start()

    def close(self) -> None:
        """End the thread after its present look."""
        self._closed.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_AGAIN_S * 10)

    def wake(self) -> None:
        """Make the thread look now."""
        self._woken.set()

    def containers(self) -> dict[RunId, port.Container]:
        """Return the containers as they were at the last look."""
        return self._containers

    def stats(self, run: RunId) -> port.Stats | None:
        """Return the last measured use of a container."""
        return self._stats.get(run)

    def trouble(self) -> str:
        """Return how long the Engine has not answered, and why; "" if it answers."""
        silent_s = self._clock.boot_s() - self._answered_s
        if silent_s <= TROUBLE_AFTER_S:
            return ""
        return f"the Docker Engine has not answered for {silent_s:.0f} s: {self._error}"

    def look(self) -> None:
        """Look at all containers now. Raises EngineDownError and EngineRefusedError."""
        with self._lock:
            containers = {}
            for run, container in self._engine.runs(self._owner).items():
                containers[run] = self._with_details(run, container)
            self._containers = containers
            self._answered_s = self._clock.boot_s()

    def _with_details(self, run: RunId, container: port.Container) -> port.Container:
        """Return a container, with its details if it has ended; they are asked for only once."""
        if not container.has_ended:
            return container
        former = self._containers.get(run)
        if former and former.has_ended:
            return former
        return self._engine.inspect(run.name) or replace(container, error="the container is gone")

    def _measure(self) -> None:
        """Measure the use of running containers, every STATS_S."""
        now_s = self._clock.boot_s()
        if now_s - self._measured_s < STATS_S:
            return
        self._measured_s = now_s
        measured: dict[RunId, port.Stats] = {}
        for run, container in self._containers.items():
            if container.runs:
                with contextlib.suppress(port.EngineRefusedError):
                    stats = self._engine.stats(run.name)
                    if stats:
                        measured[run] = stats
        self._stats = measured

    def _run(self) -> None:
        """Look until closed. A failure is logged once, until a look works again."""
        wait_s = LOOK_S
        while not self._closed.is_set():
            self._woken.wait(wait_s)
            self._woken.clear()
            try:
                self.look()
                self._after()
                self._measure()
            except Exception as error:  # of any type: the next look may work
                if not self._error:
                    foreseen = (port.EngineDownError, port.EngineRefusedError, OSError)
                    logger.warning(
                        "the Docker Engine fails; running jobs go on under their leases: %s",
                        error,
                        exc_info=not isinstance(error, foreseen),
                    )
                self._error = str(error)
                wait_s = LOOK_AGAIN_S
                self._closed.wait(LOOK_AGAIN_S)
            else:
                if self._error:
                    logger.warning("the Docker Engine answers again")
                self._error = ""
                wait_s = LOOK_S
