"""REST: many jobs in one call. Each is accepted or refused alone, all in one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.rest.answers import bodies, error_of
from jobs.rest.serializers import JobInput, SubmissionSerializer
from jobs.selectors import jobs_by_id
from jobs.submission.submit import Answer, Asked, Submission, submit_all

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
    fields = serializers.DictField(  # type: ignore[assignment]  # the name that errors have in every answer
        child=serializers.ListField(child=serializers.CharField()), required=False
    )


class BulkResult(serializers.Serializer[Any]):
    """What came of the job at `index` of the call: `job`, or `error`."""

    index = serializers.IntegerField()
    created = serializers.BooleanField(
        help_text="Whether this call made the job; false where its key was known, or it was refused"
    )
    job = SubmissionSerializer(allow_null=True)
    error = BulkError(allow_null=True)


class BulkOutput(serializers.Serializer[Any]):
    """Results in the order of the call."""

    results = BulkResult(many=True)


class JobsBulkView(APIView):
    """Submitting many jobs."""

    @extend_schema(
        request=BulkInput, responses={201: BulkOutput, 207: BulkOutput},
        operation_id="jobs_bulk_create",
        description=f"Submits up to {MOST_JOBS} jobs in one transaction; 207 where some were"
        " refused, the others are taken.",
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Submit them."""
        user = cast(User, request.user)
        asked = [_asked(user, item, index) for index, item in enumerate(_items(request.data))]
        answers = submit_all(asked)
        results = _results(user, answers)
        refused = any(r["error"] for r in results)
        return Response(
            {"results": results},
            status=status.HTTP_207_MULTI_STATUS if refused else status.HTTP_201_CREATED,
        )


def _items(data: object) -> list[Any]:
    items = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_JOBS:
        raise ValidationError(
            {"jobs": [f"must be a list of 1 to {MOST_JOBS} objects with a job each"]}
        )
    return items


def _asked(user: User, item: object, index: int) -> Asked:
    if not isinstance(item, dict) or not {"job"} <= set(item) <= {"job", "idempotency_key"}:
        raise ValidationError(
            {
                f"jobs[{index}]": [
                    'must be an object such as {"job": {...}, "idempotency_key": "..."}'
                ]
            }
        )
    key = item.get("idempotency_key")
    if key is not None and not isinstance(key, str):
        raise ValidationError({f"jobs[{index}].idempotency_key": ["must be text"]})
    return Asked(user, item["job"], key)


def _results(user: User, answers: list[Answer]) -> list[dict[str, Any]]:
    taken = {s.job.pk: s for s in answers if isinstance(s, Submission)}
    known = jobs_by_id(user, [s.job.pk for s in taken.values() if not s.created])
    rows = bodies([replace(s, job=known.get(pk, s.job)) for pk, s in taken.items()])
    shown = dict(zip(taken, rows, strict=True))
    return [
        (
            {"index": i, "created": a.created, "job": shown[a.job.pk], "error": None}
            if isinstance(a, Submission)
            else {"index": i, "created": False, "job": None, "error": error_of(a)}
        )
        for i, a in enumerate(answers)
    ]
