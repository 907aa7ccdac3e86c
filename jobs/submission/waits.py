"""Dependencies of a submitted job: references become rows, and bad ones messages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from operator import or_
from uuid import UUID

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q, QuerySet

from clusters.models import Cluster
from jobs.arrays.selectors import element_of, states_of
from jobs.dependencies import can_be_satisfied
from jobs.lifecycle import ACTIVE
from jobs.models import NO_DELAY, Condition, Dependency, Job, JobArray, UnfinishedArray
from jobs.numbers import arrays_with_numbers, jobs_with_numbers
from jobs.selectors import visible_jobs
from jobs.submission.fields import Conditions
from loadmaster.slurm.options.values import SINGLETON
from loadmaster.slurm.scripts.numbers import read_number

AFTERCORR = "aftercorr"
"""Condition of an array: each element waits until that of the same index has completed."""

NAMED = 5
"""Elements that a message names."""

MOST_OF_ONE_NAME = 200
"""Unfinished jobs and arrays for which a singleton waits."""


@dataclass(slots=True)
class Waits:
    """Dependencies of each of the submitted jobs, those of elements by index, and problems.

    `one_suffices`: each job waits for one of them, not for all. `never`: dependencies that can
    never be satisfied, in words.
    """

    one_suffices: bool = False
    of_all: list[Dependency] = field(default_factory=list)
    of_index: dict[int, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)

    def add(self, dependency: Dependency, delay: timedelta = NO_DELAY) -> None:
        """Add a dependency of each job."""
        dependency.delay = delay
        dependency.alternative = self.one_suffices
        self.of_all.append(dependency)


def waits_of(
    user: User | AnonymousUser,
    cluster: Cluster,
    wanted: Conditions,
    indices: Sequence[int] | None,
    name: str,
) -> Waits:
    """Return the dependencies of a job, or of the elements of an array.

    `wanted`, by reference: the id or number of a job or array, with an index (ID_3) for an
    element; or `singleton`. `indices` are those of the submitted array, None for a single job;
    `name` is the job's.
    """
    waits = Waits(wanted.one_suffices)
    conditions = dict(wanted.by_reference)
    is_singleton = conditions.pop(SINGLETON, None) is not None

    # 1. Turn numbers into ids; a number that nothing visible has stays as it is.
    visible = visible_jobs(user).filter(cluster=cluster)
    references = {text: element_of(text) for text in conditions}
    ids = _ids({base for base, _ in references.values()}, visible)
    references = {text: (ids.get(base, base), index) for text, (base, index) in references.items()}

    # 2. Read the jobs, arrays and elements that are meant.
    bases = {UUID(base) for base, _ in references.values() if not base.isdecimal()}
    jobs = {str(job.pk): job for job in visible.filter(pk__in=bases)}
    of_arrays = visible.filter(array__in=bases).order_by().values("array").distinct()
    arrays = {str(array.pk): array for array in JobArray.objects.filter(pk__in=of_arrays)}
    states = states_of(array.pk for array in arrays.values())
    unfinished = UnfinishedArray.objects.filter(array__in=list(arrays.values()))
    for pk in unfinished.values_list("pk", flat=True):
        waits.problems.append(f"array {pk} is still being submitted; try again in a minute")
    elements = _elements(
        (arrays[base], index) for base, index in references.values() if base in arrays
    )

    # 3. Note the dependency of each condition, or the problem with it.
    for text, condition in conditions.items():
        base, index = references[text]
        delay = wanted.delays.get(text, NO_DELAY)
        array = arrays.get(base)
        if array is not None and index is not None:
            element = elements.get((array.pk, index))
            if element is None:
                known = f"its indices are {array.indices}"
                waits.problems.append(f"array {array.pk} has no element {index}; {known}")
            else:
                _on_job(waits, text, element, condition, delay)
        elif array is not None and condition == AFTERCORR:
            _correlate(waits, array, indices)
        elif array is not None:
            _on_array(waits, array, condition, states.get(array.pk, {}), delay)
        elif base in jobs and index is None:
            _on_job(waits, text, jobs[base], condition, delay)
        else:
            unknown = f"there is no job or array {base} that you can see in cluster {cluster}"
            waits.problems.append(unknown)
    if is_singleton:
        _on_jobs_of_one_name(waits, user, cluster, name)

    # 4. All must be satisfied some day; of alternatives one.
    if not waits.one_suffices or not (waits.of_all or waits.of_index):
        waits.problems += waits.never
    return waits


def _on_jobs_of_one_name(
    waits: Waits, user: User | AnonymousUser, cluster: Cluster, name: str
) -> None:
    """Let the job wait for the ends of all the user's earlier jobs with its name.

    Every other condition on one of them implies its end, but for `after`, which becomes one.
    """
    known = {dependency.on_id or dependency.on_array_id for dependency in waits.of_all}
    started_only = [one for one in waits.of_all if one.condition == Condition.AFTER]
    same_name = Job.objects.filter(
        user_id=user.pk or 0,  # anonymous users have no jobs
        cluster=cluster,
        name=name,
        state__in=[str(state) for state in ACTIVE],
    ).order_by("submitted_at")
    singles = list(same_name.filter(array=None)[: MOST_OF_ONE_NAME + 1])
    of_arrays = same_name.exclude(array=None).order_by().values("array").distinct()
    arrays = list(JobArray.objects.filter(pk__in=of_arrays)[: MOST_OF_ONE_NAME + 1])
    if len(singles) + len(arrays) > MOST_OF_ONE_NAME:
        limit = f"waits for at most {MOST_OF_ONE_NAME} jobs, and more are called {name}"
        waits.problems.append(f"{SINGLETON}: {limit}; wait for some to end")
        return
    ids = {*(job.pk for job in singles), *(array.pk for array in arrays)}
    for dependency in started_only:
        if dependency.on_id in ids or dependency.on_array_id in ids:
            dependency.condition = Condition.AFTERANY
    for job in singles:
        if job.pk not in known:
            waits.add(Dependency(on=job, condition=Condition.AFTERANY))
    for array in arrays:
        if array.pk not in known:
            waits.add(Dependency(on_array=array, condition=Condition.AFTERANY))


def _ids(texts: Iterable[str], visible: QuerySet[Job]) -> dict[str, str]:
    """Return the ids of the visible jobs and arrays whose numbers are among these texts."""
    numbers = {text: read_number(text) for text in texts}
    valid = {number for number in numbers.values() if number is not None}
    if not valid:
        return {}
    # Numbers are used again after the greatest one: a job and an array may then have the same.
    ids = {**jobs_with_numbers(visible, valid), **arrays_with_numbers(visible, valid)}
    return {text: str(ids[number]) for text, number in numbers.items() if number in ids}


def _elements(wanted: Iterable[tuple[JobArray, int | None]]) -> dict[tuple[UUID, int | None], Job]:
    """Return the existing elements by array and index; an array without index is skipped."""
    conditions = [Q(array=array, array_index=index) for array, index in wanted if index is not None]
    if not conditions:
        return {}
    jobs = Job.objects.filter(reduce(or_, conditions))
    return {(job.array_id, job.array_index): job for job in jobs if job.array_id}


def _on_job(waits: Waits, text: str, job: Job, condition: str, delay: timedelta) -> None:
    """Let the submitted jobs wait for a job or an element; `text` is how the user names it."""
    if condition == AFTERCORR:
        waits.problems.append(f"aftercorr:{text}: is for whole arrays; use afterok for one job")
    elif not can_be_satisfied(condition, {job.state}) and job.is_over:
        never = f"job {text} is {job.state}, so {condition} can never be satisfied"
        waits.never.append(f"{never}; requeue it first, or leave it out")
    else:
        waits.add(Dependency(on=job, condition=condition), delay)


def _on_array(
    waits: Waits, array: JobArray, condition: str, states: Mapping[str, int], delay: timedelta
) -> None:
    """Let the submitted jobs wait for a whole array; `states`: number of elements by state."""
    if can_be_satisfied(condition, states.keys()):
        waits.add(Dependency(on_array=array, condition=condition), delay)
        return
    ended = ", ".join(f"{count} {state}" for state, count in states.items())
    never = f"array {array.pk} has {ended} elements, so {condition} can never be satisfied"
    waits.never.append(f"{never}; requeue them first, or leave it out")


def _correlate(waits: Waits, array: JobArray, indices: Sequence[int] | None) -> None:
    """Let each element wait for that of its index; all must exist and may still complete."""
    if indices is None:
        waits.problems.append(f"aftercorr:{array.pk}: is for arrays; give the job an array field")
        return
    ids = dict[int, UUID]()
    missing = list[int]()
    never = list[int]()
    rows = array.jobs.values_list("array_index", "pk", "state")
    others = {index: (pk, state) for index, pk, state in rows}
    for index in indices:
        if index not in others:
            missing.append(index)
            continue
        pk, state = others[index]
        ids[index] = pk
        if not can_be_satisfied(Condition.AFTEROK, {state}):
            never.append(index)
    for wrong, what in ((missing, "no element"), (never, "a failed or cancelled element")):
        if wrong:
            named = ", ".join(str(index) for index in wrong[:NAMED])
            more = ", ..." if len(wrong) > NAMED else ""
            waits.problems.append(f"aftercorr:{array.pk}: the array has {what} {named}{more}")
    if not missing and not never:
        for index in indices:
            waits.of_index[index].append(ids[index])
