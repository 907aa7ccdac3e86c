"""Time that isolation adds to a launch: `python -m experiments.bench.agent.isolation`."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from experiments.bench.figures import Figure, figure, show
from loadmaster.agent.config import USERS, users_of
from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.node.machine import boot_id
from loadmaster.agent.runtimes.base import Launch, RunId, RunState
from loadmaster.agent.runtimes.isolation import (
    Isolation,
    NoIsolationError,
    working_isolation,
)
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.protocol import LaunchSpec

LAUNCHES = 50
PAUSE_S = 0.001


def figures(launches: int = LAUNCHES) -> Iterator[Figure]:
    """The figure of launches of `true`, with and without isolation by turns; none without it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # not below /tmp
        place = Path(name)
        place.chmod(0o755)
        try:
            isolation = working_isolation(
                place / "own", users_of(USERS) if os.getuid() == 0 else None
            )
        except NoIsolationError as error:
            print(f"isolation is not measured: {error}", file=sys.stderr)
            return
        alone, shared = _runtime(place / "own", isolation), _runtime(place / "all", None)
        with closing(alone), closing(shared):
            pairs = [(_launch_s(shared, i), _launch_s(alone, i)) for i in range(launches + 1)][1:]
    before_s, after_s = (median(times) for times in zip(*pairs, strict=True))
    facts = {"without_ms": round(1000 * before_s, 1), "bubblewrap": bool(isolation.program)}
    added_ms = 1000 * (after_s - before_s)
    yield figure("isolation, added to a launch of true", added_ms, 100.0, "ms", **facts)


def _runtime(state: Path, isolation: Isolation | None) -> ProcessRuntime:
    return ProcessRuntime(state / "runs", isolation=isolation)


def _launch_s(runtime: ProcessRuntime, number: int) -> float:
    """Seconds from the acceptance of a launch to its end, as the agent sees it."""
    spec = LaunchSpec(f"a{number}", "job", "true", 1, "process", ("true",), (), "", team=1)
    run = RunId(spec.assignment, spec.fence)
    environment = runtime.environment()
    began_s = perf_counter()
    runtime.prepare(Launch(run, spec, environment, 10.0, boot_id()))
    runtime.start(run, guard_orders.boot_s() + 60.0)
    while runtime.poll(run).state is not RunState.ENDED:
        sleep(PAUSE_S)
    took_s = perf_counter() - began_s
    ended = runtime.poll(run).exit
    assert ended, run
    assert ended.exit_code == 0, ended
    runtime.remove(run)
    return took_s


if __name__ == "__main__":
    show(figures())
