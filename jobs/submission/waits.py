"""Dependencies of a submitted job: references become rows, and bad ones messages."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
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

MOST_NAMED = 5
"""Most elements that a message names."""

MOST_OF_ONE_NAME = 200
"""Most unfinished jobs and arrays for which a singleton waits."""


@dataclass(slots=True)
class Waits:
    """Dependencies of a submission, and the problems with them.

    `of_all`: dependencies of the job, or of every element of an array. `of_index`: by index of an
    element, the jobs that it waits for besides. `one_suffices`: each job waits for one of its
    dependencies, not for all. `never`: messages about dependencies that can never be satisfied.
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
    conditions: Conditions,
    indices: Sequence[int] | None,
    name: str,
) -> Waits:
    """Return the dependencies of a job, or of the elements of an array.

    A reference of `conditions` is the id or number of a job or array, with an index (ID_3) for an
    element; or `singleton`. `indices` are those of the submitted array, None for a single job;
    `name` is the job's.
    """
    waits = Waits(conditions.one_suffices)
    condition_by_reference = dict(conditions.by_reference)
    is_singleton = condition_by_reference.pop(SINGLETON, None) is not None

    # 1. Find the jobs, arrays and elements that the references mean.
    visible = visible_jobs(user).filter(cluster=cluster)
    references = _read_references(condition_by_reference, visible)
    ids = {UUID(one.target) for one in references.values() if not one.target.isdecimal()}
    jobs = {str(job.pk): job for job in visible.filter(pk__in=ids)}
    visible_arrays = visible.filter(array__in=ids).order_by().values("array").distinct()
    arrays = {str(array.pk): array for array in JobArray.objects.filter(pk__in=visible_arrays)}
    elements = _elements(references.values(), arrays)

    # 2. Nothing can wait for an array of which elements are still to be written.
    unfinished = UnfinishedArray.objects.filter(array__in=list(arrays.values()))
    for pk in unfinished.values_list("pk", flat=True):
        waits.problems.append(f"array {pk} is still being submitted; try again in a minute")

    # 3. Note the dependency of each condition, or the problem with it.
    states = states_of(array.pk for array in arrays.values())
    for text, condition in condition_by_reference.items():
        reference = references[text]
        delay = conditions.delays.get(text, NO_DELAY)
        array = arrays.get(reference.target)
        if array is not None and reference.index is not None:
            element = elements.get((array.pk, reference.index))
            if element is not None:
                _wait_for_job(waits, text, element, condition, delay)
            else:
                missing = f"array {array.pk} has no element {reference.index}"
                waits.problems.append(f"{missing}; its indices are {array.indices}")
        elif array is not None and condition == AFTERCORR:
            _wait_for_same_index(waits, array, indices)
        elif array is not None:
            _wait_for_array(waits, array, condition, states.get(array.pk, {}), delay)
        elif reference.target in jobs and reference.index is None:
            _wait_for_job(waits, text, jobs[reference.target], condition, delay)
        else:
            missing = f"there is no job or array {reference.target}"
            waits.problems.append(f"{missing} that you can see in cluster {cluster}")

    # 4. A singleton waits for jobs of its name, unless it waits for them already.
    if is_singleton:
        _wait_for_jobs_of_one_name(waits, user, cluster, name)

    # 5. A dependency that can never be satisfied is a problem, unless another one suffices.
    has_possible = bool(waits.of_all or waits.of_index)
    if not (waits.one_suffices and has_possible):
        waits.problems += waits.never
    return waits


# -- references


@dataclass(frozen=True, slots=True)
class _Reference:
    """Job or array that a user names: its id, or a number that nothing visible has.

    `index`: of an element of the array, else None.
    """

    target: str
    index: int | None


def _read_references(texts: Collection[str], visible: QuerySet[Job]) -> dict[str, _Reference]:
    """Return the references of these texts, with ids in place of the numbers of visible jobs."""
    # 1. Read numbers. A text may be an id, which has none.
    number_by_target: dict[str, int] = {}
    for text in texts:
        target, _ = element_of(text)
        number = read_number(target)
        if number is not None:
            number_by_target[target] = number

    # 2. Look them up. Numbers are used again after the greatest one, so a job and an array may have
    #    the same: then the array is meant.
    ids: dict[int, UUID] = {}
    if number_by_target:
        numbers = set(number_by_target.values())
        ids.update(jobs_with_numbers(visible, numbers))
        ids.update(arrays_with_numbers(visible, numbers))

    # 3. Replace those that are known.
    references: dict[str, _Reference] = {}
    for text in texts:
        target, index = element_of(text)
        number = number_by_target.get(target)
        if number is not None and number in ids:
            target = str(ids[number])
        references[text] = _Reference(target, index)
    return references


def _elements(
    references: Collection[_Reference], arrays: Mapping[str, JobArray]
) -> dict[tuple[UUID, int], Job]:
    """Return the existing elements that references name, by array and index; one query."""
    is_named = Q()
    for reference in references:
        if reference.target in arrays and reference.index is not None:
            array = arrays[reference.target]
            is_named |= Q(array=array, array_index=reference.index)
    if not is_named:
        return {}
    elements: dict[tuple[UUID, int], Job] = {}
    for job in Job.objects.filter(is_named):
        if job.array_id is not None and job.array_index is not None:
            elements[job.array_id, job.array_index] = job
    return elements


# -- dependencies


def _wait_for_job(waits: Waits, text: str, job: Job, condition: str, delay: timedelta) -> None:
    """Let the submitted jobs wait for a job or an element; `text` is how the user names it."""
    if condition == AFTERCORR:
        waits.problems.append(f"aftercorr:{text}: is for whole arrays; use afterok for one job")
    elif job.is_over and not can_be_satisfied(condition, {job.state}):
        never = f"job {text} is {job.state}, so {condition} can never be satisfied"
        waits.never.append(f"{never}; requeue it first, or leave it out")
    else:
        waits.add(Dependency(on=job, condition=condition), delay)


def _wait_for_array(
    waits: Waits, array: JobArray, condition: str, states: Mapping[str, int], delay: timedelta
) -> None:
    """Let the submitted jobs wait for a whole array; `states`: number of elements by state."""
    if can_be_satisfied(condition, states.keys()):
        waits.add(Dependency(on_array=array, condition=condition), delay)
        return
    ended = ", ".join(f"{count} {state}" for state, count in states.items())
    never = f"array {array.pk} has {ended} elements, so {condition} can never be satisfied"
    waits.never.append(f"{never}; requeue them first, or leave it out")


def _wait_for_same_index(waits: Waits, array: JobArray, indices: Sequence[int] | None) -> None:
    """Let each element wait for that of its index; all must exist and may still complete."""
    if indices is None:
        waits.problems.append(f"aftercorr:{array.pk}: is for arrays; give the job an array field")
        return

    # 1. Look for the element of each index.
    rows = array.jobs.values_list("array_index", "pk", "state")
    others = {index: (pk, state) for index, pk, state in rows}
    missing: list[int] = []
    not_completing: list[int] = []
    for index in indices:
        if index not in others:
            missing.append(index)
            continue
        _, state = others[index]
        if not can_be_satisfied(Condition.AFTEROK, {state}):
            not_completing.append(index)

    # 2. Note the problems, or the dependencies.
    where = f"aftercorr:{array.pk}: the array has"
    if missing:
        waits.problems.append(f"{where} no element {_some(missing)}")
    if not_completing:
        waits.problems.append(f"{where} a failed or cancelled element {_some(not_completing)}")
    if not missing and not not_completing:
        for index in indices:
            pk, _ = others[index]
            waits.of_index[index].append(pk)


def _some(indices: Sequence[int]) -> str:
    """Return the first MOST_NAMED of these indices in words."""
    words = ", ".join(str(index) for index in indices[:MOST_NAMED])
    return f"{words}, ..." if len(indices) > MOST_NAMED else words


def _wait_for_jobs_of_one_name(
    waits: Waits, user: User | AnonymousUser, cluster: Cluster, name: str
) -> None:
    """Let the job wait for the ends of all the user's earlier jobs with its name."""
    # 1. Read the jobs outside of arrays, and the arrays.
    same_name = Job.objects.filter(
        user_id=user.pk or 0,  # anonymous users have no jobs
        cluster=cluster,
        name=name,
        state__in=[str(state) for state in ACTIVE],
    ).order_by("submitted_at")
    singles = list(same_name.filter(array=None)[: MOST_OF_ONE_NAME + 1])
    with_elements = same_name.exclude(array=None).order_by().values("array").distinct()
    arrays = list(JobArray.objects.filter(pk__in=with_elements)[: MOST_OF_ONE_NAME + 1])
    if len(singles) + len(arrays) > MOST_OF_ONE_NAME:
        limit = f"waits for at most {MOST_OF_ONE_NAME} jobs, and more are called {name}"
        waits.problems.append(f"{SINGLETON}: {limit}; wait for some to end")
        return

    # 2. The job may wait for some of them already. `after` is satisfied before the end, so it
    #    becomes `afterany`; every other condition implies the end.
    ids = {job.pk for job in singles} | {array.pk for array in arrays}
    waited_for = set()
    for dependency in waits.of_all:
        target = dependency.on_id or dependency.on_array_id
        waited_for.add(target)
        if dependency.condition == Condition.AFTER and target in ids:
            dependency.condition = Condition.AFTERANY

    # 3. Wait for the others too.
    for job in singles:
        if job.pk not in waited_for:
            waits.add(Dependency(on=job, condition=Condition.AFTERANY))
    for array in arrays:
        if array.pk not in waited_for:
            waits.add(Dependency(on_array=array, condition=Condition.AFTERANY))
