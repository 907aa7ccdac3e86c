"""Measurements of pairs of kinds from two launches of one GPU each that shared it.

Counted is the longest time in which exactly these two held the device and both reported progress,
if steady and with five steps or more of each. On an emulated device the agent slows both clocks
down while it is shared.
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
"""Most launches beside which one is measured, the last to start; the rest when those end."""

TOGETHER = timedelta(seconds=5)
"""Launches that end within this time, one out of memory, shared the device until then."""

Interval = tuple[datetime, datetime]
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
        return self.first.job.kind_id, self.second.job.kind_id

    @property
    def launches(self) -> tuple[Assignment, Assignment]:
        return self.first, self.second

    @property
    def rates(self) -> Rates:
        """steps/s of each."""
        return self.paces[0].steps_per_s, self.paces[1].steps_per_s

    @property
    def steps(self) -> tuple[int, int]:
        """Counted steps of each."""
        return self.paces[0].steps, self.paces[1].steps


@dataclass(frozen=True, slots=True)
class Learnt:
    """Change by a pair measurement: steps/s before (None: unknown), and measured."""

    believed: Rates | None
    measured: Rates

    def deviates(self, by: float) -> bool:
        """Return True if one of the two deviates by more than this fraction, or was unknown."""
        if self.believed is None or not all(self.believed):
            return True
        return any(abs(m / b - 1.0) > by for m, b in zip(self.measured, self.believed, strict=True))


def observe_pairs(assignment: Assignment) -> list[PairObservation]:
    """Pair measurements of a launch with each that shared its GPU; empty if too short."""
    others = _others_on(_shared_device(assignment), assignment)
    found = [_observed(assignment, other, others) for other in others[:PARTNERS_AT_ONCE]]
    return [seen for seen in found if seen is not None]


def observe_pair(one: Assignment, other: Assignment) -> PairObservation | None:
    """Pair measurement of two launches, however short; None if they did not share a GPU."""
    others = _others_on(_shared_device(one), one)
    partner = next((a for a in others if a.pk == other.pk), None)
    return None if partner is None else _observed(one, partner, others)


def record_pair(seen: PairObservation) -> Learnt | None:
    """Record the measurement with both kinds locked.

    None if it changes nothing: an outlier, or fewer than twice the steps of both.
    """
    for kind in sorted(set(seen.kinds)):
        lock_kind(kind)
    first, second = seen.kinds
    where = {
        "first_id": first,
        "second_id": second,
        "gpu_type_id": seen.first.node.gpu_type_id or 0,
    }
    launches = {"first_assignment": seen.first, "second_assignment": seen.second}
    last = PairMeasurement.objects.filter(**launches).order_by("-id").first()
    if last is not None and not _tells_more(seen, last):
        return None
    profile = PairProfile.objects.filter(**where).first()
    known = profile is not None and profile.source == Source.MEASURED
    guess = None if known else _estimate(seen)
    far = is_far(seen.rates, profile, where, seen.launches)
    held = far and not is_confirmed(seen.rates, where, seen.launches)
    _write(where, launches, seen, guess, held)
    if held:
        if last is None:
            _note_held(seen)
        return None
    before = (profile.first_steps_per_s, profile.second_steps_per_s) if profile else guess
    _move(profile or PairProfile(**where), seen, fresh=far or not known)
    return Learnt(before, seen.rates)


def _note_held(seen: PairObservation) -> None:
    """Tell both jobs, once for each two launches, that their speeds wait for others."""
    for launch, rate in zip(seen.launches, seen.rates, strict=True):
        did = f"{rate:.3g} steps/s beside another job on its GPU, far from what is known"
        message = f"{did}: not taken until other launches show the like"
        note_job(launch.job, "warning", data={"message": message})


def record_impossible(assignment: Assignment) -> Learnt | None:
    """Record that two kinds cannot share a GPU, if memory ran out beside one other launch."""
    without_memory = assignment.reason.startswith(OUT_OF_SHARED_MEMORY)
    if assignment.reason_class != ReasonClass.GPU or not without_memory or not assignment.ended_at:
        return None
    since = assignment.ended_at - TOGETHER
    others = _others_on(_shared_device(assignment), assignment)
    there = [a for a in others if a.ended_at is None or a.ended_at >= since]
    if len(there) != 1:
        return None
    first, second = _in_order(assignment, there[0])
    one, two = (Pace(0.0, max(0, a.steps_done - a.start_steps), 0.0) for a in (first, second))
    return record_pair(PairObservation(first, second, (one, two)))


def _tells_more(seen: PairObservation, last: PairMeasurement) -> bool:
    """Return True for a new launch pair, twice the steps, or proof that they do not fit."""
    if last.first_steps_per_s == 0.0:
        return False
    return not any(seen.rates) or (
        seen.steps[0] >= 2 * last.first_steps and seen.steps[1] >= 2 * last.second_steps
    )


def _in_order(one: Assignment, other: Assignment) -> tuple[Assignment, Assignment]:
    first, second = sorted((one, other), key=lambda a: (a.job.kind_id, str(a.pk)))
    return first, second


def undisturbed(both: Interval, others: Iterable[Interval]) -> Interval | None:
    """Longest part of an interval that touches no other, first on ties; else None."""
    begin, end = both
    parts: list[Interval] = []
    for since, until in sorted(others):
        if since < end and until > begin:
            parts.append((begin, since))
            begin = max(begin, until)
    parts.append((begin, end))
    longest = max(parts, key=lambda part: part[1] - part[0])
    return longest if longest[1] > longest[0] else None


def _shared_device(assignment: Assignment) -> Device | None:
    """GPU that the launch shares; None if exclusive, several, or with a CPU quota."""
    if assignment.share >= 1.0 or not _can_tell(assignment):
        return None
    slots = list(AssignmentSlot.objects.filter(assignment=assignment).select_related("device")[:2])
    return slots[0].device if len(slots) == 1 else None


def _can_tell(assignment: Assignment) -> bool:
    whole = assignment.world_size == 1 and assignment.gpus == 1 and assignment.cpu_quota is None
    paced = (assignment.overrun_fraction or 0.0) <= OVERRUN
    return whole and assignment.running_at is not None and paced


def _others_on(device: Device | None, assignment: Assignment) -> list[Assignment]:
    """Other launches that held the device meanwhile, the last to start first."""
    if device is None:
        return []
    since, until = _held(assignment)
    here = Assignment.objects.filter(Q(ended_at=None) | Q(ended_at__gt=since), node=device.node_id)
    held = here.filter(slots__device=device, accepted_at__lt=until)
    others = held.exclude(pk=assignment.pk)
    return list(others.select_related("job", "node").order_by("-accepted_at", "pk"))


def _held(assignment: Assignment) -> Interval:
    """Interval from its acceptance, when it may begin to fill the device, to its end."""
    return assignment.accepted_at or assignment.created_at, assignment.ended_at or timezone.now()


def _observed(
    assignment: Assignment, other: Assignment, others: Iterable[Assignment]
) -> PairObservation | None:
    if not _can_tell(other) or assignment.running_at is None or other.running_at is None:
        return None
    until = min(_held(assignment)[1], _held(other)[1])
    both = max(assignment.running_at, other.running_at), until
    alone = undisturbed(both, (_held(a) for a in others if a.pk != other.pk))
    if alone is None:
        return None
    first, second = _in_order(assignment, other)
    paces = _paces(_samples(first, alone), _samples(second, alone))
    return None if paces is None else PairObservation(first, second, paces)


def _samples(assignment: Assignment, within: Interval) -> list[Sample]:
    points = ProgressPoint.objects.filter(assignment=assignment, at__range=within).order_by("-id")
    return list(points.values_list("at", "launch_steps", "elapsed_s")[:NEWEST_POINTS])


def _paces(first: Sequence[Sample], second: Sequence[Sample]) -> tuple[Pace, Pace] | None:
    if not first or not second:
        return None
    since, until = max(min(first)[0], min(second)[0]), min(max(first)[0], max(second)[0])
    one, two = (
        pace((steps, s) for at, steps, s in of if since <= at <= until) for of in (first, second)
    )
    if one is None or two is None:
        return None
    steady = all(seen.steps >= MIN_STEPS and seen.spread <= NOISY for seen in (one, two))
    return (one, two) if steady else None


def _estimate(seen: PairObservation) -> Rates | None:
    rows = pairs.load_pairs()
    gpu_type = seen.first.node.type_name
    types = {row.gpu_type for row in rows} | {gpu_type}
    speeds = speeds_alone(pairs.kinds_of(rows) | set(seen.kinds), types)
    book = pairs.book_of(rows, speeds.measured, seen.kinds)
    if book is None:
        return None
    first, second = map(str, seen.kinds)
    rates = pair_rates(book, tuple(dict.fromkeys((first, second))), speeds.believed)
    return rates.get((first, second, gpu_type))


def _write(
    where: dict[str, int],
    launches: dict[str, Assignment],
    seen: PairObservation,
    guess: Rates | None,
    held: bool,
) -> None:
    first, second = guess or (None, None)
    rates = {
        "first_steps_per_s": seen.rates[0],
        "second_steps_per_s": seen.rates[1],
        "estimated_first_steps_per_s": first,
        "estimated_second_steps_per_s": second,
        "held": held,
    }
    steps = {"first_steps": seen.steps[0], "second_steps": seen.steps[1]}
    of_launches = PairMeasurement.objects.filter(**launches, **steps)
    if not of_launches.update(**where, **rates):
        PairMeasurement.objects.create(**launches, **steps, **where, **rates)


def _move(profile: PairProfile, seen: PairObservation, *, fresh: bool) -> None:
    samples = 0 if fresh or not any(seen.rates) else profile.samples
    own, others = profile.first_steps_per_s or 0.0, profile.second_steps_per_s or 0.0
    profile.first_steps_per_s = moved(own, seen.rates[0], samples)
    profile.second_steps_per_s = moved(others, seen.rates[1], samples)
    profile.samples, profile.source = samples + 1, Source.MEASURED
    profile.save()
