"""Dependencies on jobs and arrays: what an end satisfies, and what it makes impossible.

`afterok` waits for a job to complete, `afternotok` for it to fail or be cancelled, `afterany` for
either. Of an array, `afterok` waits for all elements to complete, `afterany` for all to end, and
`afternotok` for all to end and at least one of them not to complete.
"""

from collections.abc import Iterable, Mapping, Set

from django.db.models import Exists, OuterRef, Q

from jobs.lifecycle import ACTIVE, ENDED, JobState
from jobs.models import Condition, Dependency, Job
from jobs.selectors import OTHERS

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
        on_job = Q(on__isnull=False) & ~Q(on__state__in=_texts(enough))
        waits |= Q(condition=condition) & on_job
    waits |= Q(condition=Condition.AFTEROK) & _has_elements(frozenset(JobState) - OK)
    waits |= Q(condition=Condition.AFTERANY) & _has_elements(ACTIVE)
    waits_on = _has_elements(ACTIVE) | ~_has_elements(NOT_OK)
    return waits | Q(condition=Condition.AFTERNOTOK, on__isnull=True) & waits_on


def impossible() -> Q:
    """Condition of a query of dependencies that can never be satisfied."""
    never = Q()
    for condition, enough in SATISFIED.items():
        if missed := ENDED - enough:
            never |= Q(condition=condition, on__state__in=_texts(missed))
    never |= Q(condition=Condition.AFTEROK) & _has_elements(NOT_OK)
    may_come = _has_elements(ACTIVE | NOT_OK)
    return never | Q(condition=Condition.AFTERNOTOK, on__isnull=True) & ~may_come


def why_never(dependency: Dependency) -> str:
    """Reason why a dependency that is impossible can never be satisfied.

    It is read by the job's team, which may not see the names of another team's jobs.
    """
    condition, on, team = dependency.condition, dependency.on, dependency.job.team_id
    if on is not None:
        named = f"job {on}" if on.team_id == team else OTHERS
        return f"it waited for {named} ({condition}), which {on.state}"
    elements = Job.objects.filter(array=dependency.on_array_id)
    failed = elements.filter(state__in=_texts(NOT_OK)).order_by("array_index").first()
    one = failed or elements[0]
    named, element = f"array {one.name}", str(one)
    if one.team_id != team:
        named, element = "another team's array", "an element"
    ended = "which completed" if failed is None else f"of which {element} {failed.state}"
    return f"it waited for {named} ({condition}), {ended}"


def can_be_satisfied(condition: str, states: Set[str]) -> bool:
    """Return True if a condition on a job, or on an array, whose states are these may come true."""
    if condition == Condition.AFTEROK:
        return not states & NOT_OK
    return condition == Condition.AFTERANY or bool(states - OK)


def _has_elements(states: Iterable[JobState]) -> Q:
    """True for a dependency on an array with an element in one of these states."""
    elements = Job.objects.filter(array=OuterRef("on_array"), state__in=_texts(states))
    return Q(on_array__isnull=False) & Q(Exists(elements))


def _texts(states: Iterable[JobState]) -> list[str]:
    return sorted(str(state) for state in states)
