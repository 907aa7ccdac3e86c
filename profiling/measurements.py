"""Measurements of kinds from an assignment's samples."""

from dataclasses import dataclass
from typing import Any

from jobs.models import Assignment, Kind
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Purpose, Source
from profiling.models import Measurement, Profile
from profiling.speeds import ALPHA, Pace, pace, weight_of_next

NEWEST_POINTS = 2000
"""Newest samples of a launch that are read: a job may run for days."""

MIN_STEPS = 5
"""Steps after the warm-up that a usable production run has."""

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
    """Measurement of a kind on one configuration by one launch."""

    gpu_type_id: int
    gpus: int
    spread: bool
    pace: Pace
    usage: Usage
    setup_s: float | None


def observe(assignment: Assignment) -> Observation | None:
    """Measurement by rank 0; None without progress or on GPUs of several types."""
    seen, where = _pace(assignment), _where(assignment)
    if seen is None or where is None:
        return None
    return Observation(*where, seen, _usage(assignment), assignment.setup_s)


def is_telling(observation: Observation, assignment: Assignment) -> bool:
    """Return True if production's observation is long, steady and of whole devices."""
    whole = assignment.share >= 1.0 and assignment.cpu_quota is None
    steady = observation.pace.spread <= NOISY and (assignment.overrun_fraction or 0.0) <= OVERRUN
    return whole and steady and observation.pace.steps >= MIN_STEPS


def record(
    kind: Kind, observation: Observation, assignment: Assignment
) -> tuple[float | None, float]:
    """Write the measurement and update a locked kind's profile: (speed before, speed now)."""
    where: dict[str, Any] = {
        "kind": kind, "gpu_type_id": observation.gpu_type_id, "gpus": observation.gpus,
        "spread": observation.spread,
    }  # fmt: skip
    steps, speed = observation.pace.steps, observation.pace.steps_per_s
    Measurement.objects.create(
        **where, assignment=assignment, purpose=assignment.purpose, steps=steps, steps_per_s=speed
    )
    profile, created = Profile.objects.get_or_create(
        **where, defaults={"steps_per_s": speed, "source": Source.MEASURED}
    )
    before = None if created else profile.steps_per_s
    fresh = created or profile.source != Source.MEASURED
    alpha = 1.0 if fresh else weight_of_next(profile.samples)
    profile.steps_per_s += alpha * (speed - profile.steps_per_s)
    profile.samples = 1 if fresh else profile.samples + 1
    profile.source = Source.MEASURED
    for name in ("cores", "memory_gb", "gpu_fraction", "gpu_w"):
        used = getattr(observation.usage, name)
        setattr(profile, name, _moved(getattr(profile, name), used, alpha))
    profile.save()
    if observation.setup_s is not None and observation.setup_s >= 0:
        kind.setup_s = _moved(kind.setup_s, observation.setup_s, ALPHA)
        kind.save(update_fields=["setup_s"])
    return before, profile.steps_per_s


def _moved(old: float | None, new: float | None, alpha: float) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return old + alpha * (new - old)


def _pace(assignment: Assignment) -> Pace | None:
    """Speed from samples; if too few, the launch's recent speed, else its steps over its time."""
    samples = assignment.progress.order_by("-id").values_list("launch_steps", "elapsed_s")
    points = list(samples[:NEWEST_POINTS])
    seen = pace(points)
    if seen is not None:
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
    """Return (GPU type, GPUs, spread over several nodes) of the whole gang."""
    if assignment.world_size <= 1:
        return assignment.node.gpu_type_id, assignment.gpus, False
    gang = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    ranks = list(gang.values_list("node_id", "node__gpu_type_id", "gpus"))
    nodes, types = {node for node, *_ in ranks}, {gpu_type for _, gpu_type, _ in ranks}
    if len(types) != 1:
        return None
    return types.pop(), sum(gpus for *_, gpus in ranks), len(nodes) > 1


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
