"""Outliers among pairs, by the rule of `profiling.outliers`: kept, but believed only when repeated.

Beside another no kind is much faster than alone. So where no others have measured the pair, a speed
above OUTLIER times the kind's measured own speed is far; else one beyond OUTLIER of the pair's. It
waits until the next measurement of the pair that is taken: one like it in which neither launch took
part before, which replaces the pair's speeds; or one that is not far.
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
"""Primary keys of `first_id`, `second_id` and `gpu_type_id`."""


def is_far(rates: Rates, profile: PairProfile | None, where: Where, launches: Launches) -> bool:
    """Return True for an outlier of what others than these launches have measured.

    Rates of 0, of kinds that do not fit on one GPU, are none: agents report those.
    """
    if not any(rates):
        return False
    if profile is not None and _is_of_others(profile, where, launches):
        known = profile.first_steps_per_s, profile.second_steps_per_s
        return _differ(rates, known)
    return any(r > a and is_outlier(r, a) for r, a in zip(rates, _alone(where), strict=True))


def is_confirmed(rates: Rates, where: Where, launches: Launches) -> bool:
    """Return True if a measurement by two other launches waits near these rates."""
    same = PairMeasurement.objects.filter(
        first=OuterRef("first"), second=OuterRef("second"), gpu_type=OuterRef("gpu_type")
    )
    taken = same.filter(held=False, pk__gt=OuterRef("pk"))
    waiting = PairMeasurement.objects.filter(~Exists(taken), **where, held=True)
    waiting = waiting.exclude(_by_one_of(launches))
    seen = waiting.values_list("first_steps_per_s", "second_steps_per_s")
    return any(not _differ(rates, held) for held in seen)


def _is_of_others(profile: PairProfile, where: Where, launches: Launches) -> bool:
    """Return True if others have measured how fast the two are together."""
    if profile.source != Source.MEASURED or not profile.first_steps_per_s:
        return False
    taken = PairMeasurement.objects.filter(_by_one_of(launches), **where, held=False)
    own = taken.count()
    return own == 0 or profile.samples > own


def _by_one_of(launches: Launches) -> Q:
    return Q(first_assignment__in=launches) | Q(second_assignment__in=launches)


def _differ(rates: Rates, known: Rates) -> bool:
    return any(is_outlier(r, k) for r, k in zip(rates, known, strict=True))


def _alone(where: Where) -> Rates:
    """Measured steps/s of the two kinds alone on one such GPU; 0 where unmeasured."""
    kinds = where["first_id"], where["second_id"]
    alone = {"gpu_type": where["gpu_type_id"], "gpus": 1, "spread": False}
    rows = Profile.objects.filter(kind__in=kinds, source=Source.MEASURED, **alone)
    speeds = dict(rows.values_list("kind_id", "steps_per_s"))
    first, second = (speeds.get(kind, 0.0) for kind in kinds)
    return first, second
