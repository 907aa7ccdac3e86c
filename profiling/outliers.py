"""Outliers: measurements far from what is known wait until another launch shows the like.

A launch may report any speed. One beyond OUTLIER of a measured or published number is kept as a
held measurement, and the number stays. It waits until the next measurement of its configuration
that is taken: one by another launch within OUTLIER of it, which then replaces the number; or one
within OUTLIER of the number, as usual. Numbers that this launch alone has shown it may correct:
first steps are slow.
"""

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from jobs.models import Assignment, Kind
from policies.contract.snapshot import Source
from profiling.models import Measurement, Profile

OUTLIER = 3.0
"""Factor above or below what is known beyond which one launch is not believed.

Throttled clocks, a busy node, a new driver or another precision change a speed by up to two, seldom
three; a unit mistaken or a loop that skips its work by ten and more.
"""

_WHERE = ("kind", "gpu_type", "gpus", "spread")


def is_outlier(steps_per_s: float, known: float) -> bool:
    """Return True for a speed beyond OUTLIER of the known one, which is above 0."""
    return known > 0 and not known / OUTLIER <= steps_per_s <= known * OUTLIER


def is_far(steps_per_s: float, profile: Profile, launch: Assignment) -> bool:
    """Return True for an outlier of what others than this launch have measured."""
    if profile.source != Source.MEASURED or not is_outlier(steps_per_s, profile.steps_per_s):
        return False
    where = {name: getattr(profile, name) for name in _WHERE}
    own = Measurement.objects.filter(**where, assignment=launch, held=False).count()
    return own == 0 or profile.samples > own


def waiting(**where: Any) -> QuerySet[Measurement]:
    """Held measurements that still wait, oldest first; `where`: filters of measurements."""
    same = Measurement.objects.filter(**{name: OuterRef(name) for name in _WHERE})
    taken = same.filter(held=False, pk__gt=OuterRef("pk"))
    return Measurement.objects.filter(~Exists(taken), held=True, **where).order_by("pk")


def is_confirmed(steps_per_s: float, profile: Profile, launch: Assignment) -> bool:
    """Return True if a measurement by another launch than this one waits near this speed."""
    where = {name: getattr(profile, name) for name in _WHERE}
    seen = waiting(**where).exclude(assignment=launch).values_list("steps_per_s", flat=True)
    return any(not is_outlier(steps_per_s, speed) for speed in seen)


def is_first_held(launch: Assignment) -> bool:
    """Return True if one measurement of this launch is held, so that its job is told once."""
    return Measurement.objects.filter(assignment=launch, held=True).count() == 1


def doubted(kind: Kind, purpose: str) -> set[tuple[int, int]]:
    """(GPU type, GPUs) of the kind for which a held measurement of this purpose waits."""
    rows = waiting(kind=kind, purpose=purpose, spread=False)
    return set(rows.values_list("gpu_type_id", "gpus"))
