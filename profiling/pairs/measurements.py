"""Measurements of pairs of kinds from two launches of one GPU each that shared it.

A measurement is made over the longest time in which exactly these two held the device and both
reported progress. It counts if both were steady and did MIN_STEPS steps or more. On an emulated
device the agent slows both clocks down while it is shared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from clusters.models import Device
from jobs.models import Assignment, AssignmentSlot, ProgressPoint
from jobs.moves import note_job
from loadmaster.protocol import OUT_OF_SHARED_MEMORY, ReasonClass
from policies.contract.snapshot import Source
from profiling.measurements import MIN_STEPS, NEWEST_POINTS, NOISY, OVERRUN
from profiling.models import PairMeasurement, PairProfile
from profiling.pairs import rows as pairs
from profiling.pairs.estimates import Rates, pair_rates
from profiling.pairs.outliers import is_confirmed, is_far
from profiling.runs import lock_kind
from profiling.selectors import speeds_alone
from profiling.speeds import Pace, moved, pace

PARTNERS_AT_ONCE = 10
"""Most launches beside which one is measured, the last to start; others when those end."""

TOGETHER = timedelta(seconds=5)
"""A launch that ended at most so long before another ran out of memory shared the GPU with it."""

Interval = tuple[datetime, datetime]
"""(begin, end)."""

Sample = tuple[datetime, int, float]
"""(time, steps of the launch, seconds since its first batch)."""


@dataclass(frozen=True, slots=True)
class PairObservation:
    """Paces of two launches beside each other; the first's kind has the lesser primary key."""

    first: Assignment
    second: Assignment
    paces: tuple[Pace, Pace]

    @property
    def kinds(self) -> tuple[int, int]:
        """Primary keys of both kinds."""
        return self.first.job.kind_id, self.second.job.kind_id

    @property
    def launches(self) -> tuple[Assignment, Assignment]:
        """Both launches."""
        return self.first, self.second

    @property
    def rates(self) -> Rates:
        """steps/s of both."""
        return self.paces[0].steps_per_s, self.paces[1].steps_per_s

    @property
    def steps(self) -> tuple[int, int]:
        """Counted steps of both."""
        return self.paces[0].steps, self.paces[1].steps


@dataclass(frozen=True, slots=True)
class Learnt:
    """Change by a pair measurement: steps/s known before (None: unknown), and measured."""

    known: Rates | None
    measured: Rates

    def deviates(self, by: float) -> bool:
        """Return True if one of the two deviates by more than this fraction, or was unknown."""
        if self.known is None or not all(self.known):
            return True
        ratios = [m / k for m, k in zip(self.measured, self.known, strict=True)]
        return any(abs(ratio - 1.0) > by for ratio in ratios)


def observe_pairs(assignment: Assignment) -> list[PairObservation]:
    """Return pair measurements of a launch with each that shared its GPU for long enough."""
    others = _others_on(_shared_device(assignment), assignment)
    observations = []
    for other in others[:PARTNERS_AT_ONCE]:
        observation = _observe(assignment, other, others)
        if observation is not None:
            observations.append(observation)
    return observations


def observe_pair(one: Assignment, other: Assignment) -> PairObservation | None:
    """Return the measurement of two launches; None if they did not share a GPU long enough."""
    others = _others_on(_shared_device(one), one)
    for partner in others:
        if partner.pk == other.pk:
            return _observe(one, partner, others)
    return None


def record_pair(observation: PairObservation) -> Learnt | None:
    """Write the measurement with both kinds locked, and update the pair's profile.

    Return None if it changes nothing: an outlier, or fewer than twice the steps of the last
    measurement by these launches.
    """
    # 1. The last measurement by these launches.
    for kind_id in sorted(set(observation.kinds)):
        lock_kind(kind_id)
    first, second = observation.kinds
    where = {
        "first_id": first,
        "second_id": second,
        "gpu_type_id": observation.first.node.gpu_type_id or 0,
    }
    launches = {"first_assignment": observation.first, "second_assignment": observation.second}
    last = PairMeasurement.objects.filter(**launches).order_by("-id").first()
    if last is not None and not _tells_more(observation, last):
        return None

    # 2. Write this one, with the estimate that it replaces. An outlier is held.
    profile = PairProfile.objects.filter(**where).first()
    is_measured = profile is not None and profile.source == Source.MEASURED
    estimate = None
    if not is_measured:
        estimate = _estimate(observation)
    far = is_far(observation.rates, profile, where, observation.launches)
    held = far and not is_confirmed(observation.rates, where, observation.launches)
    _write(where, launches, observation, estimate, held)
    if held:
        if last is None:
            _note_held(observation)
        return None

    # 3. Move the profile towards it, or begin anew.
    known = estimate
    if profile is None:
        profile = PairProfile(**where)
    else:
        known = (profile.first_steps_per_s, profile.second_steps_per_s)
    _update_profile(profile, observation, is_new=far or not is_measured)
    return Learnt(known, observation.rates)


def _note_held(observation: PairObservation) -> None:
    """Tell both jobs, once for each two launches, that their speeds wait for others."""
    for launch, rate in zip(observation.launches, observation.rates, strict=True):
        speed = f"{rate:.3g} steps/s beside another job on its GPU, far from what is known"
        message = f"{speed}: not taken until other launches show the like"
        note_job(launch.job, "warning", data={"message": message})


def record_impossible(assignment: Assignment) -> Learnt | None:
    """Record that two kinds cannot share a GPU, if memory ran out beside one other launch."""
    without_memory = assignment.reason.startswith(OUT_OF_SHARED_MEMORY)
    if assignment.reason_class != ReasonClass.GPU or not without_memory or not assignment.ended_at:
        return None
    since = assignment.ended_at - TOGETHER
    others = _others_on(_shared_device(assignment), assignment)
    partners = [other for other in others if other.ended_at is None or other.ended_at >= since]
    if len(partners) != 1:
        return None
    first, second = _in_order(assignment, partners[0])
    first_steps = max(0, first.steps_done - first.start_steps)
    second_steps = max(0, second.steps_done - second.start_steps)
    paces = (Pace(0.0, first_steps, 0.0), Pace(0.0, second_steps, 0.0))
    return record_pair(PairObservation(first, second, paces))


def _tells_more(observation: PairObservation, last: PairMeasurement) -> bool:
    """Return True for twice the steps, or for the first proof that the two do not fit."""
    if last.first_steps_per_s == 0.0:
        return False
    if not any(observation.rates):
        return True
    first_steps, second_steps = observation.steps
    return first_steps >= 2 * last.first_steps and second_steps >= 2 * last.second_steps


def _in_order(one: Assignment, other: Assignment) -> tuple[Assignment, Assignment]:
    """Return two launches in the order of their kinds."""
    first, second = sorted((one, other), key=lambda a: (a.job.kind_id, str(a.pk)))
    return first, second


def undisturbed(interval: Interval, others: Iterable[Interval]) -> Interval | None:
    """Return the longest part of an interval that touches no other, the first of equals."""
    begin, end = interval
    parts: list[Interval] = []
    for other_begin, other_end in sorted(others):
        if other_begin < end and other_end > begin:
            parts.append((begin, other_begin))
            begin = max(begin, other_end)
    parts.append((begin, end))
    longest = max(parts, key=lambda part: part[1] - part[0])
    return longest if longest[1] > longest[0] else None


def _shared_device(assignment: Assignment) -> Device | None:
    """Return the GPU that a launch shares; None if it has not exactly one, or cannot measure."""
    if assignment.share >= 1.0 or not _can_measure(assignment):
        return None
    slots = list(AssignmentSlot.objects.filter(assignment=assignment).select_related("device")[:2])
    return slots[0].device if len(slots) == 1 else None


def _can_measure(assignment: Assignment) -> bool:
    """Return True if the launch ran on one GPU, with all of its cores, and kept its pace."""
    is_single = assignment.world_size == 1 and assignment.gpus == 1
    has_all_cores = assignment.cpu_quota is None
    keeps_pace = (assignment.overrun_fraction or 0.0) <= OVERRUN
    return is_single and has_all_cores and keeps_pace and assignment.running_at is not None


def _others_on(device: Device | None, assignment: Assignment) -> list[Assignment]:
    """Return other launches that held the device meanwhile, the last to start first."""
    if device is None:
        return []
    begin, end = _time_on_device(assignment)
    not_over = Q(ended_at=None) | Q(ended_at__gt=begin)
    others = Assignment.objects.filter(not_over, node=device.node_id)
    others = others.filter(slots__device=device, accepted_at__lt=end).exclude(pk=assignment.pk)
    return list(others.select_related("job", "node").order_by("-accepted_at", "pk"))


def _time_on_device(assignment: Assignment) -> Interval:
    """Return the interval in which a launch may use the device, from acceptance to its end."""
    begin = assignment.accepted_at or assignment.created_at
    end = assignment.ended_at or timezone.now()
    return begin, end


def _observe(
    assignment: Assignment, other: Assignment, others: Iterable[Assignment]
) -> PairObservation | None:
    """Return the measurement of two launches on one device; None if they tell too little.

    `others`: all launches beside `assignment`.
    """
    # 1. The longest time in which both ran, and no third launch held the device.
    if not _can_measure(other) or assignment.running_at is None or other.running_at is None:
        return None
    _, end = _time_on_device(assignment)
    _, other_end = _time_on_device(other)
    both_ran = (max(assignment.running_at, other.running_at), min(end, other_end))
    third_launches = [_time_on_device(third) for third in others if third.pk != other.pk]
    two_alone = undisturbed(both_ran, third_launches)
    if two_alone is None:
        return None

    # 2. Their paces in that time.
    first, second = _in_order(assignment, other)
    paces = _paces(_samples(first, two_alone), _samples(second, two_alone))
    if paces is None:
        return None
    return PairObservation(first, second, paces)


def _samples(assignment: Assignment, interval: Interval) -> list[Sample]:
    """Return the newest progress samples of a launch in an interval."""
    points = ProgressPoint.objects.filter(assignment=assignment, at__range=interval)
    columns = points.order_by("-id").values_list("at", "launch_steps", "elapsed_s")
    return list(columns[:NEWEST_POINTS])


def _paces(first: Sequence[Sample], second: Sequence[Sample]) -> tuple[Pace, Pace] | None:
    """Return the paces of two launches in the time in which both reported; None if not steady."""
    if not first or not second:
        return None
    begin = max(min(first)[0], min(second)[0])
    end = min(max(first)[0], max(second)[0])
    paces = []
    for samples in (first, second):
        observed = pace(
            (steps, elapsed_s) for at, steps, elapsed_s in samples if begin <= at <= end
        )
        if observed is None or observed.steps < MIN_STEPS or observed.spread > NOISY:
            return None
        paces.append(observed)
    return paces[0], paces[1]


def _estimate(observation: PairObservation) -> Rates | None:
    """Return the estimated steps/s of the pair by what was measured before; None if unknown."""
    rows = pairs.load_pairs()
    gpu_type = observation.first.node.type_name
    types = {row.gpu_type for row in rows} | {gpu_type}
    speeds = speeds_alone(pairs.kinds_of(rows) | set(observation.kinds), types)
    book = pairs.book_of(rows, speeds.measured, observation.kinds)
    if book is None:
        return None
    first, second = map(str, observation.kinds)
    distinct_kinds = tuple(dict.fromkeys((first, second)))
    return pair_rates(book, distinct_kinds, speeds.believed).get((first, second, gpu_type))


def _write(
    where: dict[str, int],
    launches: dict[str, Assignment],
    observation: PairObservation,
    estimate: Rates | None,
    held: bool,
) -> None:
    """Write a measurement, in place of one by these launches over as many steps."""
    first_estimate, second_estimate = estimate or (None, None)
    first_rate, second_rate = observation.rates
    first_steps, second_steps = observation.steps
    values = {
        "first_steps_per_s": first_rate,
        "second_steps_per_s": second_rate,
        "estimated_first_steps_per_s": first_estimate,
        "estimated_second_steps_per_s": second_estimate,
        "held": held,
    }
    key = {**launches, "first_steps": first_steps, "second_steps": second_steps}
    if not PairMeasurement.objects.filter(**key).update(**where, **values):
        PairMeasurement.objects.create(**key, **where, **values)


def _update_profile(profile: PairProfile, observation: PairObservation, *, is_new: bool) -> None:
    """Move a pair's speeds towards the measured ones; `is_new`: replace them."""
    samples = profile.samples
    if is_new or not any(observation.rates):
        samples = 0
    first_rate, second_rate = observation.rates
    profile.first_steps_per_s = moved(profile.first_steps_per_s or 0.0, first_rate, samples)
    profile.second_steps_per_s = moved(profile.second_steps_per_s or 0.0, second_rate, samples)
    profile.samples = samples + 1
    profile.source = Source.MEASURED
    profile.save()
