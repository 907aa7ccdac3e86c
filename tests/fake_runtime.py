"""A clock that tests move, and a runtime that plays jobs by it."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadmaster.agent.clock import Clock
from loadmaster.agent.outcome import EXIT_PREEMPTED
from loadmaster.agent.runtimes.base import (
    PROGRESS,
    Exit,
    Launch,
    LaunchError,
    RunId,
    RunState,
    RunStatus,
    Runtime,
    StopBy,
    StopOrder,
    Term,
    Usage,
)
from loadmaster.protocol import LaunchSpec, ReasonClass


class VirtualClock:
    """A clock that moves when told to; boot and wall time run alike."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of a played job: speed, pauses, failure, use, and the image's arrival.

    A job that takes longer than its grace to leave (`leaves_in_s`) is killed unsaved.
    """

    step_s: float = 1.0
    setup_s: float = 0.0
    leaves_in_s: float = 0.0
    fails_at_step: int | None = None
    exit_code: int = 1
    cannot_start: str = ""
    stdout: bytes = b""
    cores: float = 1.0
    memory_gb: float = 0.5
    pull_s: float = 0.0
    pull_error: str = ""
    image_digest: str = ""
    refused: tuple[ReasonClass, str] | None = None


@dataclass(slots=True)
class Play:
    """One launch being played; `exit` is decided early, and true once the clock is there."""

    spec: LaunchSpec
    script: Script
    base_step: int = 0
    started_s: float | None = None
    lease_until_s: float = math.inf
    grace_s: float = 30.0
    stop: tuple[float, StopOrder] | None = None
    exit: Exit | None = None
    term: Term = field(default_factory=Term)
    streams: dict[str, bytes] = field(default_factory=dict)
    note: str = ""
    told_step: int = -1
    prepared_s: float = 0.0
    paces_s: list[float] = field(default_factory=list)


class FakeRuntime(Runtime):
    """Runtime whose jobs are played by scripts.

    `saved` holds total steps by job, shared by the runtimes of one world like a checkpoint folder.
    """

    def __init__(
        self,
        clock: Clock,
        script: Callable[[LaunchSpec], Script] = lambda spec: Script(),
        saved: dict[str, int] | None = None,
        name: str = "process",
    ) -> None:
        self.name = name
        self.saved = {} if saved is None else saved
        self.plays: dict[RunId, Play] = {}
        self.launches: list[RunId] = []
        """Every launch that was ever started, in order."""
        self._clock = clock
        self._script = script

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        return self._script(launch.spec).refused

    def prepare(self, launch: Launch) -> None:
        script = self._script(launch.spec)
        if script.cannot_start:
            raise LaunchError(script.cannot_start)
        play = Play(launch.spec, script, grace_s=launch.grace_s, term=launch.term)
        play.streams["stdout"], play.prepared_s = script.stdout, self._clock.boot_s()
        self.plays.setdefault(launch.run, play)

    def start(self, run: RunId, lease_until_s: float) -> None:
        play = self.plays[run]
        if play.started_s is None and play.exit is None:
            self.launches.append(run)
            play.started_s, play.lease_until_s = self._clock.boot_s(), lease_until_s
            is_profiled = play.spec.purpose == "profiling"
            play.base_step = 0 if is_profiled else self.saved.get(play.spec.job, 0)

    def renew(self, run: RunId, lease_until_s: float) -> None:
        self.plays[run].lease_until_s = lease_until_s

    def update(self, run: RunId, term: Term) -> None:
        if run in self.plays:
            self.plays[run].term = term

    def set_pace(self, run: RunId, step_s: float) -> None:
        self.plays[run].paces_s.append(step_s)

    def stop(self, run: RunId, order: StopOrder) -> None:
        play = self.plays.get(run)
        if play and (play.stop is None or play.stop[1].by is StopBy.PREEMPT):
            play.stop = (self._clock.boot_s(), order)

    def poll(self, run: RunId) -> RunStatus:
        play = self.plays.get(run)
        if play is None:
            return RunStatus(RunState.ABSENT)
        self._advance(play)
        if play.exit:
            return RunStatus(RunState.ENDED, play.exit)
        if play.started_s is None:
            return self._preparing(play)
        return RunStatus(RunState.RUNNING, lease_until_s=play.lease_until_s)

    def _preparing(self, play: Play) -> RunStatus:
        waited_s = self._clock.boot_s() - play.prepared_s
        if waited_s < play.script.pull_s:
            return RunStatus(RunState.PREPARING, prepared_fraction=waited_s / play.script.pull_s)
        if error := play.script.pull_error:
            now_s = self._clock.wall_s()
            play.exit = Exit(now_s, started=False, error=error, blame=ReasonClass.IMAGE)
            return RunStatus(RunState.ENDED, play.exit)
        return RunStatus(RunState.PREPARED, image_digest=play.script.image_digest)

    def abandon(self, run: RunId) -> RunStatus:
        play = self.plays.get(run)
        if play and play.started_s is None and play.exit is None:
            error = "the agent ended before the job was started"
            play.exit = Exit(self._clock.wall_s(), started=False, error=error)
        return self.poll(run)

    def list(self) -> tuple[RunId, ...]:
        return tuple(self.plays)

    def spec(self, run: RunId) -> LaunchSpec | None:
        return self.plays[run].spec if run in self.plays else None

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        return self._stream(run, stream)[offset : offset + limit]

    def size(self, run: RunId, stream: str) -> int:
        return len(self._stream(run, stream))

    def _stream(self, run: RunId, stream: str) -> bytes:
        return self.plays[run].streams.get(stream, b"") if run in self.plays else b""

    def write_note(self, run: RunId, text: str) -> None:
        if run in self.plays:
            self.plays[run].note = text

    def read_note(self, run: RunId) -> str:
        return self.plays[run].note if run in self.plays else ""

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        status = self.poll(run)
        script = self.plays[run].script if run in self.plays else Script()
        return Usage(script.cores, script.memory_gb) if status.state is RunState.RUNNING else None

    def remove(self, run: RunId) -> None:
        self.plays.pop(run, None)

    def _advance(self, play: Play) -> None:
        if play.started_s is None or play.exit:
            return
        now_s = self._clock.boot_s()
        end_s, ended = self._end(play, play.started_s)
        step = self._step_at(play, min(now_s, end_s))
        self._write(play, min(now_s, end_s), "progress", step)
        if now_s >= end_s:
            self._finish(play, ended, end_s, step)

    def _finish(self, play: Play, ended: Exit, end_s: float, step: int) -> None:
        play.exit = replace(ended, ended_at_s=self._clock.wall_s() - (self._clock.boot_s() - end_s))
        if ended.exit_code in (0, EXIT_PREEMPTED):
            if play.spec.purpose != "profiling":
                self.saved[play.spec.job] = step
            last = "end" if step >= play.spec.steps else "quota"
            self._write(play, end_s, "checkpoint", step)
            self._write(play, end_s, "preempted" if ended.exit_code else last, step)

    def _end(self, play: Play, started_s: float) -> tuple[float, Exit]:
        """The end of the play: earliest of its own end, a stop, its term, its lease."""
        ends, leaves_in_s = [self._own_end(play, started_s)], play.script.leaves_in_s
        if play.term.ends_s is not None:
            term_s = max(started_s, play.term.ends_s) + leaves_in_s
            ends.append((term_s, Exit(0.0, exit_code=EXIT_PREEMPTED)))
        lease_end = (play.lease_until_s, StopOrder(StopBy.LEASE, play.grace_s))
        for at_s, order in filter(None, (lease_end, play.stop)):
            in_time = leaves_in_s <= order.grace_s and order.by is not StopBy.CANCEL
            code = EXIT_PREEMPTED if in_time else -15
            end_s = at_s + min(leaves_in_s, order.grace_s)
            ends.append((end_s, Exit(0.0, exit_code=code, stopped_by=order.by)))
        return min(ends, key=lambda end: end[0])

    def _own_end(self, play: Play, started_s: float) -> tuple[float, Exit]:
        spec, script = play.spec, play.script
        last, code = spec.steps, 0
        if spec.steps_quota is not None:
            last = min(spec.steps, play.base_step + spec.steps_quota)
        if script.fails_at_step is not None and script.fails_at_step < last:
            last, code = max(play.base_step, script.fails_at_step), script.exit_code
        work_s = max(0, last - play.base_step) * script.step_s
        return started_s + script.setup_s + work_s, Exit(0.0, exit_code=code)

    def _step_at(self, play: Play, at_s: float) -> int:
        own_end_s, _ = self._own_end(play, play.started_s or 0.0)
        first_s = (play.started_s or 0.0) + play.script.setup_s
        done = math.floor((min(at_s, own_end_s) - first_s) / play.script.step_s + 1e-9)
        return play.base_step + max(0, done)

    def _write(self, play: Play, at_s: float, event: str, step: int) -> None:
        if event == "progress" and step in (play.told_step, play.base_step):
            return
        play.told_step = step
        elapsed_s = max(0.0, at_s - (play.started_s or 0.0) - play.script.setup_s)
        wall_s = self._clock.wall_s() - (self._clock.boot_s() - at_s)
        line = {
            "at_s": wall_s,
            "event": event,
            "step": step,
            "launch_steps": step - play.base_step,
            "elapsed_s": elapsed_s,
            "steps_per_s": 1.0 / play.script.step_s,
            "setup_s": play.script.setup_s,
        }
        play.streams[PROGRESS] = play.streams.get(PROGRESS, b"") + json.dumps(line).encode() + b"\n"
