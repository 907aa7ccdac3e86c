"""Outliers among pairs: held until other launches confirm them, as in `profiling.outliers`.

Speeds of a pair that others have measured are far if they differ from these by more than a factor
of OUTLIER. If no others have, a speed is far that is more than OUTLIER times the kind's measured
speed alone: beside another, no kind is much faster. An outlier waits for the next measurement of
the pair that is not held: one near it by two other launches, which replaces the pair's speeds, or
one that is not far.
"""

from collections.abc import Mapping

from django.db.models import Exists, OuterRef, Q

from jobs.models import Assignment
from policies.contract.snapshot import Source
from profiling.models import PairMeasurement, PairProfile, Profile
from profiling.outliers import is_outlier
from profiling.pairs.estimates import Rates

Launches = tuple[Assignment, Assignment]
Where = Mapping[str, int]
"""Pair of kinds on a GPU type: primary keys as `first_id`, `second_id` and `gpu_type_id`."""


def is_far(rates: Rates, profile: PairProfile | None, where: Where, launches: Launches) -> bool:
    """Return True for an outlier of what not these launches alone have measured.

    Rates of 0, of kinds that do not fit on one GPU, are never far: the agent reports them.
    """
    if not any(rates):
        return False
    if profile is not None and _is_of_others(profile, where, launches):
        return _differ(rates, (profile.first_steps_per_s, profile.second_steps_per_s))
    for rate, own_rate in zip(rates, _alone(where), strict=True):
        if rate > own_rate and is_outlier(rate, own_rate):
            return True
    return False


def is_confirmed(rates: Rates, where: Where, launches: Launches) -> bool:
    """Return True if a measurement by two other launches waits near these rates."""
    same_pair = PairMeasurement.objects.filter(
        first=OuterRef("first"), second=OuterRef("second"), gpu_type=OuterRef("gpu_type")
    )
    later = same_pair.filter(held=False, pk__gt=OuterRef("pk"))
    waiting = PairMeasurement.objects.filter(~Exists(later), **where, held=True)
    waiting = waiting.exclude(_by_one_of(launches))
    held_rates = waiting.values_list("first_steps_per_s", "second_steps_per_s")
    return any(not _differ(rates, held) for held in held_rates)


def _is_of_others(profile: PairProfile, where: Where, launches: Launches) -> bool:
    """Return True if other launches have measured how fast the two are together."""
    if profile.source != Source.MEASURED or not profile.first_steps_per_s:
        return False
    own = PairMeasurement.objects.filter(_by_one_of(launches), **where, held=False).count()
    return own == 0 or profile.samples > own


def _by_one_of(launches: Launches) -> Q:
    """Return the filter of measurements in which one of the launches took part."""
    return Q(first_assignment__in=launches) | Q(second_assignment__in=launches)


def _differ(rates: Rates, known: Rates) -> bool:
    """Return True if one of two rates is an outlier of the known one."""
    return any(is_outlier(rate, other) for rate, other in zip(rates, known, strict=True))


def _alone(where: Where) -> Rates:
    """Return the measured steps/s of the two kinds alone on one such GPU; 0 if unmeasured."""
    first = where["first_id"]
    second = where["second_id"]
    profiles = Profile.objects.filter(
        kind__in=(first, second),
        gpu_type=where["gpu_type_id"],
        gpus=1,
        spread=False,
        source=Source.MEASURED,
    )
    speeds = dict(profiles.values_list("kind_id", "steps_per_s"))
    return speeds.get(first, 0.0), speeds.get(second, 0.0)
