"""The training iterator: wrap the loader of an ordinary training script, and the job can be stopped, moved and resumed.

    for batch in loadmaster.training.steps(loader, save=save, load=load):
        loss = train_on(batch)
        loadmaster.training.report(loss=loss)

`steps` counts steps, writes the checkpoint every so often and when the job is pre-empted, resumes at the batch after the newest
whole checkpoint, tells the agent how it goes, and keeps the pace of an emulated device. Without an agent it only counts (and
writes checkpoints if it is given a folder). What an agent sets in the environment goes before the arguments: they are what a
plain script wants, the agent knows what was asked of the job.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import SupportsFloat, TypeVar

from loadmaster.checkpoints import CheckpointError, CheckpointStore, Position, StaleFence, is_disk_full
from loadmaster.emulation import PacingClock
from loadmaster.epochs import Epochs
from loadmaster.run_folder import JobEnvironment, JobEnvironmentError, PaceWatch, ProgressLog, TermWatch, process_age_s

__all__ = ["CheckpointError", "JobEnvironmentError", "Preempted", "QuotaReached", "StaleFence", "report", "steps"]

CHECKPOINT_EVERY_S = 30.0
PROGRESS_EVERY_S = 0.5
RECENT_STEPS = 32
EXIT_PREEMPTED = 75

Batch = TypeVar("Batch")
Metrics = Mapping[str, SupportsFloat]


class Preempted(SystemExit):
    """The job was asked to leave and its state is saved: the process ends with exit code 75, to be resumed elsewhere."""

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_PREEMPTED)
        self.reason = reason

    def __str__(self) -> str:
        return f"pre-empted ({self.reason})"


class QuotaReached(SystemExit):
    """This launch was given only so many steps and has done them: the process ends with exit code 0, the job is not done."""

    def __init__(self) -> None:
        super().__init__(0)

    def __str__(self) -> str:
        return "this launch's quota of steps is done"


def steps(
    loader: Iterable[Batch],
    *,
    save: Callable[[Path], object],
    load: Callable[[Path], object],
    total: int | None = None,
    every_s: float | None = None,
    report: Callable[[], Metrics] | None = None,
    checkpoint_dir: Path | str | None = None,
) -> Iterator[Batch]:
    """Yield the batches of `loader`, epoch after epoch, until the job's steps are done; one batch is one step.

    Args:
        loader: can be iterated once an epoch. If it has `set_epoch(epoch)`, that is called before each epoch; an order that
            depends on nothing but the epoch (and a seed) makes a resumed run use exactly the batches that are left.
        save: writes all state of the training (parameters, optimiser, random generators) to the path it is given.
        load: reads it back; called before the first batch if there is a checkpoint.
        total: steps in all, over every launch (LOADMASTER_STEPS goes before it); None is one pass over the loader.
        every_s: seconds between checkpoints (LOADMASTER_CHECKPOINT_EVERY_S goes before it), 30 by default.
        report: asked for the newest metrics whenever a line of progress is written; or call `report(loss=...)` in the loop.
        checkpoint_dir: where checkpoints go in a plain script (LOADMASTER_CHECKPOINT_DIR goes before it); None writes none.

    Raises:
        Preempted: a SystemExit of code 75, after the checkpoint was written.
        QuotaReached: a SystemExit of code 0, after the checkpoint was written.
        StaleFence: a SystemExit of code 76; a newer launch owns the checkpoints.
        CheckpointError: `save` wrote nothing, or the folder's manifest is damaged.
        JobEnvironmentError: a LOADMASTER_ variable or an argument that is no such number.
        ValueError: the loader yields no batches (an iterator that is used up after one epoch, say).
    """
    if total is not None and total < 0:
        raise ValueError(f"total must be 0 or more, not {total}")
    if every_s is not None and not every_s > 0:
        raise ValueError(f"every_s must be above 0, not {every_s}")
    environment = JobEnvironment.read()
    total = environment.steps if environment.steps is not None else total
    folder = environment.checkpoint_dir or (Path(checkpoint_dir) if checkpoint_dir is not None else None)
    run = _Run(environment, total, environment.checkpoint_every_s or every_s or CHECKPOINT_EVERY_S, folder, save, load, report)
    return run.batches(loader)


def report(**metrics: SupportsFloat) -> None:
    """Record the step's metrics (`loss` above all) for the next line of progress; does nothing outside of `steps`.

    A value is turned into a float only when a line is written, so a tensor on a device costs no transfer in every step.
    """
    if _Run.current is not None:
        _Run.current.metrics.update(metrics)


class _Meter:
    """Recent steps per second, from measured step times alone: pauses (set-up, checkpoints) are left out."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._mark_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def start(self) -> None:
        if self.first_s is None:
            self.first_s = self._mark_s = time.monotonic()

    def step(self) -> None:
        now_s = time.monotonic()
        self._recent.append(now_s - self._mark_s)
        self._mark_s = now_s

    def pause(self, seconds: float) -> None:
        self._mark_s += seconds

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self.first_s is None else time.monotonic() - self.first_s

    @property
    def steps_per_s(self) -> float | None:
        taken_s = sum(self._recent)
        return len(self._recent) / taken_s if taken_s > 0 else None


class _Run:
    """One launch of a job, from its first batch to its end."""

    current: "_Run | None" = None

    def __init__(
        self,
        environment: JobEnvironment,
        total: int | None,
        every_s: float,
        folder: Path | None,
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        ask: Callable[[], Metrics] | None,
    ) -> None:
        self.metrics: dict[str, SupportsFloat] = {}
        self._total = total
        self._quota = environment.steps_quota
        self._every_s = every_s
        self._save, self._load, self._ask = save, load, ask
        self._log = ProgressLog(environment.run_dir)
        self._term = TermWatch(environment.run_dir, environment.fence)
        self._store = CheckpointStore(folder, environment.fence, warn=self._warn) if folder else None
        self._pacing = PacingClock(environment.emulated_step_s) if environment.emulated_step_s else None
        self._pace = PaceWatch(environment.run_dir, environment.emulated_step_s or math.inf)
        self._meter = _Meter()
        self._step = self._launch_steps = 0
        self._told_step: int | None = None
        self._told_s = self._saved_s = 0.0

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches until the steps are done; everything that ends the launch early is raised from here."""
        leaving = False
        self._term.catch_sigterm()
        _Run.current = self
        try:
            epochs = Epochs(loader, self._resume(), again=self._total is not None or self._quota is not None)
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
            print(f"loadmaster: {leave}", file=sys.stderr, flush=True)
            raise
        finally:
            _Run.current = None
            self._term.release_sigterm(leaving=leaving)
            self._log.close()

    def _resume(self) -> Position:
        found = self._store.resume() if self._store else None
        if found is None:
            return Position()
        path, position = found
        self._load(path)
        self._step = position.step
        if position.loss is not None:
            self.metrics["loss"] = position.loss
        return position

    def _goes_on(self, epochs: Epochs[Batch]) -> bool:
        """At a step boundary: whether the job has another step to do; raises what ends the launch before the job is done."""
        if self._total is not None and self._step >= self._total:
            return False
        if self._quota is not None and self._launch_steps >= self._quota:
            self._close("quota", epochs)
            raise QuotaReached
        if reason := self._term.reason():
            self._close("preempted", epochs, reason=reason)
            raise Preempted(reason)
        if self._launch_steps and time.monotonic() - self._saved_s >= self._every_s:
            self._checkpoint(epochs)
        return True

    def _begin_step(self) -> None:
        if self._meter.first_s is None:
            self._tell("start", setup_s=process_age_s())
            self._meter.start()
            self._saved_s = time.monotonic()
            if self._pacing:
                self._pacing.start()

    def _end_step(self) -> None:
        if self._pacing:
            self._pacing.step_s = self._pace.step_s()
            self._pacing.wait(self._term.is_over)
        self._meter.step()
        self._step += 1
        self._launch_steps += 1
        if self._launch_steps == 1 or time.monotonic() - self._told_s >= PROGRESS_EVERY_S:
            self._tell_progress()

    def _close(self, event: str, epochs: Epochs[Batch], **more: object) -> None:
        """Tell the last step, save what is not saved, then tell how the launch ended."""
        if self._launch_steps and self._told_step != self._step:
            self._tell_progress()
        if self._launch_steps and (self._saved_step or 0) < self._step:
            self._checkpoint(epochs)
        self._tell(event, **more)

    def _checkpoint(self, epochs: Epochs[Batch]) -> None:
        if self._store is None:
            return
        began_s = time.monotonic()
        position = Position(self._step, epochs.epoch, epochs.batch, self._loss())
        try:
            self._store.save(position, self._save)
        except Exception as error:  # libraries wrap the disk's error in their own; whatever is not a full disk is raised again
            if not is_disk_full(error):
                raise
            self._warn(f"no room for the checkpoint of step {self._step}, the one of step {self._saved_step} stands: {error}")
        else:
            self._tell("checkpoint", checkpoint_s=time.monotonic() - began_s)
        self._pause(began_s)

    def _pause(self, began_s: float) -> None:
        """Leave the time since then out of the pace."""
        self._saved_s = time.monotonic()
        self._meter.pause(self._saved_s - began_s)
        if self._pacing:
            self._pacing.shift(self._saved_s - began_s)

    @property
    def _saved_step(self) -> int | None:
        return self._store.saved_step if self._store else None

    def _loss(self) -> float | None:
        if self._ask:
            self.metrics.update(self._ask())
        return float(self.metrics["loss"]) if "loss" in self.metrics else None

    def _tell_progress(self) -> None:
        self._told_s, self._told_step = time.monotonic(), self._step
        self._tell("progress")

    def _tell(self, event: str, **more: object) -> None:
        if not self._log.is_open:
            return
        loss = self._loss()
        others = {name: float(value) for name, value in self.metrics.items() if name != "loss"}
        self._log.write(
            event,
            step=self._step,
            launch_steps=self._launch_steps,
            elapsed_s=self._meter.elapsed_s,
            steps_per_s=self._meter.steps_per_s,
            loss=loss,
            overrun_fraction=self._pacing.overrun_fraction if self._pacing else None,
            saved_step=self._saved_step,
            **({"metrics": others} if others else {}),
            **more,
        )

    def _warn(self, message: str) -> None:
        print(f"loadmaster: {message}", file=sys.stderr, flush=True)
        self._tell("warning", message=message)
