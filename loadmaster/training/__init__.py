"""Training iterator: a script's loader wrapped in it can be stopped, moved and resumed.

    for batch in loadmaster.training.steps(loader, save=save, load=load):
        loss = train_on(batch)
        loadmaster.training.report(loss=loss)

Without an agent it counts, and writes checkpoints if it is given a folder. Variables that an agent
sets go before the arguments.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import SupportsFloat, TypeVar

from loadmaster.training.checkpoints import CheckpointError, StaleFence
from loadmaster.training.gangs import GangBroken
from loadmaster.training.launch_run import Metrics, Preempted, QuotaReached, Run, Work
from loadmaster.training.run_folder import JobEnvironment, JobEnvironmentError

__all__ = [
    "CheckpointError",
    "GangBroken",
    "JobEnvironmentError",
    "Preempted",
    "QuotaReached",
    "StaleFence",
    "report",
    "steps",
]

CHECKPOINT_EVERY_S = 30.0

Batch = TypeVar("Batch")


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
    """Yield the batches of `loader`, epoch after epoch, until the job's steps are done.

    One batch is one step.

    Args:
        loader: can be iterated once an epoch; its `set_epoch(epoch)`, if any, is called before.
            If its order depends on epoch and seed alone, a resumed run uses the very batches left.
        save: writes all state (parameters, optimiser, generators) to a path; in a gang on rank 0.
        load: reads it back before the first batch if there is a checkpoint; on every rank.
        total: steps over all launches (LOADMASTER_STEPS); None is one pass over the loader.
        every_s: seconds between checkpoints (LOADMASTER_CHECKPOINT_EVERY_S), 30 by default.
        report: called for the newest metrics whenever a line of progress is written.
        checkpoint_dir: folder of checkpoints (LOADMASTER_CHECKPOINT_DIR); None writes none.

    Raises:
        Preempted: a SystemExit of code 75, after the checkpoint was written.
        QuotaReached: a SystemExit of code 0, after the checkpoint was written.
        StaleFence: a SystemExit of code 76; a newer launch owns the checkpoints.
        GangBroken: a SystemExit of code 77; another rank of the gang was lost.
        CheckpointError: `save` wrote nothing, or the folder's manifest is damaged.
        JobEnvironmentError: a LOADMASTER_ variable or an argument that is no such number.
        ValueError: the loader yields no batches (an iterator used up after one epoch, say).
    """
    if total is not None and total < 0:
        raise ValueError(f"total must be 0 or more, not {total}")
    if every_s is not None and not every_s > 0:
        raise ValueError(f"every_s must be above 0, not {every_s}")
    environment = JobEnvironment.read()
    total = environment.steps if environment.steps is not None else total
    given = None if checkpoint_dir is None else Path(checkpoint_dir)
    folder = environment.checkpoint_dir or given
    every_s = environment.checkpoint_every_s or every_s or CHECKPOINT_EVERY_S
    return Run(environment, Work(total, every_s, folder, save, load, report)).batches(loader)


def report(**metrics: SupportsFloat) -> None:
    """Record metrics (`loss` above all) for the next line of progress; a no-op outside of `steps`.

    A value becomes a float only when a line is written: a tensor costs no transfer in every step.
    """
    if Run.current is not None:
        Run.current.metrics.update(metrics)
