"""REST of submitting many jobs in one call, each accepted or refused alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any, cast

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
    """Bodies of jobs just created, from memory: they have no placement yet."""
    prefetch_related_objects(
        [s.job for s in submissions if s.dependencies is None], "dependency_links"
    )
    context = {
        "warnings_of": {s.job.pk: s.warnings for s in submissions},
        "dependencies_of": {s.job.pk: s.dependencies for s in submissions},
    }
    return _rows(SubmissionSerializer(context=context), (s.job for s in submissions))


def _rows(serializer: SubmissionSerializer, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """`serializer.data` of many jobs at half the CPU time: fields are resolved once a process."""
    return [{name: show(serializer, job) for name, show in _fields()} for job in jobs]


@cache
def _fields() -> list[tuple[str, Callable[[SubmissionSerializer, Job], Any]]]:
    """Names of the fields, and functions from the serializer and a job to what is shown."""
    fields = SubmissionSerializer().fields.items()
    return [(name, _shown(field)) for name, field in fields if not field.write_only]


def _shown(field: Field[Any, Any, Any, Any]) -> Callable[[SubmissionSerializer, Job], Any]:
    if isinstance(field, SerializerMethodField):
        return lambda serializer, job: getattr(serializer, str(field.method_name))(job)
    related, source = isinstance(field, RelatedField), ".".join(field.source_attrs)
    read = field.get_attribute if related else attrgetter(source.removesuffix(".__str__"))

    def show(_: SubmissionSerializer, job: Job) -> Any:
        value = read(job)
        return None if value is None else field.to_representation(value)

    return show


def error_of_conflict(conflict: JobConflict) -> ConflictError | TooManyError:
    """Error of a refused action: 409, or 429 with the time to wait for another try."""
    retry_s = conflict.retry_s if isinstance(conflict, QuotaReached) else None
    return ConflictError(str(conflict)) if retry_s is None else TooManyError(str(conflict), retry_s)


def error_of(answer: Answer) -> Mapping[str, Any]:
    """Error of a refused submission as REST shows it: code, detail, messages by field."""
    if isinstance(answer, JobInvalid):
        return {"code": "invalid", "detail": str(answer), "fields": answer.fields}
    is_too_fast = isinstance(answer, QuotaReached) and answer.retry_s is not None
    return {"code": "throttled" if is_too_fast else "conflict", "detail": str(answer)}


MOST_JOBS = 100


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
        request=BulkInput, responses={201: BulkOutput, 207: BulkOutput},
        operation_id="jobs_bulk_create",
        description=f"Submits up to {MOST_JOBS} jobs in one transaction; 207: some were"
        " refused, the others are submitted.",
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Submit them."""
        user, data = cast(User, request.user), request.data
        check_names(data, ("jobs",))
        items = data.get("jobs") if isinstance(data, dict) else None
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_JOBS:
            said = f"must be a list of 1 to {MOST_JOBS} objects with a job each"
            raise ValidationError({"jobs": [said]})
        answers = submit_all([_asked(user, item, index) for index, item in enumerate(items)])
        results = _results(user, answers)
        refused = any(result["error"] for result in results)
        return Response({"results": results}, status=207 if refused else 201)


def _asked(user: User, item: object, index: int) -> Asked:
    check_names(item, ("job", "idempotency_key"), f"jobs[{index}].")
    if not isinstance(item, dict) or "job" not in item:
        said = 'must be an object such as {"job": {...}, "idempotency_key": "..."}'
        raise ValidationError({f"jobs[{index}]": [said]})
    key = item.get("idempotency_key")
    if key is not None and not isinstance(key, str):
        raise ValidationError({f"jobs[{index}].idempotency_key": ["must be text"]})
    return Asked(user, item["job"], key)


def _results(user: User, answers: list[Answer]) -> list[dict[str, Any]]:
    taken = {s.job.pk: s for s in answers if isinstance(s, Submission)}
    known = jobs_by_id(user, [s.job.pk for s in taken.values() if not s.created])
    rows = bodies([replace(s, job=known.get(pk, s.job)) for pk, s in taken.items()])
    shown = dict(zip(taken, rows, strict=True))
    results: list[dict[str, Any]] = []
    for i, a in enumerate(answers):
        if isinstance(a, Submission):
            row = {"index": i, "created": a.created, "job": shown[a.job.pk], "error": None}
        else:
            row = {"index": i, "created": False, "job": None, "error": error_of(a)}
        results.append(row)
    return results
