"""One launch of a job: the implementation of `loadmaster.training.steps`."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat, TypeVar

from loadmaster.outputs import say
from loadmaster.training.checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    Position,
    is_disk_full,
)
from loadmaster.training.emulation import Meter, PacingClock
from loadmaster.training.gangs import LeftEarlyError, gang_of
from loadmaster.training.loaders import Epochs
from loadmaster.training.run_folder import (
    JobEnvironment,
    PaceWatch,
    ProgressLog,
    TermWatch,
    process_age_s,
)

PROGRESS_EVERY_S = 0.5
"""Shortest time in seconds between two lines of progress."""

EXIT_PREEMPTED = 75

Batch = TypeVar("Batch")
Metrics = Mapping[str, SupportsFloat]


class Preempted(SystemExit):
    """The job left with its state saved: exit code 75, to be resumed elsewhere."""

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_PREEMPTED)
        self.reason = reason

    def __str__(self) -> str:
        return f"pre-empted ({self.reason})"


class QuotaReached(SystemExit):
    """The launch did its quota of steps: exit code 0, the job is not done."""

    def __init__(self) -> None:
        super().__init__(0)

    def __str__(self) -> str:
        return "this launch's quota of steps is done"


@dataclass(frozen=True, slots=True)
class Work:
    """Work and how its state is saved: arguments of `loadmaster.training.steps`."""

    total: int | None
    every_s: float
    folder: Path | None
    save: Callable[[Path], object]
    load: Callable[[Path], object]
    ask: Callable[[], Metrics] | None


class Run:
    """One launch of a job, or one rank of it, from its first batch to its end."""

    current: "Run | None" = None

    def __init__(self, environment: JobEnvironment, work: Work) -> None:
        self.metrics: dict[str, SupportsFloat] = {}
        self._work = work
        self._quota = environment.steps_quota
        self._run_dir = environment.run_dir
        self._log = ProgressLog(environment.run_dir)
        self._term = TermWatch(environment.run_dir, environment.fence)
        self._store: CheckpointStore | None = None
        if work.folder:
            self._store = CheckpointStore(work.folder, environment.fence, warn=self._warn)
        step_s = environment.emulated_step_s
        self._pacing = PacingClock(step_s) if step_s else None
        self._pace = PaceWatch(environment.run_dir, step_s or math.inf)
        self._meter = Meter()
        self._step = 0
        self._launch_steps = 0
        """Steps that are done: of the job, and of this launch."""
        self._saved_step: int | None = None
        self._logged_step: int | None = None
        self._saved_s = 0.0
        self._logged_s = 0.0
        self._gang = gang_of(environment, self._fell)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches until the steps are done; raises what ends the launch early."""
        leaving = False
        self._term.catch_sigterm()
        Run.current = self
        try:
            again = self._work.total is not None or self._quota is not None
            epochs = Epochs(loader, self._resume(), again=again)
            source = iter(epochs)
            while self._goes_on(epochs):
                try:
                    batch = next(source)
                except StopIteration:
                    break
                self._begin_step()
                yield batch
                self._end_step()
            self._close("end", epochs)
        except SystemExit as leave:
            leaving = True
            say(f"loadmaster: {leave}")
            raise
        finally:
            Run.current = None
            self._gang.leave()
            self._term.release_sigterm(leaving=leaving)
            self._log.close()

    def _resume(self) -> Position:
        """Meet the other ranks and load the checkpoint at which all begin."""
        begin = self._meet()
        if begin is None:
            return Position()
        self._work.load(self._path_of(begin))
        self._step = begin.position.step
        self._saved_step = begin.position.step
        if begin.position.loss is not None:
            self.metrics["loss"] = begin.position.loss
        self._gang.begin(self._step)
        return begin.position

    def _meet(self) -> Checkpoint | None:
        """Wait for the other ranks; return the checkpoint at which all begin, None for none.

        Raises Preempted if the launch shall end before all ranks are there.
        """
        newest = None
        if self._store and self._gang.finds:
            self._store.resume(own=self._gang.leads)
            newest = self._store.newest
        try:
            return self._gang.meet(self._term.reason, newest)
        except LeftEarlyError as error:
            self._log_event("preempted", reason=error.reason)
            raise Preempted(error.reason) from error

    def _path_of(self, begin: Checkpoint) -> Path:
        """Return the file of the first checkpoint, waiting until this node shows it.

        Raises CheckpointError.
        """
        if self._store is None:
            begins = f"rank 0 begins at step {begin.position.step}"
            raise CheckpointError(f"{begins}, and this rank has no folder of checkpoints")
        if begin == self._store.newest:
            return self._store.folder / begin.file
        return self._store.follow(begin)

    def _goes_on(self, epochs: Epochs[Batch]) -> bool:
        """Return True for another step. Raises QuotaReached or Preempted at the end of a launch."""
        # 1. The steps of the job or of this launch are done.
        if self._work.total is not None and self._step >= self._work.total:
            return False
        if self._quota is not None and self._launch_steps >= self._quota:
            self._close("quota", epochs)
            raise QuotaReached

        # 2. The agent wants it to stop, and all ranks have agreed on this step.
        reason = self._gang.pass_boundary(self._step, self._stop_reason())
        if reason:
            self._close("preempted", epochs, reason=reason)
            raise Preempted(reason)

        # 3. It goes on, perhaps after a checkpoint.
        if self._launch_steps and time.monotonic() - self._saved_s >= self._work.every_s:
            self._checkpoint(epochs)
        return True

    def _stop_reason(self) -> str | None:
        """Return the reason for this rank to stop, if its gang heeds that; else None."""
        reason = self._term.reason()
        if reason and self._gang.heeds(reason):
            return reason
        return None

    def _is_over(self) -> bool:
        return self._gang.is_ending or self._stop_reason() is not None

    def _begin_step(self) -> None:
        if self._meter.first_s is None:
            self._log_event("start", setup_s=process_age_s())
            self._meter.start()
            self._saved_s = time.monotonic()
            if self._pacing:
                self._pacing.start()

    def _end_step(self) -> None:
        if self._pacing:
            self._pacing.step_s = self._pace.step_s()
            self._pacing.wait(self._is_over)
        self._meter.step()
        self._step += 1
        self._launch_steps += 1
        if self._launch_steps == 1 or time.monotonic() - self._logged_s >= PROGRESS_EVERY_S:
            self._log_progress()

    def _close(self, event: str, epochs: Epochs[Batch], **more: object) -> None:
        """Log the last step, save what is not saved, then log how the launch ended."""
        if self._launch_steps and self._logged_step != self._step:
            self._log_progress()
        if self._launch_steps and (self._saved_step or 0) < self._step:
            self._checkpoint(epochs)
        self._saved_step = self._gang.part(self._step, self._saved_step)
        self._log_event(event, **more)

    def _checkpoint(self, epochs: Epochs[Batch]) -> None:
        """Save the state if this rank does so for its gang; a full disk only warns."""
        if self._store is None or not self._gang.leads:
            return

        # 1. Save it.
        began_s = time.monotonic()
        position = Position(self._step, epochs.epoch, epochs.batch, self._loss())
        try:
            with self._gang.saving():
                self._store.save(position, self._work.save)
            self._saved_step = self._step
        except Exception as error:
            if not is_disk_full(error):  # libraries wrap the disk's error in their own
                raise
            stands = f"the one of step {self._saved_step} is kept"
            self._warn(f"no room for the checkpoint of step {self._step}, {stands}: {error}")
        else:
            self._log_event("checkpoint", checkpoint_s=time.monotonic() - began_s)

        # 2. Its time is no part of a step.
        self._saved_s = time.monotonic()
        self._meter.pause(self._saved_s - began_s)
        if self._pacing:
            self._pacing.shift(self._saved_s - began_s)

    def _loss(self) -> float | None:
        """Return the newest loss, None before there is one; update the metrics."""
        if self._work.ask:
            self.metrics.update(self._work.ask())
        if "loss" not in self.metrics:
            return None
        return float(self.metrics["loss"])

    def _log_progress(self) -> None:
        self._logged_s = time.monotonic()
        self._logged_step = self._step
        self._log_event("progress")

    def _log_event(self, event: str, **more: object) -> None:
        """Write an event with the launch's figures, and with `more` fields."""
        if not self._log.is_open:
            return
        loss = self._loss()
        metrics = {name: float(value) for name, value in self.metrics.items() if name != "loss"}
        if metrics:
            more = {"metrics": metrics, **more}
        self._log.write(
            event,
            step=self._step,
            launch_steps=self._launch_steps,
            elapsed_s=self._meter.elapsed_s,
            steps_per_s=self._meter.steps_per_s,
            loss=loss,
            overrun_fraction=self._pacing.overrun_fraction if self._pacing else None,
            saved_step=self._saved_step,
            **more,
        )

    def _fell(self, reason: str) -> None:
        """Write the launch's last word once the gang is broken, from whichever thread."""
        log = ProgressLog(self._run_dir)
        log.write("fell", step=self._step, launch_steps=self._launch_steps, reason=reason)
        log.close()

    def _warn(self, message: str) -> None:
        say(f"loadmaster: {message}")
        self._log_event("warning", message=message)
