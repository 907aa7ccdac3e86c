"""The training iterator: wrap the loader of an ordinary training script, and the job can be
stopped, moved and resumed.

    for batch in loadmaster.training.steps(loader, save=save, load=load):
        loss = train_on(batch)
        loadmaster.training.report(loss=loss)

`steps` counts steps, writes the checkpoint every so often and when the job is pre-empted, resumes
at the batch after the newest whole checkpoint, tells the agent how it goes, and keeps the pace of
an emulated device. Without an agent it only counts (and writes checkpoints if it is given a
folder). What an agent sets in the environment goes before the arguments: they are what a plain
script wants, the agent knows what was asked of the job.
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
    """Yield the batches of `loader`, epoch after epoch, until the job's steps are done; one batch
    is one step.

    Args:
        loader: can be iterated once an epoch. If it has `set_epoch(epoch)`, that is called before
        each epoch; an order that
            depends on nothing but the epoch (and a seed) makes a resumed run use exactly the
            batches that are left.
        save: writes all state of the training (parameters, optimiser, random generators) to the
        path it is given. In a gang rank 0
            alone is asked to.
        load: reads it back; called before the first batch if there is a checkpoint, by every rank
        of a gang.
        total: steps in all, over every launch (LOADMASTER_STEPS goes before it); None is one pass
        over the loader.
        every_s: seconds between checkpoints (LOADMASTER_CHECKPOINT_EVERY_S goes before it), 30 by
        default.
        report: asked for the newest metrics whenever a line of progress is written; or call
        `report(loss=...)` in the loop.
        checkpoint_dir: where checkpoints go in a plain script (LOADMASTER_CHECKPOINT_DIR goes
        before it); None writes none.

    Raises:
        Preempted: a SystemExit of code 75, after the checkpoint was written.
        QuotaReached: a SystemExit of code 0, after the checkpoint was written.
        StaleFence: a SystemExit of code 76; a newer launch owns the checkpoints.
        GangBroken: a SystemExit of code 77; another rank of the gang was lost.
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
    folder = environment.checkpoint_dir or (
        Path(checkpoint_dir) if checkpoint_dir is not None else None
    )
    every_s = environment.checkpoint_every_s or every_s or CHECKPOINT_EVERY_S
    return Run(environment, Work(total, every_s, folder, save, load, report)).batches(loader)


def report(**metrics: SupportsFloat) -> None:
    """Record the step's metrics (`loss` above all) for the next line of progress; does nothing
    outside of `steps`.

    A value is turned into a float only when a line is written, so a tensor on a device costs no
    transfer in every step.
    """
    if Run.current is not None:
        Run.current.metrics.update(metrics)
