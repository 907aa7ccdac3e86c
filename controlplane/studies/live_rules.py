"""Rules of live jobs that no policy is told, as the jobs of a written workload say them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jobs.models import Dependency, Job


def with_rules(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload of live jobs with their ends at the walltime, arrays and dependencies.

    Dependencies are those on jobs of the workload, and on arrays of which it has all elements.
    """
    ids = [job["id"] for job in document["jobs"]]
    known = Job.objects.filter(pk__in=ids).select_related("array").in_bulk()
    rows = {str(pk): job for pk, job in known.items()}
    arrays = {str(job.array_id): job.array for job in rows.values() if job.array is not None}
    waits = _dependencies(rows, arrays)
    jobs = [{**job, **_said(rows[job["id"]], waits[job["id"]])} for job in document["jobs"]]
    limits = {name: array.at_once for name, array in arrays.items() if array.at_once}
    return {**document, "jobs": jobs, **({"arrays": limits} if limits else {})}


def _said(job: Job, waits: Mapping[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {"dependencies": dict(waits)} if waits else {}
    if job.walltime_s is not None:
        said["on_walltime"] = job.on_walltime
    if job.array_id is not None:
        said["array"] = str(job.array_id)
    return said


def _dependencies(rows: Mapping[str, Job], arrays: Iterable[str]) -> Mapping[str, dict[str, str]]:
    """Conditions by job and by the job or array that it waits for."""
    elements = Job.objects.filter(array__in=list(arrays)).values_list("array", "pk")
    parts = {str(array) for array, pk in elements if str(pk) not in rows}
    whole = set(arrays) - parts
    found: dict[str, dict[str, str]] = defaultdict(dict)
    links = Dependency.objects.filter(job__in=list(rows))
    for job, on, on_array, condition in links.values_list("job", "on", "on_array", "condition"):
        if str(on) in rows or str(on_array) in whole:
            found[str(job)][str(on or on_array)] = condition
    return found
