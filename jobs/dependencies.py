"""Dependencies on jobs and arrays: what satisfies them, and what makes them impossible.

`afterok` waits for a job to complete, `afternotok` for it to fail or be cancelled, `afterany` for
either. Of an array, `afterok` waits for all elements to complete, `afterany` for all to end, and
`afternotok` for all to end and at least one of them not to complete.

`after` waits for a job, or all elements of an array, to have started or ended, and then for its
delay. One that is requeued has started all the same.

Of alternatives one suffices; a job has either alternatives or dependencies that all must hold.
"""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from django.db.models import DateTimeField, Exists, F, Max, OuterRef, Q, Subquery, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.db.models.lookups import GreaterThan
from django.utils import timezone

from jobs.lifecycle import ACTIVE, ENDED, JobState
from jobs.models import NO_DELAY, Condition, Dependency, Job
from jobs.selectors import OTHERS
from loadmaster.slurm.options.values import OR

NOT_OK = frozenset({JobState.FAILED, JobState.CANCELLED})
OK = frozenset({JobState.COMPLETED})

SATISFIED: Mapping[str, frozenset[JobState]] = {
    Condition.AFTEROK: OK,
    Condition.AFTERNOTOK: NOT_OK,
    Condition.AFTERANY: ENDED,
}
"""States of the other job that satisfy a condition; any other final state never will."""


def unsatisfied(now: datetime | None = None) -> Q:
    """Condition of a query of dependencies for which their jobs still wait, at `now`.

    Once one alternative is satisfied, the job waits for none of the others.
    """
    now = now or timezone.now()
    satisfied = Dependency.objects.filter(~_unsatisfied(now), alternative=True, job=OuterRef("job"))
    return _unsatisfied(now) & (Q(alternative=False) | ~Q(Exists(satisfied)))


def impossible() -> Q:
    """Condition of a query of dependencies by which their jobs can never start.

    An alternative counts only if all others are impossible too.
    """
    possible = Dependency.objects.filter(~_impossible(), alternative=True, job=OuterRef("job"))
    return _impossible() & (Q(alternative=False) | ~Q(Exists(possible)))


def _unsatisfied(now: datetime) -> Q:
    """Condition of dependencies that are not satisfied, each by itself."""
    waits = Q()
    for condition, enough in SATISFIED.items():
        on_job = Q(on__isnull=False) & ~Q(on__state__in=_texts(enough))
        waits |= Q(condition=condition) & on_job
    waits |= Q(condition=Condition.AFTEROK) & _has_elements(frozenset(JobState) - OK)
    waits |= Q(condition=Condition.AFTERANY) & _has_elements(ACTIVE)
    waits_on = _has_elements(ACTIVE) | ~_has_elements(NOT_OK)
    waits |= Q(condition=Condition.AFTERNOTOK, on__isnull=True) & waits_on
    waits |= Q(condition=Condition.AFTER) & _not_started()
    return waits | Q(delay__gt=NO_DELAY) & (_not_started() | _started_after(now))


def _not_started() -> Q:
    """True for a job, or an array with an element, that neither started nor ended before."""
    active = _texts(ACTIVE)
    on_job = Q(on__isnull=False, on__started_at__isnull=True, on__state__in=active)
    elements = Job.objects.filter(array=OuterRef("on_array"))
    waiting = elements.filter(started_at__isnull=True, state__in=active)
    return on_job | Q(on_array__isnull=False) & Q(Exists(waiting))


def _started_after(now: datetime) -> Q:
    """True for a job or an array that started less than the delay before `now`.

    An array starts with its last element; a job that was cancelled before its start with its end.
    """
    of_job = Coalesce("on__started_at", "on__completed_at", output_field=DateTimeField())
    of_element = Coalesce("started_at", "completed_at", output_field=DateTimeField())
    elements = Job.objects.filter(array=OuterRef("on_array")).order_by().values("array")
    last_start = elements.annotate(moment=Max(of_element)).values("moment")
    of_array = Subquery(last_start, output_field=DateTimeField())
    latest: Combinable = Value(now, output_field=DateTimeField()) - F("delay")
    return Q(GreaterThan(Coalesce(of_job, of_array), latest))


def _impossible() -> Q:
    """Condition of dependencies that can never be satisfied, each by itself."""
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


def in_job_file(dependencies: Iterable[Dependency], *, numbered: bool = False) -> list[str]:
    """Return a job's dependencies as a job file has them: alternatives in one text, a?b.

    `numbered`: with numbers of jobs and arrays in place of ids, and every condition named.
    """
    texts = list[str]()
    alternatives = list[str]()
    for dependency in dependencies:
        text = dependency.numbered if numbered else str(dependency)
        if dependency.alternative:
            alternatives.append(text)
        else:
            texts.append(text)
    if alternatives:
        texts.append(OR.join(alternatives))
    return texts


def can_be_satisfied(condition: str, states: Set[str]) -> bool:
    """Return True if a condition on a job, or on an array, whose states are these may come true."""
    if condition == Condition.AFTEROK:
        return not states & NOT_OK
    return condition != Condition.AFTERNOTOK or bool(states - OK)


def _has_elements(states: Iterable[JobState]) -> Q:
    """True for a dependency on an array with an element in one of these states."""
    elements = Job.objects.filter(array=OuterRef("on_array"), state__in=_texts(states))
    return Q(on_array__isnull=False) & Q(Exists(elements))


def _texts(states: Iterable[JobState]) -> list[str]:
    return sorted(str(state) for state in states)
