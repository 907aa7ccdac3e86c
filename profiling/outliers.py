"""Outliers: a measurement far from the known speed waits until another launch confirms it.

A launch may report any speed. A measurement that differs by more than a factor of OUTLIER from a
measured or published speed is *held*: it is kept, and the known speed stays. It waits for the next
measurement of its configuration that is not held. That is either one by another launch near it,
which confirms it and replaces the known speed, or one near the known speed. A launch may correct a
speed that it alone has measured: first steps are slow.
"""

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from jobs.models import Assignment, Kind
from policies.contract.snapshot import Source
from profiling.models import Measurement, Profile

OUTLIER = 3.0
"""Factor above or below the known speed beyond which one launch is not believed.

Throttled clocks, a busy node, a new driver or another precision change a speed by a factor of up to
two, seldom three; a mistaken unit or a loop that skips its work by ten and more.
"""

_CONFIGURATION_FIELDS = ("kind", "gpu_type", "gpus", "spread")
"""Fields that a measurement and its profile have in common."""


def is_outlier(steps_per_s: float, known: float) -> bool:
    """Return True if a speed differs by more than OUTLIER from a known one above 0."""
    return known > 0 and not known / OUTLIER <= steps_per_s <= known * OUTLIER


def is_far(steps_per_s: float, profile: Profile, launch: Assignment) -> bool:
    """Return True for an outlier of a speed that not this launch alone has measured."""
    if profile.source != Source.MEASURED or not is_outlier(steps_per_s, profile.steps_per_s):
        return False
    where = {name: getattr(profile, name) for name in _CONFIGURATION_FIELDS}
    own = Measurement.objects.filter(**where, assignment=launch, held=False).count()
    return own == 0 or profile.samples > own


def waiting(**where: Any) -> QuerySet[Measurement]:
    """Return held measurements that still wait, oldest first; `where`: filters of measurements."""
    same_configuration = {name: OuterRef(name) for name in _CONFIGURATION_FIELDS}
    later = Measurement.objects.filter(**same_configuration, held=False, pk__gt=OuterRef("pk"))
    return Measurement.objects.filter(~Exists(later), held=True, **where).order_by("pk")


def is_confirmed(steps_per_s: float, profile: Profile, launch: Assignment) -> bool:
    """Return True if a measurement by another launch than this one waits near this speed."""
    where = {name: getattr(profile, name) for name in _CONFIGURATION_FIELDS}
    by_others = waiting(**where).exclude(assignment=launch)
    speeds = by_others.values_list("steps_per_s", flat=True)
    return any(not is_outlier(steps_per_s, speed) for speed in speeds)


def is_first_held(launch: Assignment) -> bool:
    """Return True if exactly one measurement of a launch is held: its job is told once."""
    return Measurement.objects.filter(assignment=launch, held=True).count() == 1


def doubted(kind: Kind, purpose: str) -> set[tuple[int, int]]:
    """Return (GPU type, GPUs) of the kind for which a held measurement of this purpose waits."""
    rows = waiting(kind=kind, purpose=purpose, spread=False)
    return set(rows.values_list("gpu_type_id", "gpus"))
