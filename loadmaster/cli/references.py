"""Meaning of a name on the command line: a job, an array (ARRAY), or an element (ARRAY_3)."""

import re
from dataclasses import dataclass
from uuid import UUID

from loadmaster.cli.output import SHORT_ID, fail
from loadmaster.client import ENDED, Client, NotFoundError
from loadmaster.client.results import Job

NAMED = 5
MOST_ALIKE = 200
_ELEMENT = re.compile(r"(?P<array>.+?)(?:_(?P<index>\d{1,9})|\[(?P<inner>\d{1,9})\])")


@dataclass(frozen=True, slots=True)
class Target:
    """Id of a job, or of an array."""

    id: str
    is_array: bool = False


def target(client: Client, text: str) -> Target:
    """Job or array by id, name, number or beginning of the id; of several the only active one.

    NAME_3, NAME[3], ID_3 and ID[3] are elements of arrays. Ends the program if there is none.
    """
    found = _of_id(client, text) or _like(client, text)
    if found is None and (match := _ELEMENT.fullmatch(text)):
        array, index = match["array"], match["index"] or match["inner"]
        base = _of_id(client, array) or _like(client, array)
        if base is not None and base.is_array:
            return _element(client, base.id, text, int(index))
    if found is None:
        fail(f"there is no job {text} that you can see; `loadmaster jobs --all` lists them")
    return found


def job_id(client: Client, text: str) -> str:
    """Id of one job; ends the program for a whole array."""
    found = target(client, text)
    if found.is_array:
        fail(f"{text} is an array; name one of its elements, such as {text}_0")
    return found.id


def _of_id(client: Client, text: str) -> Target | None:
    try:
        found = str(UUID(text))
    except ValueError:
        return None
    try:
        return Target(client.job(found).id)
    except NotFoundError:
        return Target(client.array(found).id, is_array=True)


def _like(client: Client, text: str) -> Target | None:
    """Job or array by name; else by number; else by the beginning of its id."""
    similar = list(client.jobs(search=text, fold=True, limit=MOST_ALIKE))
    matches = [job for job in similar if job.name == text]
    matches = matches or [job for job in similar if text in _numbers(job)]
    matches = matches or [job for job in similar if _begins(job, text)]
    if len(matches) > 1:
        matches = [job for job in matches if job.state not in ENDED] or matches
    if len(matches) > 1:
        several = ", ".join(f"{_shown_id(j)} ({j.state})" for j in matches[:NAMED])
        said = f"{text} may be any of {len(matches)} jobs; give the beginning of its id"
        fail(f"{said}: {several}")
    return _target_of(matches[0], text) if matches else None


def _numbers(job: Job) -> tuple[str, ...]:
    """Numbers of a job and of its array, as texts."""
    return (str(job.number), str(job.array.number)) if job.array else (str(job.number),)


def _begins(job: Job, text: str) -> bool:
    ids = (job.id, job.array.id) if job.array else (job.id,)
    return any(known.startswith(text.lower()) for known in ids)


def _target_of(job: Job, text: str) -> Target:
    if job.array is None:
        return Target(job.id)
    is_element = job.number and text == str(job.number)
    is_element = is_element or (text != str(job.array.number) and job.id.startswith(text.lower()))
    if is_element and job.name != text:
        return Target(job.id)
    return Target(job.array.id, is_array=True)


def _shown_id(job: Job) -> str:
    return (job.array.id if job.array else job.id)[:SHORT_ID]


def _element(client: Client, array: str, text: str, index: int) -> Target:
    job = next(client.jobs(array=array, index=index, limit=1), None)
    if job is None:
        fail(f"there is no job {text}: the array's indices are {client.array(array).indices}")
    return Target(job.id)
