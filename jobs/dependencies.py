"""Dependencies between jobs: what an end satisfies, and what it makes impossible.

`afterok` waits for a job to complete, `afternotok` for it to fail or be cancelled, `afterany` for
either.
"""

from collections.abc import Mapping

from django.db.models import Q

from jobs.lifecycle import ENDED, JobState
from jobs.models import Condition

NOT_OK = frozenset({JobState.FAILED, JobState.CANCELLED})
OK = frozenset({JobState.COMPLETED})

SATISFIED: Mapping[str, frozenset[JobState]] = {
    Condition.AFTEROK: OK,
    Condition.AFTERNOTOK: NOT_OK,
    Condition.AFTERANY: ENDED,
}
"""States of the other job that satisfy a condition; any other final state never will."""


def unsatisfied() -> Q:
    """Condition of a query of dependencies that still wait."""
    waits = Q()
    for condition, enough in SATISFIED.items():
        waits |= Q(condition=condition) & ~Q(on__state__in=[str(state) for state in enough])
    return waits


def impossible() -> Q:
    """Condition of a query of dependencies that can never be satisfied."""
    never = Q()
    for condition, enough in SATISFIED.items():
        if missed := ENDED - enough:
            never |= Q(condition=condition, on__state__in=[str(state) for state in missed])
    return never
