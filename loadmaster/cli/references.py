"""Meaning of a name on the command line: a job, an array (ARRAY), or an element (ARRAY_3)."""

import re
from dataclasses import dataclass
from uuid import UUID

from loadmaster.cli.output import SHORT_ID, fail
from loadmaster.client import ENDED, Client, NotFoundError
from loadmaster.client.results import Job

NAMED = 5
"""Most jobs that the refusal of an ambiguous name lists."""

MOST_ALIKE = 200
"""Most jobs that are looked through for a name."""

_ELEMENT = re.compile(r"(?P<array>.+?)(?:_(?P<index>\d{1,9})|\[(?P<inner>\d{1,9})\])")


@dataclass(frozen=True, slots=True)
class Target:
    """Id of a job, or of an array."""

    id: str
    is_array: bool = False


def target(client: Client, text: str) -> Target:
    """Find a job or array by id, name, number or beginning of the id; of several the active one.

    NAME_3, NAME[3], ID_3 and ID[3] are elements of arrays. Ends the program if there is none.
    """
    # 1. The whole text, as a job's name may look like that of an element.
    named = _of_id(client, text) or _like(client, text)
    if named is not None:
        return named

    # 2. An element of an array.
    match = _ELEMENT.fullmatch(text)
    array = None
    if match:
        array = _of_id(client, match["array"]) or _like(client, match["array"])
    if match is None or array is None or not array.is_array:
        fail(f"there is no job {text} that you can see; `loadmaster jobs --all` lists them")
    index = match["index"] or match["inner"]
    return _element(client, array.id, text, int(index))


def job_id(client: Client, text: str) -> str:
    """Return the id of one job; ends the program for a whole array."""
    named = target(client, text)
    if named.is_array:
        fail(f"{text} is an array; name one of its elements, such as {text}_0")
    return named.id


def _of_id(client: Client, text: str) -> Target | None:
    """Return the job or array with this id; None if the text is no id. Raises NotFoundError."""
    try:
        whole_id = str(UUID(text))
    except ValueError:
        return None
    try:
        return Target(client.job(whole_id).id)
    except NotFoundError:
        return Target(client.array(whole_id).id, is_array=True)


def _like(client: Client, text: str) -> Target | None:
    """Find a job or array by name; else by number; else by the beginning of its id.

    Returns None if there is none, and ends the program if there are several.
    """
    # 1. The best way of naming that fits any job.
    similar = list(client.jobs(search=text, fold=True, limit=MOST_ALIKE))
    matches = [job for job in similar if job.name == text]
    matches = matches or [job for job in similar if text in _numbers(job)]
    matches = matches or [job for job in similar if _begins(job, text)]

    # 2. Of several, those that are not over are meant.
    if len(matches) > 1:
        matches = [job for job in matches if job.state not in ENDED] or matches
    if len(matches) > 1:
        examples = ", ".join(f"{_shown_id(job)} ({job.state})" for job in matches[:NAMED])
        problem = f"{text} may be any of {len(matches)} jobs; give the beginning of its id"
        fail(f"{problem}: {examples}")
    if not matches:
        return None
    return _target_of(matches[0], text)


def _numbers(job: Job) -> tuple[str, ...]:
    """Return the numbers of a job and of its array, as texts."""
    if job.array:
        return str(job.number), str(job.array.number)
    return (str(job.number),)


def _begins(job: Job, text: str) -> bool:
    """Return True if the id of a job or of its array begins with a text."""
    ids = (job.id, job.array.id) if job.array else (job.id,)
    return any(one_id.startswith(text.lower()) for one_id in ids)


def _target_of(job: Job, text: str) -> Target:
    """Return the job that a text names, or its array if that is meant."""
    if job.array is None:
        return Target(job.id)

    # The elements of an array have its name, but a number and an id of their own.
    array = Target(job.array.id, is_array=True)
    if text == job.name:
        return array
    if job.number and text == str(job.number):
        return Target(job.id)
    if text != str(job.array.number) and job.id.startswith(text.lower()):
        return Target(job.id)
    return array


def _shown_id(job: Job) -> str:
    """Return the beginning of the id of a job, or of its array."""
    return (job.array.id if job.array else job.id)[:SHORT_ID]


def _element(client: Client, array: str, text: str, index: int) -> Target:
    """Return the element of an array with this index; `text` is its name in the refusal."""
    job = next(client.jobs(array=array, index=index, limit=1), None)
    if job is None:
        fail(f"there is no job {text}: the array's indices are {client.array(array).indices}")
    return Target(job.id)
