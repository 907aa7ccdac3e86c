"""Submission of many jobs in one transaction, each with its answer.

Of large arrays that transaction writes the first elements alone, and what the others are made from:
then the array is submitted. The others follow in turns, between which others may write. If the
process is killed meanwhile, the reconciler writes them, or the same request sent again.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import DatabaseError, DataError, IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from clusters.events import request_reschedules
from clusters.models import Reason
from controlplane.audit.record import Change, record_all
from controlplane.web.storage.bulk import insert
from controlplane.web.storage.turns import ROWS_A_TURN, turn
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs import kinds
from jobs.lifecycle import JobState
from jobs.models import Dependency, IdempotencyKey, Job, JobArray, JobEvent, UnfinishedArray
from jobs.numbers import take_numbers
from jobs.selectors import seen_by
from jobs.signals import jobs_queued
from jobs.submission.array_expression import MAX_ELEMENTS
from jobs.submission.elements import Elements
from jobs.submission.feasibility import Inventory
from jobs.submission.quotas import Quotas
from jobs.submission.refusals import IdempotencyConflict, JobConflict, QuotaReached
from jobs.submission.validation import JobInvalid, JobRequest, validate_job
from jobs.wording import BEGINS_LATER

log = logging.getLogger(__name__)

MAX_KEY = 200
MAX_CHARACTERS = 100_000_000
"""The most that the elements of one call's arrays may repeat, for each is a row of its own."""


ONLY_A_TEST = (
    "--test-only asks for a forecast and submits nothing; remove it, or send the job to"
    " job-forecasts/"
)


@dataclass(frozen=True, slots=True)
class Submission:
    """Accepted submission; `created` is False if the key was known.

    Of an array, `job` is its first element. `dependencies` are those of a new job, None where they
    have to be read.
    """

    job: Job
    warnings: tuple[str, ...] = ()
    created: bool = True
    dependencies: tuple[Dependency, ...] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Request to submit; the same user with the same `key` and data gets the same job again.

    `is_forecast`: it is taken back after a look, so a script's `--test-only` holds.
    """

    user: User
    data: object
    key: str | None = None
    cloned_from: Job | None = None
    is_forecast: bool = False

    @property
    def digest(self) -> str:
        """Hash of the body."""
        body = [self.data, str(self.cloned_from.pk) if self.cloned_from else None]
        return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


Answer = Submission | JobInvalid | JobConflict


def submit_all(asked: Sequence[Asked], inventory: Inventory | None = None) -> list[Answer]:
    """Submit these jobs in one transaction; answers in the same order.

    If the database refuses one of several, the others are submitted one by one. A single job
    raises.
    """
    answers = _accept(asked, inventory)
    for answer in answers:
        if isinstance(answer, Submission) and answer.job.array_id is not None:
            _finish_now(answer.job.array_id)
    return answers


def _accept(asked: Sequence[Asked], inventory: Inventory | None) -> list[Answer]:
    try:
        return _take(asked, inventory or Inventory())
    except (IntegrityError, DataError):
        # One of them is at fault: another request with its key was faster, or its cluster or team
        # has just been deleted.
        fresh = Inventory()
    return _take(asked, fresh) if len(asked) == 1 else [_take_one(one, fresh) for one in asked]


def _characters(job: Job) -> int:
    """Length of what each element of an array repeats."""
    return len(job.script) + len(json.dumps([job.command, job.environment]))


def _take_one(one: Asked, inventory: Inventory) -> Answer:
    try:
        return _take([one], inventory)[0]
    except DatabaseError as error:
        log.warning("a submission of %s was not taken: %s", one.user, error)
        return JobConflict("it could not be written, and nothing of it was kept; submit it again")


def _take(asked: Sequence[Asked], inventory: Inventory) -> list[Answer]:
    answers, requests = _sorted_out(asked, inventory)
    with transaction.atomic() if requests else nullcontext():
        refused = _beyond_quotas(requests)
        taken = {place: r for place, r in requests.items() if place not in refused}
        _write([(asked[place], request) for place, request in taken.items()])
    answers |= refused
    for place, request in taken.items():
        known = None if request.of_index else request.dependencies
        answers[place] = Submission(request.job, request.warnings, dependencies=known)
    return [
        answers[place] if place in answers else _same_key(asked, place, answers)
        for place in range(len(asked))
    ]


def _sorted_out(
    asked: Sequence[Asked], inventory: Inventory
) -> tuple[dict[int, Answer], dict[int, JobRequest]]:
    """Return (known answers, jobs to write) by position; keys already used are left out."""
    answers, requests = _earlier(asked), dict[int, JobRequest]()
    keys = set[tuple[int, str]]()
    for place, one in enumerate(asked):
        if place in answers or (one.key is not None and (one.user.pk, one.key) in keys):
            continue
        try:
            request = _within(validate_job(one.user, one.data, inventory), requests)
            if request.test_only and not one.is_forecast:
                raise JobInvalid({"sbatch": [ONLY_A_TEST]})
            requests[place] = request
        except JobInvalid as error:
            answers[place] = error  # and its key is still free
            continue
        if one.key is not None:
            keys.add((one.user.pk, one.key))
    keys_of_kinds = {place: _kind_key(request) for place, request in requests.items()}
    found = inventory.kinds({keys_of_kinds[place]: r.kind for place, r in requests.items()})
    for place, request in requests.items():
        job = request.job
        job.kind = found[keys_of_kinds[place]]
        job.user, job.cloned_from = asked[place].user, asked[place].cloned_from
        job.state = JobState.HELD if request.hold else JobState.QUEUED
        for name, value in begin_rest(job, timezone.now()).items() if not request.hold else ():
            setattr(job, name, value)
    return answers, requests


def _kind_key(request: JobRequest) -> kinds.KindKey:
    job = request.job
    command = [*([job.script] if job.script else []), *job.command]
    digest = kinds.digest(request.kind, runtime=job.runtime, image=job.image, command=command)
    return job.team_id, digest


def _within(request: JobRequest, earlier: Mapping[int, JobRequest]) -> JobRequest:
    """Return the request; raise JobInvalid if arrays of one call have too many elements."""
    if request.array is None:
        return request
    arrays = [(r.job, len(r.array.indices)) for r in (request, *earlier.values()) if r.array]
    if sum(count for _, count in arrays) > MAX_ELEMENTS:
        said = f"the arrays of one call may have {MAX_ELEMENTS} elements; use another call for it"
        raise JobInvalid({"array": [said]})
    if sum(count * _characters(job) for job, count in arrays) > MAX_CHARACTERS:
        said = f"its elements repeat over {MAX_CHARACTERS:,} characters of script and environment"
        raise JobInvalid({"array": [f"{said}; put these into a file, or submit fewer elements"]})
    return request


def _beyond_quotas(requests: Mapping[int, JobRequest]) -> dict[int, Answer]:
    """Refusals, by position, of requests for which their team has no room left."""
    quotas, refused = Quotas({r.job.team for r in requests.values()}), dict[int, Answer]()
    for place, request in requests.items():
        try:
            quotas.take(request.job.team, request.size, submissions=1)
        except QuotaReached as error:
            refused[place] = error
    return refused


def _earlier(asked: Sequence[Asked]) -> dict[int, Answer]:
    """Results of earlier requests with these keys, and errors of keys, by position."""
    answers: dict[int, Answer] = {}
    keyed = defaultdict[int, list[str]](list)
    for place, one in enumerate(asked):
        if one.key is None:
            continue
        if one.key.strip() and len(one.key) <= MAX_KEY and one.key.isprintable():
            keyed[one.user.pk].append(one.key)
        else:
            said = f"must have 1 to {MAX_KEY} printable characters; leave it out to go without"
            answers[place] = JobInvalid({"Idempotency-Key": [said]})
    if not keyed:
        return answers
    rows = _known(keyed)
    jobs = [row.job_id for row in rows.values()]
    seen = {user: seen_by(user, jobs) for user in {one.user for one in asked}}
    for place, one in enumerate(asked):
        row = rows.get((one.user.pk, one.key)) if one.key is not None else None
        if row and place not in answers:
            same = row.body_sha256 == one.digest
            answers[place] = _again(same, row.job) if row.job_id in seen[one.user] else _hidden()
    return answers


def _known(keyed: Mapping[int, Sequence[str]]) -> dict[tuple[int, str], IdempotencyKey]:
    mine = Q(pk=None)
    for user, keys in keyed.items():
        mine |= Q(user=user, key__in=keys)
    found = list(IdempotencyKey.objects.filter(mine).values_list("pk", flat=True))
    with_jobs = IdempotencyKey.objects.select_related(
        "job__cluster", "job__team", "job__user", "job__kind"
    )
    return {(row.user_id, row.key): row for row in with_jobs.filter(pk__in=found)} if found else {}


def _hidden() -> Answer:
    """Answer to a key of somebody who has left the job's team."""
    return IdempotencyConflict(
        "this Idempotency-Key belongs to a job that you may no longer see; send a new key"
    )


def _again(same: bool, job: Job) -> Answer:
    if same:
        return Submission(job, created=False)
    return IdempotencyConflict(
        "this Idempotency-Key was used before with another body; send a new key for a new job"
    )


def _same_key(asked: Sequence[Asked], place: int, answers: Mapping[int, Answer]) -> Answer:
    """Answer to a key that another job of the same call has taken, or would have."""
    one = asked[place]
    for other, before in zip(asked, map(answers.get, range(place)), strict=False):
        if (other.user.pk, other.key) != (one.user.pk, one.key):
            continue
        if isinstance(before, Submission):
            return _again(other.digest == one.digest, before.job)
        if isinstance(before, QuotaReached):
            return before
    raise KeyError(one.key)


def _write(wanted: Sequence[tuple[Asked, JobRequest]]) -> None:
    if not wanted:
        return
    written = list[tuple[Asked, JobRequest, Elements]]()
    room = ROWS_A_TURN
    for asked, request in wanted:
        elements = Elements.of(request, most=max(1, room))
        room -= len(elements.jobs)
        written.append((asked, request, elements))
    _number([elements for _, _, elements in written])
    insert(JobArray, [e.array for _, _, e in written if e.array is not None])
    _insert([elements for _, _, elements in written])
    insert(UnfinishedArray, [e.unfinished for _, _, e in written if e.unfinished is not None])
    keys = [
        IdempotencyKey(user=asked.user, key=asked.key, body_sha256=asked.digest, job=r.job)
        for asked, r, _ in written
        if asked.key
    ]
    insert(IdempotencyKey, keys)
    for user in {asked.user for asked, _, _ in written}:
        record_all((_audited(*w) for w in written if w[0].user == user), by=user)


def _insert(parts: Sequence[Elements]) -> None:
    """Write these jobs with their dependencies and events, and ask for a round that places them."""
    insert(Job, [job for part in parts for job in part.jobs])
    insert(Dependency, [one for part in parts for one in part.dependencies])
    insert(JobEvent, [_submitted(job, part.warnings) for part in parts for job in part.jobs])
    begin_all([job for part in parts for job in part.jobs if job.state != JobState.HELD])


def finish_array(array_id: UUID) -> None:
    """Write the elements of a submitted array that are still missing, in turns.

    Any number of processes may do so at once: a turn locks the array's row.
    """
    while _write_next(array_id):
        pass


def _write_next(array_id: UUID) -> bool:
    """Write the next elements of an array; return False if none was missing."""
    with turn():
        rows = UnfinishedArray.objects.select_related("array").filter(array=array_id)
        unfinished = rows.select_for_update(of=("self",)).first()
        if unfinished is None:
            return False
        elements = Elements.next_of(unfinished, ROWS_A_TURN)
        _number([elements])
        _insert([elements])
        written = unfinished.written + len(elements.jobs)
        if written < unfinished.array.size:
            rows.update(written=written)
        else:
            rows.delete()
    return True


def _finish_now(array_id: UUID) -> None:
    """Finish an array that is submitted, whatever keeps its other elements from being written."""
    try:
        finish_array(array_id)
    except DatabaseError as error:
        log.warning("array %s is submitted, its other elements follow: %s", array_id, error)


STALLED_S = 10.0
"""Seconds without a new element after which an array is taken for one whose writer was killed."""


def stalled_arrays(watch: Watch = THIS_MACHINE) -> list[UUID]:
    """Arrays that nobody goes on writing."""
    unfinished = list(UnfinishedArray.objects.values_list("array", "written"))
    stamps = {f"array:{array}": str(written) for array, written in unfinished}
    still_s = watch.still_s(stamps)
    return [array for array, _ in unfinished if still_s[f"array:{array}"] > STALLED_S]


def _number(submitted: Sequence[Elements]) -> None:
    """Give all jobs and new arrays numbers, each array the one before those of its elements."""
    numbered: list[Job | JobArray] = []
    for elements in submitted:
        if elements.array is not None and not elements.array.number:
            numbered.append(elements.array)
        numbered += elements.jobs
    for one, number in zip(numbered, take_numbers(len(numbered)), strict=True):
        one.number = number


def _audited(asked: Asked, request: JobRequest, elements: Elements) -> Change:
    job, source = elements.jobs[0], asked.cloned_from
    new = {"state": job.state, "cluster": str(job.cluster), "gpus": job.gpus_max}
    new |= {"elements": request.size} if elements.array is not None else {}
    new |= {"cloned_from": str(source.pk)} if source is not None else {}
    return Change("job.submit", elements.array or job, job.team, new=new, name=str(job.name))


def _submitted(job: Job, warnings: Sequence[str]) -> JobEvent:
    return JobEvent(
        job=job, event="submitted", from_state=job.state, to_state=job.state,
        actor=job.user.get_username(), data={"warnings": list(warnings)},
    )  # fmt: skip


def begin_rest(job: Job, now: datetime) -> dict[str, Any]:
    """Values of a job that rests until the time before which it is not to begin; {} if past."""
    if job.begin_at is None or job.begin_at <= now:
        return {}
    detail = {"retry_s": round(job.begin_at.timestamp())}
    return {"retry_at": job.begin_at, "waiting_code": BEGINS_LATER, "waiting_detail": detail}


def begin_all(jobs: Iterable[Job], reason: Reason = Reason.SUBMISSION) -> None:
    """Request measurements for unknown kinds, and a round: of each array, one event suffices."""
    by_cluster = defaultdict[int, list[Job]](list)
    for job in jobs:
        by_cluster[job.cluster_id].append(job)
    for _, entering in sorted(by_cluster.items()):
        jobs_queued.send(Job, jobs=entering)
        first_of = {job.array_id or job.pk: job for job in reversed(entering)}
        request_reschedules(entering[0].cluster, reason, reversed(first_of.values()))
