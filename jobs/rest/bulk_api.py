"""REST of submitting many jobs in one call, each accepted or refused alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias, cast

from django.contrib.auth.models import User
from django.db.models import prefetch_related_objects
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import Field, SerializerMethodField
from rest_framework.relations import RelatedField
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.web.models import Scope
from controlplane.web.rest.bodies import check_names
from controlplane.web.rest.errors import ConflictError, TooManyError
from controlplane.web.rest.strict import StrictView
from jobs.models import Job
from jobs.rest.serializers import JobInput, SubmissionSerializer
from jobs.selectors import jobs_by_id
from jobs.submission.refusals import JobConflict, QuotaReached
from jobs.submission.submit import Answer, Asked, Submission, submit_all
from jobs.submission.validation import JobInvalid


def bodies(submissions: Sequence[Submission]) -> list[dict[str, Any]]:
    """Return the bodies of jobs just created, from memory: they have no placement yet.

    Fields are `serializer.data`, at half the processor time for many jobs.
    """
    # 1. What the serializer needs beside the jobs.
    unread = [submission.job for submission in submissions if submission.dependencies is None]
    prefetch_related_objects(unread, "dependency_links")
    warnings_of = {}
    dependencies_of = {}
    for submission in submissions:
        warnings_of[submission.job.pk] = submission.warnings
        dependencies_of[submission.job.pk] = submission.dependencies
    context = {"warnings_of": warnings_of, "dependencies_of": dependencies_of}
    serializer = SubmissionSerializer(context=context)

    # 2. The fields of each job.
    rows = []
    for submission in submissions:
        row = {name: show(serializer, submission.job) for name, show in _field_functions()}
        rows.append(row)
    return rows


FieldFunction: TypeAlias = Callable[[SubmissionSerializer, Job], Any]
"""Function from the serializer and a job to the value of one field."""


@cache
def _field_functions() -> list[tuple[str, FieldFunction]]:
    """Return (name, function) of each field. Once a process: to resolve them takes long."""
    fields = SubmissionSerializer().fields.items()
    return [(name, _field_function(field)) for name, field in fields if not field.write_only]


def _field_function(field: Field[Any, Any, Any, Any]) -> FieldFunction:
    """Return the function of one field."""
    if isinstance(field, SerializerMethodField):
        method_name = str(field.method_name)
        return lambda serializer, job: getattr(serializer, method_name)(job)

    read: Callable[[Job], Any]
    if isinstance(field, RelatedField):
        read = field.get_attribute
    else:
        source = ".".join(field.source_attrs)
        read = attrgetter(source.removesuffix(".__str__"))

    def show(_: SubmissionSerializer, job: Job) -> Any:
        value = read(job)
        return None if value is None else field.to_representation(value)

    return show


def error_of_conflict(conflict: JobConflict) -> ConflictError | TooManyError:
    """Return the error of a refused action: 409, or 429 with the time to wait before a retry."""
    if isinstance(conflict, QuotaReached) and conflict.retry_s is not None:
        return TooManyError(str(conflict), conflict.retry_s)
    return ConflictError(str(conflict))


def _error_body(refusal: JobInvalid | JobConflict) -> Mapping[str, Any]:
    """Return the error of a refused submission in an answer: code, detail, messages by field."""
    if isinstance(refusal, JobInvalid):
        return {"code": "invalid", "detail": str(refusal), "fields": refusal.fields}
    is_too_fast = isinstance(refusal, QuotaReached) and refusal.retry_s is not None
    return {"code": "throttled" if is_too_fast else "conflict", "detail": str(refusal)}


MOST_JOBS = 100
"""Jobs of one call."""


class BulkItem(serializers.Serializer[Any]):
    """One of the jobs; the same user with the same key and the same job gets the same job again."""

    job = JobInput()
    idempotency_key = serializers.CharField(required=False, max_length=200)


class BulkInput(serializers.Serializer[Any]):
    """The jobs of a sweep."""

    jobs = serializers.ListField(child=BulkItem(), min_length=1, max_length=MOST_JOBS)


class BulkError(serializers.Serializer[Any]):
    """Why a job was refused."""

    code = serializers.CharField()
    detail = serializers.CharField()
    fields = serializers.DictField(  # type: ignore[assignment]  # its name in every answer
        child=serializers.ListField(child=serializers.CharField()), required=False
    )


class BulkResult(serializers.Serializer[Any]):
    """The result of the job at `index` of the call: `job`, or `error`."""

    index = serializers.IntegerField()
    created = serializers.BooleanField(
        help_text="Whether this call made the job; false where its key was known, or it was refused"
    )
    job = SubmissionSerializer(allow_null=True)
    error = BulkError(allow_null=True)


class BulkOutput(serializers.Serializer[Any]):
    """Results in the order of the call."""

    results = BulkResult(many=True)


class JobsBulkView(StrictView):
    """Submitting many jobs."""

    write_scope = Scope.SUBMIT

    @extend_schema(
        request=BulkInput,
        responses={201: BulkOutput, 207: BulkOutput},
        operation_id="jobs_bulk_create",
        description=f"Submits up to {MOST_JOBS} jobs in one transaction; 207: some were"
        " refused, the others are submitted.",
    )
    def post(self, request: Request) -> Response:
        """Submit them."""
        user = cast(User, request.user)
        data = request.data
        check_names(data, ("jobs",))
        items = data.get("jobs") if isinstance(data, dict) else None
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_JOBS:
            rule = f"must be a list of 1 to {MOST_JOBS} objects with a job each"
            raise ValidationError({"jobs": [rule]})
        requests = [_request_of(user, item, index) for index, item in enumerate(items)]
        results = _results(user, submit_all(requests))
        is_any_refused = any(result["error"] for result in results)
        return Response({"results": results}, status=207 if is_any_refused else 201)


def _request_of(user: User, item: object, index: int) -> Asked:
    """Return one entry of a call as a request to submit a job. Raises ValidationError."""
    check_names(item, ("job", "idempotency_key"), f"jobs[{index}].")
    if not isinstance(item, dict) or "job" not in item:
        rule = 'must be an object such as {"job": {...}, "idempotency_key": "..."}'
        raise ValidationError({f"jobs[{index}]": [rule]})
    key = item.get("idempotency_key")
    if key is not None and not isinstance(key, str):
        raise ValidationError({f"jobs[{index}].idempotency_key": ["must be text"]})
    return Asked(user, item["job"], key)


def _results(user: User, answers: list[Answer]) -> list[dict[str, Any]]:
    """Return the results of a call, in its order."""
    # 1. The submitted jobs. Those of an earlier call are read, as they have gone on since.
    submission_by_id = {}
    for answer in answers:
        if isinstance(answer, Submission):
            submission_by_id[answer.job.pk] = answer
    known_ids = [pk for pk, submission in submission_by_id.items() if not submission.created]
    for pk, job in jobs_by_id(user, known_ids).items():
        submission_by_id[pk] = replace(submission_by_id[pk], job=job)

    # 2. Their bodies.
    rows = bodies(list(submission_by_id.values()))
    body_by_id = dict(zip(submission_by_id, rows, strict=True))

    # 3. The results.
    results: list[dict[str, Any]] = []
    for index, answer in enumerate(answers):
        result: dict[str, Any] = {"index": index, "created": False, "job": None, "error": None}
        if isinstance(answer, Submission):
            result["created"] = answer.created
            result["job"] = body_by_id[answer.job.pk]
        else:
            result["error"] = _error_body(answer)
        results.append(result)
    return results
