"""Measurements of kinds from an assignment's samples."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Sum

from jobs.models import Assignment, Kind
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Purpose, Source
from profiling.models import Measurement, Profile
from profiling.outliers import is_confirmed, is_far
from profiling.speeds import (
    ALPHA,
    FIRST_STEPS,
    WARM_UP_STEPS,
    Pace,
    pace,
    smoothed,
    weight_of_next,
)

NEWEST_POINTS = 2000
"""Newest samples of a launch that are read: a job may run for days."""

MIN_STEPS = 5
"""Steps after the warm-up that a usable production run has."""

SHORTEST_RUN_S = 0.1
"""Least time that a run without reports counts as: shorter ones are noise of the reports."""

NOISY = 0.5
"""Relative interquartile range of step times above which a production run is ignored."""

OVERRUN = 0.2
"""Fraction of an emulated device's late steps above which its speed is meaningless."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a launch: mean cores, peak memory, use and watts of a GPU; None if unmeasured."""

    cores: float | None = None
    memory_gb: float | None = None
    gpu_fraction: float | None = None
    gpu_w: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurement of a kind on one configuration by one launch; `by_steps`: by reported ones."""

    gpu_type_id: int
    gpus: int
    spread: bool
    pace: Pace
    usage: Usage
    setup_s: float | None
    by_steps: bool = True


def observe(assignment: Assignment, after: int = 0) -> Observation | None:
    """Measurement by rank 0 after these steps; None without progress or GPUs."""
    seen, where = _pace(assignment, after), _where(assignment)
    if seen is None or where is None:
        return None
    setup_s = None if after else assignment.setup_s  # once for each launch
    return Observation(*where, seen, _usage(assignment), setup_s)


def observe_whole_run(assignment: Assignment) -> Observation | None:
    """Total steps over the run time of a launch that succeeded and never reported a step."""
    began, ended = assignment.running_at or assignment.accepted_at, assignment.ended_at
    succeeded = assignment.state == AssignmentState.SUCCEEDED and assignment.desired == "run"
    whole = _has_whole_devices(assignment) and assignment.steps_quota is None
    silent = assignment.steps_done == 0 and not assignment.progress.exists()
    if not (succeeded and whole and silent and is_training(assignment) and began and ended):
        return None
    where, steps = _where(assignment), assignment.job.total_steps
    run_s = max(SHORTEST_RUN_S, (ended - began).total_seconds())
    seen = Pace(steps / run_s, steps, 0.0)
    return where and Observation(*where, seen, _usage(assignment), None, by_steps=False)


def steps_measured(assignment: Assignment) -> int:
    """Steps of a launch that measurements rest on."""
    made = Measurement.objects.filter(assignment=assignment)
    return made.aggregate(total=Sum("steps"))["total"] or 0


def is_telling(observation: Observation, assignment: Assignment, least: int = MIN_STEPS) -> bool:
    """Return True if production's observation is long, steady and of whole devices."""
    whole = _has_whole_devices(assignment)
    steady = observation.pace.spread <= NOISY and (assignment.overrun_fraction or 0.0) <= OVERRUN
    return whole and steady and observation.pace.steps >= least


def least_steps(kind_id: int, observation: Observation) -> int:
    """Fewest steps by which production may change what is known of the configuration."""
    known = Profile.objects.filter(
        kind=kind_id, gpu_type=observation.gpu_type_id, gpus=observation.gpus,
        spread=observation.spread, source=Source.MEASURED,
    )  # fmt: skip
    return MIN_STEPS if known.exists() else FIRST_STEPS


def _has_whole_devices(assignment: Assignment) -> bool:
    return assignment.share >= 1.0 and assignment.cpu_quota is None


class Learnt(NamedTuple):
    """Number of a configuration before a measurement (None: unknown), and whether that is held."""

    before: float | None
    held: bool = False


def record(kind: Kind, observation: Observation, assignment: Assignment) -> Learnt:
    """Write the measurement and update a locked kind's profile, unless it is an outlier.

    Run times count until a job reports steps. They are no outliers: agents take them.
    """
    _keep_apart(kind, by_steps=observation.by_steps)
    where: dict[str, Any] = {
        "kind": kind, "gpu_type_id": observation.gpu_type_id, "gpus": observation.gpus,
        "spread": observation.spread,
    }  # fmt: skip
    steps, speed = observation.pace.steps, observation.pace.steps_per_s
    profile, created = Profile.objects.get_or_create(
        **where, defaults={"steps_per_s": speed, "source": Source.MEASURED}
    )
    before = None if created or profile.source == Source.ASSUMED else profile.steps_per_s
    far = observation.by_steps and is_far(speed, profile, assignment)
    held = far and not is_confirmed(speed, profile, assignment)
    Measurement.objects.create(
        **where, assignment=assignment, purpose=assignment.purpose, steps=steps,
        steps_per_s=speed, held=held,
    )  # fmt: skip
    if held:
        return Learnt(before, held=True)
    fresh = created or far or profile.published or profile.source != Source.MEASURED
    alpha = 1.0 if fresh else weight_of_next(profile.samples)
    profile.steps_per_s += alpha * (speed - profile.steps_per_s)
    profile.samples = 1 if fresh else profile.samples + 1
    profile.source, profile.published = Source.MEASURED, False
    for name in ("cores", "memory_gb", "gpu_fraction", "gpu_w"):
        used = getattr(observation.usage, name)
        setattr(profile, name, smoothed(getattr(profile, name), used, alpha))
    profile.save()
    if observation.setup_s is not None and observation.setup_s >= 0:
        kind.setup_s = smoothed(kind.setup_s, observation.setup_s, ALPHA)
        kind.save(update_fields=["setup_s"])
    return Learnt(before)


def _keep_apart(kind: Kind, *, by_steps: bool) -> None:
    """Note whether the kind's speed is that of steps; figures of run times are then unknown."""
    if kind.reports_steps == by_steps:
        return
    if kind.reports_steps is False:
        Profile.objects.filter(kind=kind).update(source=Source.ASSUMED, samples=0, published=False)
    kind.reports_steps = by_steps
    kind.save(update_fields=["reports_steps"])


def _pace(assignment: Assignment, after: int = 0) -> Pace | None:
    """Speed from samples; if too few, the launch's recent speed, else its steps over its time.

    With `after` only from samples, the first one this many steps after the warm-up.
    """
    samples = assignment.progress.order_by("-id").values_list("launch_steps", "elapsed_s")
    if after:
        samples = samples.filter(launch_steps__gte=after + WARM_UP_STEPS)
    points = list(samples[:NEWEST_POINTS])
    seen = pace(points)
    if seen is not None or after:
        return seen
    steps = max(assignment.steps_done - assignment.start_steps, *(s for s, _ in points), 0)
    if assignment.steps_per_s and assignment.steps_per_s > 0:
        return Pace(assignment.steps_per_s, max(1, steps), 0.0)
    began, ended = assignment.running_at, assignment.ended_at
    if steps and assignment.state == AssignmentState.SUCCEEDED and began and ended:
        taken_s = (ended - began).total_seconds() - (assignment.setup_s or 0.0)
        return Pace(steps / taken_s, steps, 0.0) if taken_s > 0 else None
    return None


def _where(assignment: Assignment) -> tuple[int, int, bool] | None:
    """Return (GPU type, GPUs, spread over several nodes) of the whole gang; None without GPUs.

    A gang of several types is as fast as its slowest GPU: it measures the type of fewest TFLOP/s.
    """
    if assignment.world_size <= 1:
        type_id = assignment.node.gpu_type_id
        return (type_id, assignment.gpus, False) if type_id and assignment.gpus else None
    gang = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    ranks = list(gang.values_list("node_id", "node__gpu_type_id", "node__gpu_type__tflops", "gpus"))
    nodes = {node for node, *_ in ranks}
    types = sorted({(tflops, type_id) for _, type_id, tflops, gpus in ranks if type_id and gpus})
    if not types:
        return None
    _, slowest = types[0]
    return slowest, sum(gpus for *_, gpus in ranks), len(nodes) > 1


def _usage(assignment: Assignment) -> Usage:
    points = list(assignment.usage.order_by("-id")[:NEWEST_POINTS])
    fractions = [p.gpu_fraction for p in points if p.gpu_fraction is not None]
    # Modelled watts are made from the GPU type's figures: learning them back would pass a guess off
    # as knowledge.
    metered = [p.gpu_power_w for p in points if p.power_source == Source.MEASURED]
    gpu_w = _mean([w for w in metered if w is not None])
    return Usage(
        cores=_mean([p.cores for p in points]),
        memory_gb=max((p.memory_gb for p in points), default=None),
        gpu_fraction=_mean(fractions),
        gpu_w=None if gpu_w is None else gpu_w / max(1, assignment.gpus),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def is_training(assignment: Assignment) -> bool:
    """Return True for a training assignment of the rank that reports for its gang."""
    return assignment.purpose == Purpose.TRAINING and assignment.rank == 0
