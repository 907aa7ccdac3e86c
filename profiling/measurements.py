"""Measurements of kinds from an assignment's samples."""

from collections import defaultdict
from collections.abc import Mapping
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
"""Fraction of late steps of an emulated device above which its speed is meaningless."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a launch used: mean cores, peak memory, mean use and watts of a GPU.

    None: unmeasured.
    """

    cores: float | None = None
    memory_gb: float | None = None
    gpu_fraction: float | None = None
    gpu_w: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurement of a kind on one configuration by one launch.

    `spread`: over several nodes. `by_steps`: False if the launch reported no steps, so that the
    speed is that of its whole run.
    """

    gpu_type_id: int
    gpus: int
    spread: bool
    pace: Pace
    usage: Usage
    setup_s: float | None
    by_steps: bool = True


def observe(assignment: Assignment, after: int = 0) -> Observation | None:
    """Return the measurement by rank 0 `after` so many steps; None without progress or GPUs."""
    observed_pace = _pace(assignment, after)
    configuration = _configuration(assignment)
    if observed_pace is None or configuration is None:
        return None
    setup_s = None
    if not after:
        setup_s = assignment.setup_s  # learnt once for each launch
    gpu_type_id, gpus, spread = configuration
    return Observation(gpu_type_id, gpus, spread, observed_pace, _usage(assignment), setup_s)


def observe_whole_run(assignment: Assignment) -> Observation | None:
    """Return total steps over run time, for a launch that succeeded and never reported a step."""
    # 1. Launches of another sort tell nothing.
    began = assignment.running_at or assignment.accepted_at
    ended = assignment.ended_at
    succeeded = assignment.state == AssignmentState.SUCCEEDED and assignment.desired == "run"
    is_whole = _has_whole_devices(assignment) and assignment.steps_quota is None
    is_silent = assignment.steps_done == 0 and not assignment.progress.exists()
    if not (succeeded and is_whole and is_silent and is_training(assignment) and began and ended):
        return None
    configuration = _configuration(assignment)
    if configuration is None:
        return None

    # 2. All of the job's steps were done in this run.
    steps = assignment.job.total_steps
    run_s = max(SHORTEST_RUN_S, (ended - began).total_seconds())
    mean_pace = Pace(steps / run_s, steps, 0.0)
    gpu_type_id, gpus, spread = configuration
    return Observation(
        gpu_type_id, gpus, spread, mean_pace, _usage(assignment), setup_s=None, by_steps=False
    )


def steps_measured(assignment: Assignment) -> int:
    """Return the steps of a launch that measurements have used."""
    measurements = Measurement.objects.filter(assignment=assignment)
    return measurements.aggregate(total=Sum("steps"))["total"] or 0


def is_telling(observation: Observation, assignment: Assignment, least: int = MIN_STEPS) -> bool:
    """Return True if an observation of production is long, steady and of whole devices.

    `least`: fewest steps.
    """
    is_steady = observation.pace.spread <= NOISY and (assignment.overrun_fraction or 0.0) <= OVERRUN
    is_long = observation.pace.steps >= least
    return _has_whole_devices(assignment) and is_steady and is_long


def least_steps(kind_id: int, observation: Observation) -> int:
    """Return the fewest steps by which production may change the speed of the configuration."""
    measured = Profile.objects.filter(
        kind=kind_id,
        gpu_type=observation.gpu_type_id,
        gpus=observation.gpus,
        spread=observation.spread,
        source=Source.MEASURED,
    )
    return MIN_STEPS if measured.exists() else FIRST_STEPS


def _has_whole_devices(assignment: Assignment) -> bool:
    """Return True if the launch shares no GPU and its cores are not limited."""
    return assignment.share >= 1.0 and assignment.cpu_quota is None


class Learnt(NamedTuple):
    """Effect of a measurement: steps/s `before` it (None: unknown); `held`: it changed nothing."""

    before: float | None
    held: bool = False


def record(kind: Kind, observation: Observation, assignment: Assignment) -> Learnt:
    """Write the measurement and update a locked kind's profile, unless it is an outlier.

    Speeds of whole runs count until a job of the kind reports steps. They are never outliers, as
    the agent measured the run time.
    """
    # 1. The profile, and its speed until now.
    _set_reports_steps(kind, by_steps=observation.by_steps)
    configuration: dict[str, Any] = {
        "kind": kind,
        "gpu_type_id": observation.gpu_type_id,
        "gpus": observation.gpus,
        "spread": observation.spread,
    }
    speed = observation.pace.steps_per_s
    profile, created = Profile.objects.get_or_create(
        **configuration, defaults={"steps_per_s": speed, "source": Source.MEASURED}
    )
    before = None
    if not created and profile.source != Source.ASSUMED:
        before = profile.steps_per_s

    # 2. The measurement. An outlier is held until another launch confirms it.
    far = observation.by_steps and is_far(speed, profile, assignment)
    held = far and not is_confirmed(speed, profile, assignment)
    Measurement.objects.create(
        **configuration,
        assignment=assignment,
        purpose=assignment.purpose,
        steps=observation.pace.steps,
        steps_per_s=speed,
        held=held,
    )
    if held:
        return Learnt(before, held=True)

    # 3. The profile moves towards it, or begins anew with it.
    is_new = created or far or profile.published or profile.source != Source.MEASURED
    alpha = 1.0 if is_new else weight_of_next(profile.samples)
    profile.steps_per_s += alpha * (speed - profile.steps_per_s)
    profile.samples = 1 if is_new else profile.samples + 1
    profile.source = Source.MEASURED
    profile.published = False
    for name in ("cores", "memory_gb", "gpu_fraction", "gpu_w"):
        used = getattr(observation.usage, name)
        setattr(profile, name, smoothed(getattr(profile, name), used, alpha))
    profile.save()

    # 4. The time to the first step is that of the kind, on any configuration.
    if observation.setup_s is not None and observation.setup_s >= 0:
        kind.setup_s = smoothed(kind.setup_s, observation.setup_s, ALPHA)
        kind.save(update_fields=["setup_s"])
    return Learnt(before)


def _set_reports_steps(kind: Kind, *, by_steps: bool) -> None:
    """Note if jobs of the kind report steps; the first one to do so voids speeds of whole runs."""
    if kind.reports_steps == by_steps:
        return
    if kind.reports_steps is False:
        Profile.objects.filter(kind=kind).update(source=Source.ASSUMED, samples=0, published=False)
    kind.reports_steps = by_steps
    kind.save(update_fields=["reports_steps"])


def _pace(assignment: Assignment, after: int = 0) -> Pace | None:
    """Return the pace by samples; without enough of them by other figures of the launch.

    With `after`, only samples count, from so many steps after the warm-up on.
    """
    # 1. By samples.
    samples = assignment.progress.order_by("-id").values_list("launch_steps", "elapsed_s")
    if after:
        samples = samples.filter(launch_steps__gte=after + WARM_UP_STEPS)
    points = list(samples[:NEWEST_POINTS])
    sampled_pace = pace(points)
    if sampled_pace is not None or after:
        return sampled_pace

    # 2. By the recent speed that the agent reported.
    reported_steps = [launch_steps for launch_steps, _ in points]
    steps = max(0, assignment.steps_done - assignment.start_steps, *reported_steps)
    if assignment.steps_per_s and assignment.steps_per_s > 0:
        return Pace(assignment.steps_per_s, max(1, steps), 0.0)

    # 3. By the steps and the run time of a launch that succeeded.
    began = assignment.running_at
    ended = assignment.ended_at
    if steps and assignment.state == AssignmentState.SUCCEEDED and began and ended:
        stepping_s = (ended - began).total_seconds() - (assignment.setup_s or 0.0)
        if stepping_s > 0:
            return Pace(steps / stepping_s, steps, 0.0)
    return None


def _configuration(assignment: Assignment) -> tuple[int, int, bool] | None:
    """Return (GPU type, GPUs, spread over several nodes) of the whole gang; None without GPUs.

    A gang of several types is as fast as its slowest GPU: it measures the type of that one.
    """
    # 1. A gang of one process.
    if assignment.world_size <= 1:
        type_id = assignment.node.gpu_type_id
        if not type_id or not assignment.gpus:
            return None
        return type_id, assignment.gpus, False

    # 2. A gang of several.
    gang = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    ranks = list(gang.values_list("node_id", "node__gpu_type_id", "node__gpu_type__tflops", "gpus"))
    tflops_of = {type_id: tflops for _, type_id, tflops, gpus in ranks if type_id and gpus}
    if not tflops_of:
        return None
    all_gpus = sum(gpus for *_, gpus in ranks)
    slowest_type = _slowest_type(assignment.job.kind_id, tflops_of, all_gpus)
    nodes = {node for node, *_ in ranks}
    return slowest_type, all_gpus, len(nodes) > 1


def _slowest_type(kind_id: int | None, tflops_of: Mapping[int, float], gpus: int) -> int:
    """Return the one of these types on which the kind is slowest.

    Its profiles say so if every type has one for the same GPUs, best for as many as the gang has;
    else the type of fewest TFLOP/s counts. `tflops_of`: by GPU type.
    """
    if len(tflops_of) == 1:
        return next(iter(tflops_of))

    # 1. Speeds of the kind on these types, by number of GPUs and spread over nodes.
    speeds_by_size: dict[tuple[int, bool], dict[int, float]] = defaultdict(dict)
    profiles = Profile.objects.filter(kind=kind_id, gpu_type__in=tflops_of)
    for profile in profiles.order_by("gpus", "spread"):
        speeds = speeds_by_size[profile.gpus, profile.spread]
        speeds[profile.gpu_type_id] = profile.steps_per_s

    # 2. Of the sizes that all types have, the one most like the gang.
    speed_on: Mapping[int, float] = tflops_of
    least_difference = None
    for (size, spread), speeds in speeds_by_size.items():
        difference = (abs(size - gpus), not spread)
        is_nearer = least_difference is None or difference < least_difference
        if len(speeds) == len(tflops_of) and is_nearer:
            speed_on = speeds
            least_difference = difference
    return min(speed_on, key=lambda type_id: (speed_on[type_id], type_id))


def _usage(assignment: Assignment) -> Usage:
    """Return the resources that a launch used, by its newest samples."""
    points = list(assignment.usage.order_by("-id")[:NEWEST_POINTS])
    fractions = [point.gpu_fraction for point in points if point.gpu_fraction is not None]

    # Watts count only from a meter: modelled ones are the GPU type's own figures.
    metered = [point.gpu_power_w for point in points if point.power_source == Source.MEASURED]
    gpu_w = _mean([watts for watts in metered if watts is not None])
    if gpu_w is not None:
        gpu_w /= max(1, assignment.gpus)
    return Usage(
        cores=_mean([point.cores for point in points]),
        memory_gb=max((point.memory_gb for point in points), default=None),
        gpu_fraction=_mean(fractions),
        gpu_w=gpu_w,
    )


def _mean(values: list[float]) -> float | None:
    """Return the mean; None without values."""
    return sum(values) / len(values) if values else None


def is_training(assignment: Assignment) -> bool:
    """Return True for a training assignment of the rank that reports for its gang."""
    return assignment.purpose == Purpose.TRAINING and assignment.rank == 0
