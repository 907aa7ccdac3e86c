"""Progress and use of assignments: newest values in rows, samples thinned to one a second."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet, Value
from django.db.models.functions import Coalesce, Greatest, Least
from django.utils import timezone

from clusters.agent_errors import check_number, moment, stale_epoch
from clusters.models import Node
from clusters.plausible import CLOCK_S, Dropped, Machine, usage_samples
from clusters.services.implausible import note_dropped
from controlplane.execution.services.assignments import longest_s
from controlplane.execution.services.sessions import lock_own
from jobs.models import Assignment, Job, ProgressPoint, UsagePoint
from jobs.moves import note_job
from loadmaster.samples import MetricsBatch, ProgressSample, UsageSample
from profiling import reports
from profiling import services as profiling_services

APART = timedelta(seconds=1)
SAVED = "checkpoint"
STARTED = "start"
KEPT_EVENTS = frozenset({"start", "checkpoint", "preempted", "quota", "end"})
"""Kept beside other samples of the same second. A job writes them: it may send thousands."""

Sample = TypeVar("Sample", ProgressSample, UsageSample)


def record_metrics(node: Node, assignment_id: UUID, batch: MetricsBatch) -> bool:
    """Record a batch; False for a replay. Refused if epoch or fence are stale.

    A job's progress follows its newest training launch and falls only where that began earlier.
    """
    check_number("seq", batch.seq, 0, inf)
    now, dropped = timezone.now(), Dropped()
    if node.epoch != batch.epoch:
        raise stale_epoch(batch.epoch, node.epoch)
    with transaction.atomic():
        assignment = lock_own(node, assignment_id, batch.fence)
        newer = Assignment.objects.filter(
            pk=assignment.pk, epoch=batch.epoch, metrics_seq__lt=batch.seq
        )
        if not newer.update(metrics_seq=batch.seq):
            return False
        progress = _sensible(assignment, batch.progress, dropped)
        _count_from_first_step(assignment, progress)
        Assignment.objects.filter(pk=assignment.pk).update(**_newest(progress))
        _update_job(assignment, progress)
        _keep_progress(assignment, progress)
        _keep_usage(assignment, _plausible(assignment, batch.usage, now, dropped))
    note_dropped({node.pk: dropped} if dropped.figures else {}, now)
    _learn(assignment, progress)
    return True


def _sensible(
    assignment: Assignment, progress: Sequence[ProgressSample], dropped: Dropped
) -> Sequence[ProgressSample]:
    """Reports that make sense; the job's history says once a launch what was dropped, and why."""
    if not progress:
        return progress
    points = _before_now(ProgressPoint.objects.filter(assignment=assignment))
    newest = points.values_list("at", "step", "launch_steps", "elapsed_s").first()
    first = points.order_by("at").values_list("at", flat=True).first()
    now = timezone.now()
    had_s = longest_s(assignment, now) if assignment.accepted_at else None
    launch = reports.Launch(
        now_s=now.timestamp(),
        accepted_s=None if had_s is None else now.timestamp() - had_s,
        start_steps=assignment.start_steps,
        last=reports.Reached(newest[0].timestamp(), *newest[1:]) if newest else None,
        first_s=first.timestamp() if first else None,
    )
    checked = reports.check(progress, launch)
    for name, message in checked.messages.items():
        dropped.note(f"progress: {name}", 0.0)
        data = {"message": message, "fence": assignment.fence, "report": name}
        same = {"data__fence": assignment.fence, "data__report": name}
        if not assignment.job.events.filter(event="warning", **same).exists():
            note_job(assignment.job, "warning", data=data)
    return checked.samples


def _learn(assignment: Assignment, progress: Sequence[ProgressSample]) -> None:
    before = assignment.steps_done - assignment.start_steps
    now = max((sample.launch_steps for sample in progress), default=0)
    if assignment.purpose == "training" and not assignment.rank and now > before:
        profiling_services.progress_reported(assignment, max(0, before), now)


def _plausible(
    assignment: Assignment, usage: Sequence[UsageSample], now: datetime, dropped: Dropped
) -> Sequence[UsageSample]:
    """Samples of its use, bounded by what its node has."""
    node = assignment.node
    peak_w = node.gpu_type.peak_w if node.gpu_type else 0.0
    machine = Machine(peak_w, node.cores, node.memory_gb)
    return usage_samples(usage, machine, assignment.gpus, now.timestamp(), dropped)


def _count_from_first_step(assignment: Assignment, progress: Sequence[ProgressSample]) -> None:
    """Count a launch from its first reported step; note progress lost without a checkpoint."""
    start = next((sample for sample in progress if sample.event == STARTED), None)
    if start is None or assignment.purpose != "training" or assignment.rank:
        return
    if ProgressPoint.objects.filter(assignment=assignment, event=STARTED).exists():
        return  # a new session may send it again
    if start.step < assignment.start_steps:
        message = (
            f"began at step {start.step}; the checkpoint of step {assignment.start_steps} was not"
            f" found on {assignment.node.name}"
        )
        data = {"message": message, "fence": assignment.fence, "resumed": start.step}
        note_job(assignment.job, "progress_lost", data=data)
        Assignment.objects.filter(pk=assignment.pk).update(
            start_steps=start.step, steps_done=start.step, checkpoint_steps=start.step
        )
    _job_of_newest_launch(assignment).update(
        steps_done=Least(F("steps_done"), Value(start.step)),
        checkpoint_steps=Least(F("checkpoint_steps"), Value(start.step)),
    )


def _job_of_newest_launch(assignment: Assignment) -> QuerySet[Job]:
    relaunched = Assignment.objects.filter(
        job=OuterRef("pk"), purpose="training", fence__gt=assignment.fence
    )
    return Job.objects.filter(~Exists(relaunched), pk=assignment.job_id)


def _newest(progress: Sequence[ProgressSample]) -> dict[str, Any]:
    """Newest values of an assignment's columns; steps and checkpoints never fall."""
    values: dict[str, Any] = {}
    for name in ("steps_per_s", "loss", "setup_s", "overrun_fraction"):
        said = [getattr(sample, name) for sample in progress if getattr(sample, name) is not None]
        if said:
            values[name] = said[-1]
    if progress:
        values["steps_done"] = Greatest(F("steps_done"), Value(_furthest(progress)))
        values["checkpoint_steps"] = Greatest(F("checkpoint_steps"), Value(_saved(progress)))
    return values


def _update_job(assignment: Assignment, progress: Sequence[ProgressSample]) -> None:
    """Update the job's progress: steps of all ranks, loss of rank 0."""
    if not progress or assignment.purpose != "training":
        return
    losses = [sample.loss for sample in progress if sample.loss is not None]
    values: dict[str, Any] = {}
    if losses and not assignment.rank:
        first = Coalesce(F("first_loss"), Value(losses[0]))
        values = {"first_loss": first, "last_loss": losses[-1]}
    total = assignment.job.total_steps
    _job_of_newest_launch(assignment).update(
        steps_done=Greatest(F("steps_done"), Value(min(_furthest(progress), total))),
        checkpoint_steps=Greatest(F("checkpoint_steps"), Value(min(_saved(progress), total))),
        **values,
    )


def _furthest(progress: Sequence[ProgressSample]) -> int:
    return max(sample.step for sample in progress)


def _saved(progress: Sequence[ProgressSample]) -> int:
    return max((sample.step for sample in progress if sample.event == SAVED), default=0)


def _before_now(points: QuerySet[Any]) -> QuerySet[Any]:
    """Newest first, without those of a time when the server's own clock was ahead."""
    latest = timezone.now() + timedelta(seconds=CLOCK_S)
    return points.filter(at__lte=latest).order_by("-at", "-id")


def _last_at(points: QuerySet[Any]) -> datetime | None:
    return _before_now(points).values_list("at", flat=True).first()


def _keep_progress(assignment: Assignment, progress: Sequence[ProgressSample]) -> None:
    last = _last_at(ProgressPoint.objects.filter(assignment=assignment))
    ProgressPoint.objects.bulk_create(
        ProgressPoint(
            assignment=assignment,
            at=at,
            event=sample.event[:12],
            step=sample.step,
            launch_steps=sample.launch_steps,
            elapsed_s=sample.elapsed_s,
            steps_per_s=sample.steps_per_s,
            loss=sample.loss,
        )
        for at, sample in thinned(progress, last, lambda sample: sample.event)
    )


def _keep_usage(assignment: Assignment, usage: Sequence[UsageSample]) -> None:
    last = _last_at(UsagePoint.objects.filter(assignment=assignment))
    UsagePoint.objects.bulk_create(
        UsagePoint(
            assignment=assignment,
            at=at,
            cores=sample.cores,
            memory_gb=sample.memory_gb,
            gpu_fraction=sample.gpu_fraction,
            gpu_power_w=sample.gpu_power_w,
            power_source=sample.power_source[:10],
            throttled_cores=sample.throttled_cores,
            cores_limit=sample.cores_limit,
        )
        for at, sample in thinned(usage, last)
    )


def thinned(
    samples: Iterable[Sample], last: datetime | None, event: Callable[[Sample], str] = lambda _: ""
) -> list[tuple[datetime, Sample]]:
    """Thin samples to one a second after `last`, and those of each kept event by themselves."""
    kept: list[tuple[datetime, Sample]] = []
    newest: dict[str, datetime] = {}
    for sample in samples:
        at, name = moment("at_s", sample.at_s), event(sample)
        before = newest.get(name)
        is_told = name in KEPT_EVENTS and (before is None or at >= before + APART)
        if last is None or at >= last + APART or (is_told and at > last):
            kept.append((at, sample))
            last = newest[name] = at
    return kept
