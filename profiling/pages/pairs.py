"""Measured pairs that share a GPU on the kinds' page, and the errors of their estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db.models import QuerySet
from django.utils import timezone

from policies.contract.snapshot import Source
from profiling.models import PairMeasurement, PairProfile
from profiling.pairs.estimates import ErrorSummary, PairError, errors_of

MOST_SHOWN = 50
"""Pairs on the page, the newest."""

MOST_COMPARED = 5000
"""Measurements that the errors are taken over, the newest."""


@dataclass(frozen=True, slots=True)
class PairLine:
    """A measured pair: names, type, steps/s of each, number of measurements, age."""

    first: str
    second: str
    gpu_type: str
    first_steps_per_s: float
    second_steps_per_s: float
    samples: int
    age_s: float


@dataclass(frozen=True, slots=True)
class PairsTable:
    """The newest measured pairs, and the errors of what was estimated of pairs before."""

    lines: tuple[PairLine, ...] = ()
    errors: ErrorSummary = field(default_factory=lambda: ErrorSummary.of(()))


NO_PAIRS = PairsTable()


def pairs_table(names: Mapping[int, str]) -> PairsTable:
    """The table of pairs of kinds that may be shown (names by primary key); two queries."""
    now, lines = timezone.now(), []
    measured = PairProfile.objects.filter(
        first__in=names, second__in=names, source=Source.MEASURED
    ).select_related("gpu_type")
    for p in measured.order_by("-updated_at", "-pk")[:MOST_SHOWN]:
        age_s = (now - p.updated_at).total_seconds()
        speeds = (p.first_steps_per_s, p.second_steps_per_s)
        lines.append(
            PairLine(
                names[p.first_id], names[p.second_id], p.gpu_type.name, *speeds, p.samples, age_s
            )
        )
    return PairsTable(tuple(lines), ErrorSummary.of(_errors(names)))


def _errors(names: Mapping[int, str]) -> list[PairError]:
    compared: QuerySet[PairMeasurement] = PairMeasurement.objects.filter(
        first__in=names, second__in=names
    )
    rows = compared.filter(estimated_first_steps_per_s__isnull=False).order_by("-pk").values_list(
        "first_id", "second_id", "gpu_type__name", "estimated_first_steps_per_s",
        "estimated_second_steps_per_s",
        "first_steps_per_s", "second_steps_per_s",
    )  # fmt: skip
    found: list[PairError] = []
    for first, second, gpu_type, own_guess, others_guess, own, others in rows[:MOST_COMPARED]:
        if own_guess is not None and others_guess is not None:
            pair = (str(first), str(second), gpu_type)
            found += errors_of({pair: (own_guess, others_guess)}, {pair: (own, others)})
    return found
