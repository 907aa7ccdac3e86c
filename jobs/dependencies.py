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

OK = frozenset({JobState.COMPLETED})
"""Final states of a job that did what it was to do."""

NOT_OK = frozenset({JobState.FAILED, JobState.CANCELLED})
"""All other final states."""

SATISFIED: Mapping[str, frozenset[JobState]] = {
    Condition.AFTEROK: OK,
    Condition.AFTERNOTOK: NOT_OK,
    Condition.AFTERANY: ENDED,
}
"""States of the other job that satisfy a condition; any other final state never will."""


# -- conditions of queries of dependencies


def unsatisfied(now: datetime | None = None) -> Q:
    """Return a condition on dependencies: their jobs still wait for them, at `now`.

    Once one alternative is satisfied, the job waits for none of the others.
    """
    now = now or timezone.now()
    satisfied = Dependency.objects.filter(~_unsatisfied(now), alternative=True, job=OuterRef("job"))
    return _unsatisfied(now) & (Q(alternative=False) | ~Q(Exists(satisfied)))


def impossible() -> Q:
    """Return a condition on dependencies: their jobs can never start because of them.

    An alternative counts only if all others are impossible too.
    """
    possible = Dependency.objects.filter(~_impossible(), alternative=True, job=OuterRef("job"))
    return _impossible() & (Q(alternative=False) | ~Q(Exists(possible)))


def _unsatisfied(now: datetime) -> Q:
    """Return a condition: a dependency is not satisfied by itself, alternatives apart."""
    # 1. On a job: by its state.
    waits = Q()
    for condition, satisfying_states in SATISFIED.items():
        other_state = Q(on__isnull=False) & ~Q(on__state__in=_texts(satisfying_states))
        waits |= Q(condition=condition) & other_state

    # 2. On an array: by the states of its elements.
    waits |= Q(condition=Condition.AFTEROK) & _has_elements(frozenset(JobState) - OK)
    waits |= Q(condition=Condition.AFTERANY) & _has_elements(ACTIVE)
    waits_on = _has_elements(ACTIVE) | ~_has_elements(NOT_OK)
    waits |= Q(condition=Condition.AFTERNOTOK, on__isnull=True) & waits_on

    # 3. On the start of either, and a delay after it.
    waits |= Q(condition=Condition.AFTER) & _not_started()
    in_delay = Q(delay__gt=NO_DELAY) & (_not_started() | _started_after(now))
    return waits | in_delay


def _not_started() -> Q:
    """Return a condition: the job, or an element of the array, has neither started nor ended."""
    active = _texts(ACTIVE)
    job_waits = Q(on__isnull=False, on__started_at__isnull=True, on__state__in=active)
    elements = Job.objects.filter(array=OuterRef("on_array"))
    waiting_elements = elements.filter(started_at__isnull=True, state__in=active)
    element_waits = Q(on_array__isnull=False) & Q(Exists(waiting_elements))
    return job_waits | element_waits


def _started_after(now: datetime) -> Q:
    """Return a condition: the job or array started less than the delay before `now`.

    An array starts with its last element; a job that was cancelled before its start with its end.
    """
    # 1. The start of a job.
    start_of_job = Coalesce("on__started_at", "on__completed_at", output_field=DateTimeField())

    # 2. The last start of an array's elements.
    start_of_element = Coalesce("started_at", "completed_at", output_field=DateTimeField())
    elements = Job.objects.filter(array=OuterRef("on_array")).order_by().values("array")
    last_start = elements.annotate(last=Max(start_of_element)).values("last")
    start_of_array = Subquery(last_start, output_field=DateTimeField())

    # 3. One of the two is null.
    latest: Combinable = Value(now, output_field=DateTimeField()) - F("delay")
    return Q(GreaterThan(Coalesce(start_of_job, start_of_array), latest))


def _impossible() -> Q:
    """Return a condition: a dependency can never be satisfied by itself, alternatives apart."""
    # 1. On a job: it has ended in another state.
    never = Q()
    for condition, satisfying_states in SATISFIED.items():
        other_ends = ENDED - satisfying_states
        if other_ends:
            never |= Q(condition=condition, on__state__in=_texts(other_ends))

    # 2. On an array: an element has failed, or none has and none will.
    never |= Q(condition=Condition.AFTEROK) & _has_elements(NOT_OK)
    may_fail = _has_elements(ACTIVE | NOT_OK)
    return never | Q(condition=Condition.AFTERNOTOK, on__isnull=True) & ~may_fail


def _has_elements(states: Iterable[JobState]) -> Q:
    """Return a condition: the dependency is on an array with an element in one of these states."""
    elements = Job.objects.filter(array=OuterRef("on_array"), state__in=_texts(states))
    return Q(on_array__isnull=False) & Q(Exists(elements))


def _texts(states: Iterable[JobState]) -> list[str]:
    """Return states as the database has them, in one order, for equal queries."""
    return sorted(str(state) for state in states)


# -- one dependency


def why_never(dependency: Dependency) -> str:
    """Return the reason why a dependency that is impossible can never be satisfied.

    It is read by the job's team, which may not see the names of another team's jobs.
    """
    # 1. A job.
    condition = dependency.condition
    own_team_id = dependency.job.team_id
    other_job = dependency.on
    if other_job is not None:
        name = f"job {other_job}" if other_job.team_id == own_team_id else OTHERS
        return f"it waited for {name} ({condition}), which {other_job.state}"

    # 2. An array: its first element that failed, or else all have completed.
    elements = Job.objects.filter(array=dependency.on_array_id)
    failed = elements.filter(state__in=_texts(NOT_OK)).order_by("array_index").first()
    element = failed or elements[0]
    array_name = f"array {element.name}"
    element_name = str(element)
    if element.team_id != own_team_id:
        array_name = "another team's array"
        element_name = "an element"
    end = "which completed" if failed is None else f"of which {element_name} {failed.state}"
    return f"it waited for {array_name} ({condition}), {end}"


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
    """Return True if a condition may still come true.

    `states`: that of the other job, or those of the array's elements.
    """
    if condition == Condition.AFTEROK:
        return not states & NOT_OK
    if condition == Condition.AFTERNOTOK:
        return bool(states - OK)
    return True
