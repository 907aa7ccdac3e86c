"""Beat goes by the boot clock, and of what it has sent again only the newest is run."""

from typing import Any

import pytest
from django.core.cache import cache

from controlplane.celery import app
from controlplane.operations import schedule
from controlplane.operations.schedule import TICK, BootScheduler, newest_only

TASK = "controlplane.operations.tasks.reconcile"


class Request(dict[str, str]):
    """Request of the task that a worker runs."""

    task = TASK


class Beat:
    """Beat whose clocks are set by hand, and what it has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot_s, self.wall_s = 5000.0, 2e9
        self.sent: list[tuple[str, str]] = []
        monkeypatch.setattr(schedule, "boot_s", lambda: self.boot_s)
        monkeypatch.setattr("time.time", lambda: self.wall_s)
        for task in app.tasks.values():
            if task.name.startswith("controlplane.operations"):
                monkeypatch.setattr(task, "apply_async", self._take(task.name))
        self.scheduler = BootScheduler(app, lazy=True)
        self.scheduler.setup_schedule()

    def _take(self, name: str) -> Any:
        def send(*_: object, headers: dict[str, str], **__: object) -> None:
            self.sent.append((name, headers[TICK]))

        return send

    def until(self, seconds: float) -> int:
        """Tick so long; the number of passes of the reconciler sent."""
        before, end_s = self.passes, self.boot_s + seconds
        while self.boot_s < end_s:
            wait_s = max(0.001, min(self.scheduler.tick(), end_s - self.boot_s))
            self.boot_s, self.wall_s = self.boot_s + wait_s, self.wall_s + wait_s
        return self.passes - before

    @property
    def passes(self) -> int:
        return sum(name == TASK for name, _ in self.sent)


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Beat:
    import controlplane.operations.tasks  # noqa: F401  # their names are known then

    return Beat(monkeypatch)


@pytest.mark.parametrize("jump_s", [-3600.0, -60.0, 60.0, 3600.0])
def test_no_jump_stops_or_hurries_beat(beat: Beat, jump_s: float) -> None:
    assert beat.until(1.0) == 1, "everything is due at its start"
    assert len({name for name, _ in beat.sent}) == 5
    assert beat.until(20.0) == 10
    beat.wall_s += jump_s
    assert beat.until(20.0) == 10


def test_of_a_backlog_only_the_newest_is_run(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    beat.until(7.0)
    ticks, done = [tick for name, tick in beat.sent if name == TASK], []

    class Running:
        request: Any = None

    monkeypatch.setattr(schedule, "current_task", Running)
    task = newest_only(lambda: done.append(Running.request[TICK]))
    for tick in ticks:
        Running.request = Request({TICK: tick})
        task()
    assert len(ticks) == 4
    assert done == ticks[-1:]
    cache.clear()
    task()
    assert len(done) == 2, "an emptied cache stops nothing"


def test_a_task_that_beat_did_not_send_is_run() -> None:
    done: list[bool] = []
    newest_only(lambda: done.append(True))()
    assert done == [True]
