"""Submission of many jobs in one transaction, each with its answer.

Of a large array that transaction writes only the first elements, with the data that the others are
made from: then the array counts as submitted. The other elements follow in turns, between which
other requests may write. If the process is killed meanwhile, the reconciler writes them, or the
same request when it is sent again.
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
from jobs.wording.reasons import BEGINS_LATER

log = logging.getLogger(__name__)

MAX_KEY = 200
"""Characters of an idempotency key."""

MAX_CHARACTERS = 100_000_000
"""Characters of script and environment that all elements of one call's arrays may have together.

Each element is a row of its own, with a copy of them.
"""

ONLY_A_TEST = (
    "--test-only asks for a forecast and submits nothing; remove it, or send the job to"
    " job-forecasts/"
)


@dataclass(frozen=True, slots=True)
class Submission:
    """Accepted submission; `created` is False if the key was known.

    `job` is the first element of an array. `dependencies` are those of a new job; None if they must
    be read from the database.
    """

    job: Job
    warnings: tuple[str, ...] = ()
    created: bool = True
    dependencies: tuple[Dependency, ...] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Request to submit a job; the same user with the same `key` and data gets the same job again.

    `is_forecast`: the transaction is rolled back after a look, so a script may have `--test-only`.
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
    """Submit these jobs in one transaction; return the answers in the same order.

    If the database refuses one of several, they are submitted one by one. A single job raises.
    """
    answers = _submit(asked, inventory)
    for answer in answers:
        if isinstance(answer, Submission) and answer.job.array_id is not None:
            _finish_now(answer.job.array_id)
    return answers


def _submit(asked: Sequence[Asked], inventory: Inventory | None) -> list[Answer]:
    try:
        return _submit_batch(asked, inventory or Inventory())
    except (IntegrityError, DataError):
        # One of them is at fault: another request with its key was faster, or its cluster or team
        # has just been deleted.
        fresh = Inventory()
    if len(asked) == 1:
        return _submit_batch(asked, fresh)
    return [_submit_one(one, fresh) for one in asked]


def _submit_one(one: Asked, inventory: Inventory) -> Answer:
    try:
        return _submit_batch([one], inventory)[0]
    except DatabaseError as error:
        log.warning("a submission of %s was not taken: %s", one.user, error)
        return JobConflict("the database could not store it, and nothing was kept; submit it again")


def _submit_batch(asked: Sequence[Asked], inventory: Inventory) -> list[Answer]:
    """Submit these jobs in one transaction; answers and requests are known by their index."""
    # 1. Answer known keys and invalid jobs; the others are requests to write.
    answers, requests = _validate(asked, inventory)

    # 2. Write those for which their teams have room. The teams' rows stay locked meanwhile.
    with transaction.atomic() if requests else nullcontext():
        refusals = _over_quota(requests)
        accepted = {index: request for index, request in requests.items() if index not in refusals}
        _write([(asked[index], request) for index, request in accepted.items()])
    answers |= refusals
    for index, request in accepted.items():
        # Elements of one index may have more dependencies than those of the request.
        dependencies = None if request.of_index else request.dependencies
        answers[index] = Submission(request.job, request.warnings, dependencies=dependencies)

    # 3. What is left repeats a key of the same call.
    for index in range(len(asked)):
        if index not in answers:
            answers[index] = _answer_to_repeated_key(asked, index, answers)
    return [answers[index] for index in range(len(asked))]


def _validate(
    asked: Sequence[Asked], inventory: Inventory
) -> tuple[dict[int, Answer], dict[int, JobRequest]]:
    """Return (known answers, jobs to write) by index, without those that repeat a key."""
    answers = _earlier(asked)
    requests = dict[int, JobRequest]()
    keys = set[tuple[int, str]]()
    for index, one in enumerate(asked):
        if index in answers or (one.key is not None and (one.user.pk, one.key) in keys):
            continue
        try:
            request = validate_job(one.user, one.data, inventory)
            _check_arrays(request, requests)
            if request.test_only and not one.is_forecast:
                raise JobInvalid({"sbatch": [ONLY_A_TEST]})
        except JobInvalid as error:
            answers[index] = error  # and its key is still free
            continue
        requests[index] = request
        if one.key is not None:
            keys.add((one.user.pk, one.key))
    _complete(asked, requests, inventory)
    return answers, requests


def _complete(
    asked: Sequence[Asked], requests: Mapping[int, JobRequest], inventory: Inventory
) -> None:
    """Give the jobs of these requests their kind, owner and state."""
    kind_keys = {index: _kind_key(request) for index, request in requests.items()}
    kinds_by_key = inventory.kinds(
        {kind_keys[index]: request.kind for index, request in requests.items()}
    )
    for index, request in requests.items():
        job = request.job
        job.kind = kinds_by_key[kind_keys[index]]
        job.user = asked[index].user
        job.cloned_from = asked[index].cloned_from
        if request.hold:
            job.state = JobState.HELD
            continue
        job.state = JobState.QUEUED
        for name, value in begin_rest(job, timezone.now()).items():
            setattr(job, name, value)


def _kind_key(request: JobRequest) -> kinds.KindKey:
    job = request.job
    command = [*([job.script] if job.script else []), *job.command]
    digest = kinds.digest(request.kind, runtime=job.runtime, image=job.image, command=command)
    return job.team_id, digest


def _check_arrays(request: JobRequest, earlier: Mapping[int, JobRequest]) -> None:
    """Raise JobInvalid if the arrays of one call have too many elements with this request's."""
    if request.array is None:
        return
    elements = 0
    characters = 0
    for each in (request, *earlier.values()):
        if each.array is not None:
            elements += each.size
            characters += each.size * _characters(each.job)
    if elements > MAX_ELEMENTS:
        limit = f"the arrays of one call may have {MAX_ELEMENTS} elements"
        raise JobInvalid({"array": [f"{limit}; use another call for it"]})
    if characters > MAX_CHARACTERS:
        limit = f"its elements repeat over {MAX_CHARACTERS:,} characters of script and environment"
        raise JobInvalid({"array": [f"{limit}; put these into a file, or submit fewer elements"]})


def _characters(job: Job) -> int:
    """Return the characters that each element of an array repeats."""
    return len(job.script) + len(json.dumps([job.command, job.environment]))


def _over_quota(requests: Mapping[int, JobRequest]) -> dict[int, Answer]:
    """Return refusals, by index, of requests for which their team has no room left."""
    quotas = Quotas({request.job.team for request in requests.values()})
    refusals = dict[int, Answer]()
    for index, request in requests.items():
        try:
            quotas.take(request.job.team, request.size, submissions=1)
        except QuotaReached as error:
            refusals[index] = error
    return refusals


def _earlier(asked: Sequence[Asked]) -> dict[int, Answer]:
    """Return answers to keys of earlier calls, and errors of invalid keys, by index."""
    # 1. Refuse invalid keys.
    answers: dict[int, Answer] = {}
    keys_by_user = defaultdict[int, list[str]](list)
    for index, one in enumerate(asked):
        if one.key is None:
            continue
        if one.key.strip() and len(one.key) <= MAX_KEY and one.key.isprintable():
            keys_by_user[one.user.pk].append(one.key)
        else:
            form = f"must have 1 to {MAX_KEY} printable characters; leave it out to go without"
            answers[index] = JobInvalid({"Idempotency-Key": [form]})
    if not keys_by_user:
        return answers

    # 2. Answer known keys by their jobs, as far as the user may still see them.
    rows = _known_keys(keys_by_user)
    jobs = [row.job_id for row in rows.values()]
    seen = {user: seen_by(user, jobs) for user in {one.user for one in asked}}
    for index, one in enumerate(asked):
        if one.key is None or index in answers:
            continue
        row = rows.get((one.user.pk, one.key))
        if row is None:
            continue
        same = row.body_sha256 == one.digest
        answers[index] = _again(same, row.job) if row.job_id in seen[one.user] else _hidden()
    return answers


def _known_keys(
    keys_by_user: Mapping[int, Sequence[str]],
) -> dict[tuple[int, str], IdempotencyKey]:
    """Return the rows of these users' keys that were used before, with their jobs."""
    condition = Q(pk=None)
    for user, keys in keys_by_user.items():
        condition |= Q(user=user, key__in=keys)
    # The wide query is rarely needed: most keys are new.
    primary_keys = list(IdempotencyKey.objects.filter(condition).values_list("pk", flat=True))
    if not primary_keys:
        return {}
    rows = IdempotencyKey.objects.select_related(
        "job__cluster", "job__team", "job__user", "job__kind"
    ).filter(pk__in=primary_keys)
    return {(row.user_id, row.key): row for row in rows}


def _hidden() -> Answer:
    """Return the answer to a key of somebody who has left the job's team."""
    return IdempotencyConflict(
        "this Idempotency-Key belongs to a job that you may no longer see; send a new key"
    )


def _again(same: bool, job: Job) -> Answer:
    """Return the answer to a key that a job has: that job if the bodies are the same."""
    if same:
        return Submission(job, created=False)
    return IdempotencyConflict(
        "this Idempotency-Key was used before with another body; send a new key for a new job"
    )


def _answer_to_repeated_key(
    asked: Sequence[Asked], index: int, answers: Mapping[int, Answer]
) -> Answer:
    """Return the answer to a key that an earlier job of the same call has, or was refused with."""
    one = asked[index]
    for other_index in range(index):
        other = asked[other_index]
        if (other.user.pk, other.key) != (one.user.pk, one.key):
            continue
        before = answers.get(other_index)
        if isinstance(before, Submission):
            return _again(other.digest == one.digest, before.job)
        if isinstance(before, QuotaReached):
            return before
    raise KeyError(one.key)


def _write(wanted: Sequence[tuple[Asked, JobRequest]]) -> None:
    """Write these jobs, the first elements of arrays, their keys and audit records."""
    if not wanted:
        return
    # 1. Make the rows: of all arrays together as many elements as one turn writes.
    written = list[tuple[Asked, JobRequest, Elements]]()
    rows_left = ROWS_A_TURN
    for asked, request in wanted:
        elements = Elements.of(request, most=max(1, rows_left))
        rows_left -= len(elements.jobs)
        written.append((asked, request, elements))
    parts = [elements for _, _, elements in written]
    _number(parts)

    # 2. Insert arrays before the jobs that refer to them, and keys after their jobs.
    insert(JobArray, [part.array for part in parts if part.array is not None])
    _insert(parts)
    insert(UnfinishedArray, [part.unfinished for part in parts if part.unfinished is not None])
    keys = [
        IdempotencyKey(user=asked.user, key=asked.key, body_sha256=asked.digest, job=request.job)
        for asked, request, _ in written
        if asked.key
    ]
    insert(IdempotencyKey, keys)

    # 3. Audit the changes of each user.
    changes = defaultdict[User, list[Change]](list)
    for asked, request, elements in written:
        changes[asked.user].append(_audited(asked, request, elements))
    for user, changes_of_user in changes.items():
        record_all(changes_of_user, by=user)


def _insert(parts: Sequence[Elements]) -> None:
    """Write these jobs with their dependencies and events, and ask for a round that places them."""
    jobs = list[Job]()
    dependencies = list[Dependency]()
    events = list[JobEvent]()
    for part in parts:
        jobs += part.jobs
        dependencies += part.dependencies
        events += [_submitted(job, part.warnings) for job in part.jobs]
    insert(Job, jobs)
    insert(Dependency, dependencies)
    insert(JobEvent, events)
    begin_all([job for job in jobs if job.state != JobState.HELD])


def finish_array(array_id: UUID) -> None:
    """Write the elements of a submitted array that are still missing, in turns.

    Several processes may do so at once: a turn locks the array's row.
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
    """Write the missing elements of an array; log an error, as the reconciler will go on."""
    try:
        finish_array(array_id)
    except DatabaseError as error:
        log.warning("array %s is submitted, its other elements follow: %s", array_id, error)


STALLED_S = 10.0
"""Seconds without a new element after which an array's writer counts as killed."""


def stalled_arrays(watch: Watch = THIS_MACHINE) -> list[UUID]:
    """Return the unfinished arrays whose writer counts as killed."""
    unfinished = list(UnfinishedArray.objects.values_list("array", "written"))
    stamps = {f"array:{array}": str(written) for array, written in unfinished}
    unchanged_s = watch.still_s(stamps)
    return [array for array, _ in unfinished if unchanged_s[f"array:{array}"] > STALLED_S]


def _number(parts: Sequence[Elements]) -> None:
    """Give all jobs and new arrays numbers, each array the one before those of its elements."""
    numbered: list[Job | JobArray] = []
    for elements in parts:
        if elements.array is not None and not elements.array.number:
            numbered.append(elements.array)
        numbered += elements.jobs
    for job_or_array, number in zip(numbered, take_numbers(len(numbered)), strict=True):
        job_or_array.number = number


def _audited(asked: Asked, request: JobRequest, elements: Elements) -> Change:
    """Return the audit record of a submission."""
    job = elements.jobs[0]
    new = {"state": job.state, "cluster": str(job.cluster), "gpus": job.gpus_max}
    if elements.array is not None:
        new["elements"] = request.size
    if asked.cloned_from is not None:
        new["cloned_from"] = str(asked.cloned_from.pk)
    return Change("job.submit", elements.array or job, job.team, new=new, name=str(job.name))


def _submitted(job: Job, warnings: Sequence[str]) -> JobEvent:
    return JobEvent(
        job=job,
        event="submitted",
        from_state=job.state,
        to_state=job.state,
        actor=job.user.get_username(),
        data={"warnings": list(warnings)},
    )


def begin_rest(job: Job, now: datetime) -> dict[str, Any]:
    """Return the fields of a queued job that rests until its `begin_at`; {} if that is past."""
    if job.begin_at is None or job.begin_at <= now:
        return {}
    detail = {"retry_s": round(job.begin_at.timestamp())}
    return {"retry_at": job.begin_at, "waiting_code": BEGINS_LATER, "waiting_detail": detail}


def begin_all(jobs: Iterable[Job], reason: Reason = Reason.SUBMISSION) -> None:
    """Request measurements of unknown kinds, and a round, by one event for each job or array."""
    by_cluster = defaultdict[int, list[Job]](list)
    for job in jobs:
        by_cluster[job.cluster_id].append(job)
    for _, entering in sorted(by_cluster.items()):
        jobs_queued.send(Job, jobs=entering)
        first_elements = dict[UUID, Job]()
        for job in entering:
            first_elements.setdefault(job.array_id or job.pk, job)
        request_reschedules(entering[0].cluster, reason, first_elements.values())
