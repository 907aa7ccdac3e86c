"""Rules of live jobs that no policy sees, written into the jobs of a workload."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jobs.models import Dependency, Job


def with_rules(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload of live jobs with their ends at the walltime, arrays and dependencies.

    Dependencies are those on jobs of the workload, and on arrays of which it has all elements.
    """
    # 1. The jobs and arrays of the workload, as the database has them.
    ids = [job["id"] for job in workload["jobs"]]
    by_key = Job.objects.filter(pk__in=ids).select_related("array").in_bulk()
    live_jobs = {str(pk): job for pk, job in by_key.items()}
    arrays = {}
    for job in live_jobs.values():
        if job.array is not None:
            arrays[str(job.array_id)] = job.array

    # 2. Each job with its rules.
    conditions, one_suffices = _dependencies(live_jobs, arrays)
    jobs = []
    for written in workload["jobs"]:
        job_id = written["id"]
        fields = _rules_of(live_jobs[job_id], conditions[job_id])
        if job_id in one_suffices:
            fields["one_suffices"] = True
        jobs.append({**written, **fields})

    # 3. Most elements of an array that run at once, by array.
    result = {**workload, "jobs": jobs}
    limits = {name: array.at_once for name, array in arrays.items() if array.at_once}
    if limits:
        result["arrays"] = limits
    return result


def _rules_of(job: Job, conditions: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a written job for its rules; `conditions`: by job or array that it waits for."""
    fields: dict[str, Any] = {}
    if conditions:
        fields["dependencies"] = dict(conditions)
    if job.walltime_s is not None:
        fields["on_walltime"] = job.on_walltime
    if job.array_id is not None:
        fields["array"] = str(job.array_id)
    return fields


def _dependencies(
    live_jobs: Mapping[str, Job], arrays: Iterable[str]
) -> tuple[Mapping[str, dict[str, str]], set[str]]:
    """Conditions by waiting job, and by the job or array that it waits for.

    And the jobs for which one of their conditions suffices. One of whose jobs the workload lacks
    some waits for none: these may have been the ones that let it start.
    """
    # 1. Arrays of which the workload has all elements.
    elements = Job.objects.filter(array__in=list(arrays)).values_list("array", "pk")
    incomplete = {str(array) for array, pk in elements if str(pk) not in live_jobs}
    complete = set(arrays) - incomplete

    # 2. Dependencies on what the workload has.
    conditions: dict[str, dict[str, str]] = defaultdict(dict)
    one_suffices = set[str]()
    lacking = set[str]()
    for link in Dependency.objects.filter(job__in=list(live_jobs)):
        job = str(link.job_id)
        is_known = str(link.on_id) in live_jobs or str(link.on_array_id) in complete
        if link.alternative:
            (one_suffices if is_known else lacking).add(job)
        if is_known:
            condition = link.condition_text
            conditions[job][str(link.on_id or link.on_array_id)] = condition
    for job in lacking:
        conditions.pop(job, None)
    return conditions, one_suffices - lacking
