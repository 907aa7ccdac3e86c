"""Dependencies of a submitted job: references become rows, and bad ones messages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from uuid import UUID

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q, QuerySet

from clusters.models import Cluster
from jobs.arrays.selectors import element_of, states_of
from jobs.dependencies import can_be_satisfied
from jobs.lifecycle import ACTIVE
from jobs.models import Condition, Dependency, Job, JobArray, UnfinishedArray
from jobs.numbers import arrays_with_numbers, jobs_with_numbers
from jobs.selectors import visible_jobs
from loadmaster.slurm.numbers import read_number
from loadmaster.slurm.values import SINGLETON

AFTERCORR = "aftercorr"
"""Condition of an array: each element waits until that of the same index has completed."""

NAMED = 5

MOST_OF_ONE_NAME = 200
"""Unfinished jobs and arrays for which a singleton waits."""


@dataclass(slots=True)
class Waits:
    """Dependencies of each of the submitted jobs, those of elements by index, and problems."""

    of_all: list[Dependency] = field(default_factory=list)
    of_index: dict[int, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)


def waits_of(
    user: User | AnonymousUser,
    cluster: Cluster,
    conditions: Mapping[str, str],
    indices: Sequence[int] | None,
    name: str,
) -> Waits:
    """Dependencies by reference (id or number of a job or array, ID_3 for an element; singleton).

    `indices` are those of the submitted array, None of a single job; `name` is the job's.
    """
    found = Waits()
    conditions = dict(conditions)
    is_singleton = conditions.pop(SINGLETON, None) is not None
    seen = visible_jobs(user).filter(cluster=cluster)
    parts = {text: element_of(text) for text in conditions}
    ids = _ids({base for base, _ in parts.values()}, seen)
    parts = {text: (ids.get(base, base), index) for text, (base, index) in parts.items()}
    bases = {UUID(base) for base, _ in parts.values() if not base.isdecimal()}
    jobs = {str(job.pk): job for job in seen.filter(pk__in=bases)}
    of_arrays = seen.filter(array__in=bases).order_by().values("array").distinct()
    arrays = {str(a.pk): a for a in JobArray.objects.filter(pk__in=of_arrays)}
    states = states_of(a.pk for a in arrays.values())
    unfinished = UnfinishedArray.objects.filter(array__in=list(arrays.values()))
    for pk in unfinished.values_list("pk", flat=True):
        found.problems.append(f"array {pk} is still being submitted; try again in a minute")
    elements = _elements((arrays[base], i) for base, i in parts.values() if base in arrays)
    for text, condition in conditions.items():
        (base, index), array = parts[text], arrays.get(parts[text][0])
        if array is not None and condition == AFTERCORR and index is None:
            _correlate(found, array, indices)
        elif array is not None and index is not None:
            if (array.pk, index) not in elements:
                has = f"its indices are {array.indices}"
                found.problems.append(f"array {array.pk} has no element {index}; {has}")
            _on_job(found, text, elements.get((array.pk, index)), condition)
        elif array is not None:
            _on_array(found, array, condition, states.get(array.pk, {}))
        elif base in jobs and index is None:
            _on_job(found, text, jobs[base], condition)
        else:
            what = f"there is no job or array {base} that you can see in cluster {cluster}"
            found.problems.append(what)
    if is_singleton:
        _on_jobs_of_one_name(found, user, cluster, name)
    return found


def _on_jobs_of_one_name(
    found: Waits, user: User | AnonymousUser, cluster: Cluster, name: str
) -> None:
    """Let the job wait for the ends of all the user's earlier jobs with its name.

    Every other condition on one of them implies its end.
    """
    known = {dependency.on_id or dependency.on_array_id for dependency in found.of_all}
    same_name = Job.objects.filter(
        user_id=user.pk or 0, cluster=cluster, name=name, state__in=[str(state) for state in ACTIVE]
    ).order_by("submitted_at")
    singles = list(same_name.filter(array=None)[: MOST_OF_ONE_NAME + 1])
    of_arrays = same_name.exclude(array=None).order_by().values("array").distinct()
    arrays = list(JobArray.objects.filter(pk__in=of_arrays)[: MOST_OF_ONE_NAME + 1])
    if len(singles) + len(arrays) > MOST_OF_ONE_NAME:
        limit = f"waits for at most {MOST_OF_ONE_NAME} jobs, and more are called {name}"
        found.problems.append(f"{SINGLETON}: {limit}; wait for some to end")
        return
    for job in [job for job in singles if job.pk not in known]:
        found.of_all.append(Dependency(on=job, condition=Condition.AFTERANY))
    for array in [array for array in arrays if array.pk not in known]:
        found.of_all.append(Dependency(on_array=array, condition=Condition.AFTERANY))


def _ids(bases: Iterable[str], seen: QuerySet[Job]) -> dict[str, str]:
    """Ids of the jobs and arrays that have one of these texts as their number."""
    numbers = {text: read_number(text) for text in bases}
    known = {number for number in numbers.values() if number is not None}
    if not known:
        return {}
    # Before counting began again an array may have had the number of a job, or the other way.
    found = {**jobs_with_numbers(seen, known), **arrays_with_numbers(seen, known)}
    return {text: str(found[number]) for text, number in numbers.items() if number in found}


def _elements(wanted: Iterable[tuple[JobArray, int | None]]) -> dict[tuple[UUID, int | None], Job]:
    """Elements by array and index, those that there are."""
    each = [Q(array=array, array_index=index) for array, index in wanted if index is not None]
    jobs = Job.objects.filter(reduce(or_, each)) if each else ()
    return {(job.array_id, job.array_index): job for job in jobs if job.array_id}


def _on_job(found: Waits, text: str, job: Job | None, condition: str) -> None:
    if job is None:
        return
    if condition == AFTERCORR:
        found.problems.append(f"aftercorr:{text}: is for whole arrays; use afterok for one job")
    elif not can_be_satisfied(condition, {job.state}) and job.is_over:
        never = f"job {text} is {job.state}, so {condition} can never be satisfied"
        found.problems.append(f"{never}; requeue it first, or leave it out")
    else:
        found.of_all.append(Dependency(on=job, condition=condition))


def _on_array(found: Waits, array: JobArray, condition: str, states: Mapping[str, int]) -> None:
    if can_be_satisfied(condition, states.keys()):
        found.of_all.append(Dependency(on_array=array, condition=condition))
        return
    ended = ", ".join(f"{count} {state}" for state, count in states.items())
    never = f"array {array.pk} has {ended} elements, so {condition} can never be satisfied"
    found.problems.append(f"{never}; requeue them first, or leave it out")


def _correlate(found: Waits, array: JobArray, indices: Sequence[int] | None) -> None:
    """Let each element wait for that of its index; all must exist and may still complete."""
    if indices is None:
        found.problems.append(f"aftercorr:{array.pk}: is for arrays; give the job an array field")
        return
    others = {i: (pk, s) for pk, i, s in array.jobs.values_list("pk", "array_index", "state")}
    missing = [i for i in indices if i not in others]
    known = [i for i in indices if i in others]
    never = [i for i in known if not can_be_satisfied(Condition.AFTEROK, {others[i][1]})]
    for wrong, what in ((missing, "no element"), (never, "a failed or cancelled element")):
        if wrong:
            named = ", ".join(map(str, wrong[:NAMED])) + (", ..." if len(wrong) > NAMED else "")
            found.problems.append(f"aftercorr:{array.pk}: the array has {what} {named}")
    if not missing and not never:
        for index in indices:
            found.of_index[index].append(others[index][0])
